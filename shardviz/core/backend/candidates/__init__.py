"""Edits of a program, made and tried."""
