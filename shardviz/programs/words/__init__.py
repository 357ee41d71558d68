"""The facts of this feature in English."""
