"""Modules of `shardviz.runs` that import jax."""
