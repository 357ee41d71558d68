"""What this feature says, in English."""
