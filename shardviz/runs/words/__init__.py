"""English sentences about runs and caches."""
