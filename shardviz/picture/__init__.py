"""What a value looks like, as data. No renderer and no jax."""
