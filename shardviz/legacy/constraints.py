"""`with_sharding_constraint(x, parts)` for functions under `sharded_jit`.

The constraint becomes a JAX sharding constraint over a mesh of integer parts. It
therefore works in loops, gradients and nested jits, and appears in jaxprs.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Iterator
from typing import Any

from shardviz.base.errors import ProgramError, needed_by
from shardviz.base.format import shown
from shardviz.base.typing import PyTree
from shardviz.legacy.partitions import (
    Partition,
    Parts,
    fitting,
    is_partition,
    is_parts_mesh,
    is_prime_power,
    mesh_sizes,
)

# True while a sharded_jit is being traced, so that calls outside can be rejected. A
# constraint's meaning must not depend on this flag, because JAX caches traces of inner
# functions.
_INSIDE: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "inside_sharded_jit", default=False
)


@contextlib.contextmanager
def inside() -> Iterator[None]:
    """Marks that a function under `sharded_jit` is being traced."""
    token = _INSIDE.set(True)
    try:
        yield
    finally:
        _INSIDE.reset(token)


def is_inside() -> bool:
    """Whether a function under `sharded_jit` is being traced."""
    return _INSIDE.get()


def with_sharding_constraint(x: PyTree, parts: Parts | None) -> PyTree:
    """Constrains an intermediate array of a function under `sharded_jit` to `parts`.

    Args:
        x: an array. Use `jax.tree.map` for a tree of arrays.
        parts: one number per dimension, or None for a replicated array.

    Raises:
        ShardvizError: outside `sharded_jit`, if the parts do not fit `x`, or if jax is
            not installed.

    >>> from shardviz import legacy
    >>> import jax
    >>> split = lambda x: legacy.with_sharding_constraint(x, legacy.Parts(1)) + 1
    >>> jax.jit(split)(jax.numpy.zeros(2)).tolist()
    [1.0, 1.0]
    """
    with needed_by("legacy.with_sharding_constraint"):
        import jax
        from jax.core import Tracer

    if not is_partition(parts):
        raise ProgramError(
            "with_sharding_constraint takes legacy.Parts, one number for each"
            f" dimension, or None; got {shown(parts)}. Write legacy.Parts(2, 1)."
        )
    if not is_inside() and not isinstance(x, Tracer):
        raise ProgramError(
            "with_sharding_constraint(x, parts) splits over the devices of the"
            f" sharded_jit around it; it was called on {shown(x)} outside of one."
        )
    if isinstance(x, (bool, int, float, complex)):
        x = jax.numpy.asarray(x)
    if not hasattr(x, "shape"):
        raise ProgramError(
            f"with_sharding_constraint takes one array; got {shown(x)}. For a tree,"
            " write jax.tree.map(lambda a: with_sharding_constraint(a, parts), tree)."
        )
    if parts is not None:
        parts.check(x.shape, "The constrained array")
    for sharding in _shardings(parts):
        x = jax.lax.with_sharding_constraint(x, sharding)
    return x


def _shardings(parts: Partition) -> list[Any]:
    """Returns the NamedShardings to apply, one after another."""
    import jax

    from shardviz.programs.backend.bridge import abstract_mesh

    around = jax.sharding.get_abstract_mesh()
    in_parts_mesh = is_parts_mesh(around)
    # Without a mesh in context, we don't know how many devices to replicate over.
    if parts is None and not in_parts_mesh:
        return []
    if parts is None:
        return [replicated_on(around)]
    sizes, _ = mesh_sizes(parts.product, [parts])
    if in_parts_mesh:
        sizes = around.axis_sizes
    mesh, spec = fitting(parts, sizes, parts.product)
    sharding = jax.sharding.NamedSharding(abstract_mesh(mesh), spec.to_jax())
    is_same_size = in_parts_mesh and around.size == parts.product
    if is_same_size and not is_prime_power(parts.product):
        return [replicated_on(around), sharding, replicated_on(around)]
    return [sharding]


def replicated_on(mesh: Any) -> Any:
    """Returns the replicated NamedSharding on a mesh.

    Arrays are resharded via this sharding if neither of two partitions refines the
    other. XLA's partitioner (jaxlib 0.12) crashes when it reshards 2 x 3 parts to 6 x 1
    directly.
    """
    from jax.sharding import NamedSharding, PartitionSpec

    return NamedSharding(mesh, PartitionSpec())


def constraints_inside(jaxpr: Any) -> Iterator[tuple[str, Partition, int]]:
    """Yields name, Parts and device count of every constraint and nested sharded_jit.

    >>> import jax
    >>> f = jax.make_jaxpr(lambda x: with_sharding_constraint(x, Parts(2, 1)))
    >>> list(constraints_inside(f(jax.numpy.zeros((4, 4)))))
    [('with_sharding_constraint(…, Parts(2, 1))', Parts(2, 1), 2)]
    """
    from shardviz.programs.backend import jaxpr_names as names
    from shardviz.programs.backend.jaxprs import array_type, operations

    for operation in operations(jaxpr):
        equation = operation.equation
        if operation.name == names.CONSTRAINT:
            pairs = [(names.CONSTRAINT_SHARDING.of(equation), equation.invars[0])]
            who = "with_sharding_constraint(…, {})"
        else:
            # A nested jit has one sharding for each argument and result.
            shardings = [*names.IN_SHARDINGS.find(equation, ())]
            shardings += names.OUT_SHARDINGS.find(equation, ())
            variables = [*equation.invars, *equation.outvars]
            pairs = list(zip(shardings, variables, strict=False))
            who = "sharded_jit(…, {}, …)"
        for sharding, variable in pairs:
            mesh = getattr(sharding, "mesh", None)
            if mesh is not None and is_parts_mesh(mesh):
                parts = _parts_of(sharding, len(array_type(variable).shape))
                yield who.format(parts), parts, mesh.size


def _parts_of(sharding: Any, rank: int) -> Partition:
    sizes, counts = dict(sharding.mesh.shape), [1] * rank
    for dim, axes in enumerate(sharding.spec):
        if isinstance(axes, str):
            axes = (axes,)
        # Dimensions added by vmap are unconstrained and not split.
        if isinstance(axes, tuple):
            counts[dim] = math.prod(sizes[axis] for axis in axes)
    parts = Parts(*counts)
    if parts.product != sharding.mesh.size:
        return None
    return parts
