"""Runs programs on several processes, using ipyparallel and `jax.distributed`."""
