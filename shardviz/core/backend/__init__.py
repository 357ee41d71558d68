"""What talks to jax and to devices. The only folder of the core that imports jax."""
