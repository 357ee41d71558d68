"""What the values of this feature look like."""
