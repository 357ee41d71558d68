"""From a program to jax's traced function, and what XLA's partitioner made of it."""
