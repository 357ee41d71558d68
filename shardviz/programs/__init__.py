"""Programs: their arguments, how they are traced, constraints and effects."""
