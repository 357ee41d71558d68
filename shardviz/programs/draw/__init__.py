"""Pictures and text tables of this feature's values."""
