"""sharded_jit over integer partitions, and how the same is written today."""
