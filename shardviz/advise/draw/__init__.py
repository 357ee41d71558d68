"""Pictures and text tables of changes and searches."""
