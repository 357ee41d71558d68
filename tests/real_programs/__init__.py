"""Programs of other libraries, as their users write them, compared with plain jax."""
