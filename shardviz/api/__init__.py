"""The doors: thin functions by subject, each a line or two over a room."""
