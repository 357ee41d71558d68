"""Pictures and text of the values of this feature."""
