"""The doors to the dialect before named axes: `sharded_jit`, cut by whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from shardviz.core.errors import import_optional
from shardviz.legacy.partitions import Parts


def sharded_jit(
    fun: Callable[..., Any],
    in_parts: Any,
    out_parts: Any,
    num_partitions: int | None = None,
    local_in_parts: Any = None,
    local_out_parts: Any = None,
    local_num_partitions: int | None = None,
    static_argnums: int | Iterable[int] = (),
) -> Any:
    """`fun`, cut over devices by whole numbers: `jax.jit` as it was before meshes had names.

    What comes back is called as `fun` is. It also has `.report(*args)`, a Report of one run;
    `.program(*args)`, a Program for the Explorer; and `.to_modern(*args)`, the same as code over
    `jax.jit` and NamedSharding.

    Args:
        fun: the function; it takes arrays, or containers of them, by position.
        in_parts: how the arguments are cut: a Parts, None for whole on every device, or containers
            of these, as a prefix of the tuple of arguments.
        out_parts: the same for what it returns.
        num_partitions: how many devices, where no Parts says so.
        local_in_parts, local_out_parts, local_num_partitions: the same for one process of several;
            where there is only one they may be left out, or repeat the others.
        static_argnums: positions of arguments that are compile-time constants; they have no parts.

    Raises:
        ShardvizError: for parts that do not fit together; in a call for arguments that they do
            not fit, keywords, missing static arguments, and too few devices.

    >>> import jax.numpy as jnp
    >>> scale = sharded_jit(lambda x, s: x * s, (Parts(1, 1), None), Parts(1, 1))
    >>> scale(jnp.ones((2, 2)), 3.0).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    from shardviz.core.program.cache import cache

    rest = (num_partitions, local_in_parts, local_out_parts, local_num_partitions, static_argnums)
    dialect = import_optional("shardviz.legacy.partitioned_function", "legacy.sharded_jit", "jax")
    return dialect.sharded_jit(fun, in_parts, out_parts, *rest, cache=cache)


def with_sharding_constraint(x: Any, parts: Parts | None) -> Any:
    """`x`, cut as `parts` says, in the middle of a function under `sharded_jit`.

    Args:
        x: an array; for a tree of them, `jax.tree.map` over it.
        parts: one number a dimension, or None for whole on every device.

    Raises:
        ShardvizError: outside of `sharded_jit`, and for parts that do not fit `x`.

    >>> import jax.numpy as jnp
    >>> def f(x):
    ...     return with_sharding_constraint(x + 1, Parts(1)) * 2
    >>> sharded_jit(f, None, None)(jnp.zeros(2)).tolist()
    [2.0, 2.0]
    """
    constraint = import_optional(
        "shardviz.legacy.constraint", "legacy.with_sharding_constraint", "jax"
    )
    return constraint.with_sharding_constraint(x, parts)
