"""What to change in a program, and what should stay true of it."""
