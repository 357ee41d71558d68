"""The panels of this feature in the Explorer."""
