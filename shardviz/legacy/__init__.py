"""The ways to say how an array is split that jax had before meshes with named axes.

    import shardviz.legacy as legacy

**ShardingSpec** is how `jax.pmap` wrote a sharding, up to jax 0.4. Its first tuple has
one entry for each dimension of the array: `NoSharding()` leaves it as it is,
`Chunked([2])` splits it into 2 equal chunks, `Chunked([2, 4])` splits each of these
into 4 again, and `Unstacked(4)` gives each device one index of a dimension of size 4,
which the device's own array then lacks. Each number is a *sharded axis*, counted from
0. The second tuple describes the devices as a grid, major to minor: along
`ShardedAxis(0)` they hold the parts of sharded axis 0, along `Replicated(2)` copies.

>>> spec = ShardingSpec((Chunked([2]), NoSharding()), (ShardedAxis(0), Replicated(2)))
>>> spec.indices((8, 3))[2]  # what the third of four devices holds
(slice(4, 8, None), slice(None, None, None))

**Parts** are the integer partitions of `jax.interpreters.sharded_jit`, up to jax 0.3:
one number for each dimension, into how many blocks it is split. There are as many
devices as blocks; the first holds the first block in row-major order, and so on. None
in place of Parts is a replicated array. `sharded_jit(fun, in_parts, out_parts)`
compiles a function so, and inside of it `with_sharding_constraint(x, parts)` says how
an intermediate value is split.

>>> Parts(2, 4).product  # 2 x 4 blocks, so 8 devices
8
>>> import jax.numpy as jnp
>>> double = sharded_jit(lambda x: 2 * x, in_parts=Parts(1), out_parts=None)
>>> double(jnp.arange(3)).tolist()
[0, 2, 4]

`sv.plot`, `sv.text` and `sv.layout(shape, spec_or_parts)` take both. A ShardingSpec that
is typed in the Explorer becomes the PartitionSpec that it equals, and
`double.program(x)` is the same function over a mesh with named axes. The specs need
numpy alone; `sharded_jit` and `with_sharding_constraint` need jax.
"""

from __future__ import annotations

from shardviz.legacy.constraints import with_sharding_constraint
from shardviz.legacy.partitioned_function import sharded_jit
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
