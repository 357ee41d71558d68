"""Public functions of this feature, each a thin wrapper over its implementation."""
