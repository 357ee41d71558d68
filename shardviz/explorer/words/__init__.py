"""Text that the Explorer shows."""
