"""The public functions by subject, each a few lines over the module that does the work."""
