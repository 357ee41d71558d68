"""Tests of what reads other libraries' files."""
