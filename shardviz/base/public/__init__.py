"""The public functions of this feature: thin wrappers around its other modules."""
