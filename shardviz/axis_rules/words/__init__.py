"""Sentences about the values of this feature."""
