"""What jax had before named axes: pmap's ShardingSpec, integer partitions, and `sharded_jit`.

Each with its pictures, its text and what it equals in today's words. `import shardviz.legacy as
legacy`; the specs need numpy alone, `sharded_jit` needs jax.
"""

from shardviz.legacy.functions import sharded_jit, with_sharding_constraint
from shardviz.legacy.partitions import Parts
from shardviz.legacy.sharding_spec import (
    Chunked,
    NoSharding,
    Replicated,
    ShardedAxis,
    ShardingSpec,
    Unstacked,
)

__all__ = [
    "Chunked",
    "NoSharding",
    "Parts",
    "Replicated",
    "ShardedAxis",
    "ShardingSpec",
    "Unstacked",
    "sharded_jit",
    "with_sharding_constraint",
]
