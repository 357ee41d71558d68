"""Explorer panels for compiled programs."""
