"""Pictures and text tables of hardware."""
