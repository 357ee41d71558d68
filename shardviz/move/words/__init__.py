"""The sentences of this feature."""
