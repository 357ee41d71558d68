"""The modules of this feature that import jax."""
