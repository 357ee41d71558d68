"""Pictures and text of this feature's values."""
