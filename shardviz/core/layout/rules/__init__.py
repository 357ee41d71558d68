"""Rule tables and what they decide for each dimension."""
