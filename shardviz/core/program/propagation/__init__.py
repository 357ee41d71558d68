"""The Plan: what the compiler would do about every value, explained by its own propagation."""
