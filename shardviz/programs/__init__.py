"""Programs: their arguments, tracing, constraints and side effects."""
