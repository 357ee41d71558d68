"""The public functions of `shardviz.move`."""
