"""Changes to try on a program, and checks that it should keep passing."""
