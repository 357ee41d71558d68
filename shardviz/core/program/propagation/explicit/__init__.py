"""Programs with Explicit axes: their types, and what they would accept."""
