"""The sentences of the `base` feature."""
