"""Commands of `python -m shardviz` that are not public functions."""
