"""Effects of a program: what it prints, calls back and mutates, and what each effect allows."""
