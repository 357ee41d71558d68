"""Sentences about data movement."""
