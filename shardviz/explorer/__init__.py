"""The Explorer and its page."""
