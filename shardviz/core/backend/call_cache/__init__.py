"""Functions that are compiled once and called often, and why a call compiled again."""
