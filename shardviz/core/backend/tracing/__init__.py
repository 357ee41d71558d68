"""From a call of a function to what is traced."""
