"""What the Explorer shows of this feature."""
