"""The pictures and text tables of this feature."""
