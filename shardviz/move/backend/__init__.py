"""The modules of `shardviz.move` that import jax."""
