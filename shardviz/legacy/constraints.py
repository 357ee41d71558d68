"""`with_sharding_constraint(x, parts)` inside of a function under `sharded_jit`.

It becomes jax's own constraint over a mesh of integer parts, so it works in loops,
gradients and nested jits, and can be found in a jaxpr.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shardviz.core.errors import ProgramError, import_optional
from shardviz.core.format import shown
from shardviz.legacy.partitions import (
    Partition,
    Parts,
    is_partition,
    is_parts_mesh,
    is_prime_power,
    mesh_over,
    mesh_sizes,
    spec_over,
)

# Only says whether a sharded_jit is being traced, so that a call outside of one can be
# refused. What a constraint means must not depend on it: jax keeps what it traced of
# inner functions.
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
    """Whether a function under `sharded_jit` is being traced.

    >>> with inside():
    ...     is_inside()
    True
    """
    return _INSIDE.get()


def with_sharding_constraint(x: Any, parts: Parts | None) -> Any:
    """`x`, split as `parts` says, in the middle of a function under `sharded_jit`.

    Args:
        x: an array; for a tree of them, `jax.tree.map` over it.
        parts: one number for each dimension, or None for a replicated array.

    Raises:
        ShardvizError: outside of `sharded_jit`, for parts that do not fit `x`, and
            where jax is not installed.

    >>> import jax
    >>> split = lambda x: with_sharding_constraint(x, Parts(1)) + 1
    >>> jax.jit(split)(jax.numpy.zeros(2)).tolist()
    [1.0, 1.0]
    """
    jax = import_optional("jax", "legacy.with_sharding_constraint", "jax")
    from jax.core import Tracer

    if not is_partition(parts):
        raise ProgramError(
            "with_sharding_constraint takes legacy.Parts, one number for each"
            f" dimension, or None; got {shown(parts)}. Write legacy.Parts(2, 1)."
        )
    if not is_inside() and not isinstance(x, Tracer):
        raise ProgramError(
            "with_sharding_constraint(x, parts) only means something inside a function"
            f" under sharded_jit, over whose devices it splits; it was called on"
            f" {shown(x)}. Call it there, or lay out an array with"
            " jax.device_put(x, NamedSharding(mesh, spec))."
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
    """The NamedShardings to apply one after the other."""
    import jax

    from shardviz.core.backend.bridge import abstract_mesh

    around = jax.sharding.get_abstract_mesh()
    ours = is_parts_mesh(around)
    if parts is None:
        # Without a mesh around it nobody knows over how many devices to replicate.
        return [replicated_on(around)] if ours else []
    spec = spec_over(parts, around.axis_sizes) if ours else None
    mesh = around
    if spec is None:
        sizes, _ = mesh_sizes(parts.product, [parts])
        spec = spec_over(parts, sizes)
        assert spec is not None
        mesh = abstract_mesh(mesh_over(sizes))
    wanted = jax.sharding.NamedSharding(mesh, spec.to_jax())
    if ours and around.size == parts.product and not is_prime_power(parts.product):
        return [replicated_on(around), wanted, replicated_on(around)]
    return [wanted]


def replicated_on(mesh: Any) -> Any:
    """The replicated NamedSharding: a detour between partitions that do not refine.

    XLA's partitioner (jaxlib 0.12) ends the process when it reshards 2 x 3 parts to
    6 x 1.

    >>> from shardviz.core.backend.bridge import abstract_mesh
    >>> replicated_on(abstract_mesh(mesh_over((2, 3)))).spec
    P()
    """
    from jax.sharding import NamedSharding, PartitionSpec

    return NamedSharding(mesh, PartitionSpec())


@dataclass(frozen=True)
class ConstraintRequest:
    """What a constraint or a nested sharded_jit inside a program asks for.

    Attributes:
        nested: whether it is a nested sharded_jit.
        parts: the Parts; None for a value that is replicated.
        count: over how many devices.
    """

    nested: bool
    parts: Partition
    count: int

    def __str__(self) -> str:
        if self.nested:
            return f"sharded_jit(…, {self.parts}, …)"
        return f"with_sharding_constraint(…, {self.parts})"


def constraints_inside(jaxpr: Any) -> Iterator[ConstraintRequest]:
    """What the constraints and nested sharded_jits of a jaxpr ask for.

    Loops, branches and calls are searched, too.

    Args:
        jaxpr: a jax Jaxpr or ClosedJaxpr.

    >>> import jax
    >>> f = jax.make_jaxpr(lambda x: with_sharding_constraint(x, Parts(2, 1)))
    >>> [request.parts for request in constraints_inside(f(jax.numpy.zeros((4, 4))))]
    [Parts(2, 1)]
    """
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        params = equation.params
        if equation.primitive.name == "sharding_constraint":
            yield from _requests(params["sharding"], equation.invars[0], nested=False)
            continue
        # The shardings of a nested jit: one for each argument and result.
        for field in ("in_shardings", "out_shardings"):
            variables = equation.invars
            if field == "out_shardings":
                variables = equation.outvars
            for sharding, variable in zip(
                params.get(field) or (), variables, strict=False
            ):
                yield from _requests(sharding, variable, nested=True)
        for inner in _inner_jaxprs(params.values()):
            yield from constraints_inside(inner)


def _requests(
    sharding: Any, variable: Any, nested: bool
) -> Iterator[ConstraintRequest]:
    mesh = getattr(sharding, "mesh", None)
    if mesh is None or not is_parts_mesh(mesh):
        return
    sizes = dict(mesh.shape)
    counts = [1] * len(variable.aval.shape)
    for dim, axes in enumerate(sharding.spec):
        if isinstance(axes, str):
            axes = (axes,)
        # What vmap adds is unconstrained, and splits nothing.
        if isinstance(axes, tuple):
            counts[dim] = math.prod(sizes[axis] for axis in axes)
    parts = Parts(*counts)
    replicated = parts.product != mesh.size
    yield ConstraintRequest(nested, None if replicated else parts, mesh.size)


def _inner_jaxprs(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _inner_jaxprs(value)
        elif hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns"):
            yield value
