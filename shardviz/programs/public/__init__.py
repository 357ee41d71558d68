"""This feature's public functions: thin wrappers around the code that does the work."""
