"""Programs on several processes, which ipyparallel starts and `jax.distributed` joins."""
