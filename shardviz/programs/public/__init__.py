"""The public functions of this feature, each a few lines over the code that does the work."""
