"""The modules of `shardviz.advise` that import jax."""
