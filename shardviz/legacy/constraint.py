"""with_sharding_constraint(x, parts): how a value inside `sharded_jit` is split.

It becomes jax's own constraint over a mesh of integer parts, so it works in loops, gradients and
nested jits, and the constraints of a program can be found in its jaxpr.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, NamedSharding


# Only says whether a sharded_jit is being traced, so that a call outside of one can be refused.
# What a constraint means must not depend on it: jax keeps what it traced of inner functions.
_INSIDE: contextvars.ContextVar[bool] = contextvars.ContextVar("inside_sharded_jit", default=False)


@dataclass(frozen=True)
class ConstraintRequest:
    """What a constraint or a nested sharded_jit inside a program asks for.

    Attributes:
        what: how it was written.
        parts: the Parts; None for a value that is replicated.
        count: over how many devices.
    """

    what: str
    parts: Partition
    count: int


def with_sharding_constraint(x: Any, parts: Parts | None) -> Any:
    """`x`, split as `parts` says, in the middle of a function under `sharded_jit`.

    Args:
        x: an array; for a tree of them, `jax.tree.map` over it.
        parts: one number for each dimension, or None for a replicated array.

    Raises:
        ShardvizError: outside of `sharded_jit`, for parts that do not fit `x`, and where jax is
            not installed.

    >>> import jax
    >>> jax.jit(lambda x: with_sharding_constraint(x, Parts(1)) + 1)(jax.numpy.zeros(2)).tolist()
    [1.0, 1.0]
    """
    jax = import_optional("jax", "legacy.with_sharding_constraint", "jax")
    from jax.core import Tracer

    if not is_partition(parts):
        raise ProgramError(
            f"with_sharding_constraint takes legacy.Parts, one number for each dimension, or None;"
            f" got {shown(parts)}. Write legacy.Parts(2, 1)."
        )
    if not (is_inside() or isinstance(x, Tracer)):
        raise ProgramError(
            "with_sharding_constraint(x, parts) only means something inside a function under"
            f" sharded_jit, over whose devices it splits; it was called on {shown(x)}. Call it"
            " there, or lay out an array with jax.device_put(x, NamedSharding(mesh, spec))."
        )
    if not hasattr(x, "shape"):
        if not isinstance(x, (bool, int, float, complex)):
            raise ProgramError(
                f"with_sharding_constraint takes one array; got {shown(x)}. Write"
                " jax.tree.map(lambda a: with_sharding_constraint(a, parts), tree) for a tree."
            )
        x = jax.numpy.asarray(x)
    if parts is not None:
        parts.check(x.shape, "The array in with_sharding_constraint")
    for sharding in _shardings(parts):
        x = jax.lax.with_sharding_constraint(x, sharding)
    return x


def _shardings(parts: Partition) -> list[NamedSharding]:
    """The shardings to apply one after the other; none where the device count is not known."""
    import jax

    from shardviz.core.backend.bridge import abstract_mesh

    around = jax.sharding.get_abstract_mesh()
    ours = is_parts_mesh(around)
    if parts is None:
        return [replicated_on(around)] if ours else []
    spec = spec_over(parts, around.axis_sizes) if ours else None
    if spec is not None:
        wanted = jax.sharding.NamedSharding(around, spec.to_jax())
    else:
        sizes, _ = mesh_sizes(parts.product, [parts])
        own = spec_over(parts, sizes)
        assert own is not None
        wanted = jax.sharding.NamedSharding(abstract_mesh(mesh_over(sizes)), own.to_jax())
    if ours and around.size == parts.product and not is_prime_power(parts.product):
        return [replicated_on(around), wanted, replicated_on(around)]
    return [wanted]


def replicated_on(mesh: AbstractMesh) -> NamedSharding:
    """Replicated: the detour between partitions of which neither refines the other.

    XLA's partitioner (jaxlib 0.12) ends the process when it reshards 2 x 3 parts to 6 x 1.

    >>> from shardviz.core.backend.bridge import abstract_mesh
    >>> replicated_on(abstract_mesh(mesh_over((2, 3)))).spec
    P()
    """
    from jax.sharding import NamedSharding, PartitionSpec

    return NamedSharding(mesh, PartitionSpec())


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


def constraints_inside(jaxpr: Any) -> Iterator[ConstraintRequest]:
    """What the constraints and nested sharded_jits of a jaxpr ask for, loops and calls included.

    Args:
        jaxpr: a jax Jaxpr or ClosedJaxpr.

    >>> import jax
    >>> f = lambda x: with_sharding_constraint(x, Parts(2, 1))
    >>> [a.parts for a in constraints_inside(jax.make_jaxpr(f)(jax.numpy.zeros((4, 4))))]
    [Parts(2, 1)]
    """
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        params = equation.params
        if equation.primitive.name == "sharding_constraint":
            yield from _requests_in(
                params["sharding"], equation.invars, "with_sharding_constraint(…, {})"
            )
            continue
        for field, variables in (
            ("in_shardings", equation.invars),
            ("out_shardings", equation.outvars),
        ):
            for sharding, variable in zip(params.get(field) or (), variables, strict=False):
                yield from _requests_in(sharding, [variable], "A nested sharded_jit with {}")
        for inner in _inner(params.values()):
            yield from constraints_inside(inner)


def _requests_in(sharding: Any, variables: Any, words: str) -> Iterator[ConstraintRequest]:
    mesh = getattr(sharding, "mesh", None)
    if mesh is None or not is_parts_mesh(mesh):
        return
    shape = variables[0].aval.shape
    sizes = dict(mesh.shape)
    # What vmap adds is unconstrained, and splits nothing.
    axes = [(s,) if isinstance(s, str) else s for s in sharding.spec]
    counts = [math.prod(sizes[a] for a in s) if isinstance(s, tuple) else 1 for s in axes]
    parts = Parts(*counts, *[1] * (len(shape) - len(counts)))
    found = parts if parts.product == mesh.size else None
    yield ConstraintRequest(words.format(found), found, mesh.size)


def _inner(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _inner(value)
        elif hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns"):
            yield value
