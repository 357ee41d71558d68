"""English sentences about compiled programs."""
