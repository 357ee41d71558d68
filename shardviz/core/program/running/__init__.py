"""The stages of a compile or a run, and predictions held against what happened."""
