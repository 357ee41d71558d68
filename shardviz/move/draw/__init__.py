"""Pictures and text tables of data movement."""
