"""What the effects of a program allow, and the order in which they happen."""
