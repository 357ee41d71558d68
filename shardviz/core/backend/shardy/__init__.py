"""The propagated stage: Shardy's own passes, read into a Plan."""
