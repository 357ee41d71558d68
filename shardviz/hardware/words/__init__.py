"""English sentences about hardware."""
