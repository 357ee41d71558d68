"""Two notations for shardings that JAX had before meshes with named axes.

    import shardviz.legacy as legacy

**ShardingSpec** is how `jax.pmap` described a sharding, up to jax 0.4. Its first tuple
has one entry for each dimension of the array. `NoSharding()` leaves the dimension
unsplit, `Chunked([2])` splits it into 2 equal chunks, and `Chunked([2, 4])` splits each
of these into 4 again. `Unstacked(4)` gives each device one index of a dimension of size
4; the device's local array lacks that dimension. Each number is a *sharded axis*,
counted from 0. The second tuple describes the devices as a grid, major to minor. Along
`ShardedAxis(0)` devices hold different parts of sharded axis 0, and along
`Replicated(2)` they hold copies.

>>> spec = ShardingSpec((Chunked([2]), NoSharding()), (ShardedAxis(0), Replicated(2)))
>>> spec.indices((8, 3))[2]  # what the third of four devices holds
(slice(4, 8, None), slice(None, None, None))

**Parts** are the integer partitions of `jax.interpreters.sharded_jit`, up to jax 0.3:
the number of blocks along each dimension. There is one device per block, and devices
hold the blocks in row-major order. None in place of Parts means a replicated array.
`sharded_jit(fun, in_parts, out_parts)` compiles a function with these partitions.
Inside that function, `with_sharding_constraint(x, parts)` splits an intermediate value.

>>> Parts(2, 4).product  # 2 x 4 blocks, so 8 devices
8
>>> import jax.numpy as jnp
>>> double = sharded_jit(lambda x: 2 * x, in_parts=Parts(1), out_parts=None)
>>> double(jnp.arange(3)).tolist()
[0, 2, 4]

`sv.plot`, `sv.text` and `sv.layout(shape, spec_or_parts)` accept both notations. A
ShardingSpec that is typed in the Explorer becomes the equivalent PartitionSpec, and
`double.program(x)` is the same function over a mesh with named axes. The specs only
need numpy; `sharded_jit` and `with_sharding_constraint` need jax.
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
