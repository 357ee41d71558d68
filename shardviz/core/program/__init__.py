"""What a program is and what was found out about it: pure values, no jax."""
