"""Tables of watched functions."""
