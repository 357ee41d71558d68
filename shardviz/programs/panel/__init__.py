"""The feature's panels in the Explorer."""
