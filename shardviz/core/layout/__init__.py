"""Where every byte lives. Pure Python and numpy; never imports jax."""
