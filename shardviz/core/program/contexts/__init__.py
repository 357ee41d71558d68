"""Which mesh is in force, and which of jax's ways of setting one each API sees."""
