"""Pictures and text tables of compiled programs."""
