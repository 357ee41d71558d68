"""Plans: what Shardy's propagation decides about every value."""
