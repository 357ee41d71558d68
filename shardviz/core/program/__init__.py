"""What compiler and devices do about a layout. The only rooms that import jax."""
