"""What moves between layouts, files and processes."""
