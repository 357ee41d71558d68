"""With Explicit axes a value's sharding is part of its type: held against the propagation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jax.sharding import AxisType

from shardviz.core.layout.spec import Spec
from shardviz.core.program.bridge import adopt_spec
from shardviz.core.program.propagation.planned import PlannedOp

Key = tuple[str, tuple[int, ...]]


def typed_specs(jaxpr: Any) -> Mapping[Key, tuple[Spec, ...]]:
    """The shardings in the types of a traced program, by operation and shape.

    Args:
        jaxpr: what `jax.jit(f).trace(...).jaxpr` gives; functions called inside count too. What
            stands where axes are Auto or Manual has no sharding in its type and is left out.

    >>> import jax, jax.numpy as jnp
    >>> from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
    >>> mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Explicit,))
    >>> split = NamedSharding(mesh, PartitionSpec("x"))
    >>> a = jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=split)
    >>> typed_specs(jax.jit(lambda a: jnp.sin(a).sum(1)).trace(a).jaxpr)
    {('sin', (8, 4)): (P('x', None),), ('reduce_sum', (8,)): (P('x'),)}
    """
    found: dict[Key, dict[Spec, None]] = defaultdict(dict)
    for name, aval in _values(getattr(jaxpr, "jaxpr", jaxpr)):
        spec = _spec(aval)
        if spec is not None:
            found[name, tuple(aval.shape)][spec] = None
    return {key: tuple(specs) for key, specs in found.items()}


def note_types(ops: Sequence[PlannedOp], jaxpr: Any) -> tuple[PlannedOp, ...]:
    """The values of a plan, with a note on each that the propagation lays out unlike its type.

    Args:
        ops: the values.
        jaxpr: as for `typed_specs`.
    """
    types = typed_specs(jaxpr)
    return tuple(_noted(op, types) for op in ops)


def _noted(op: PlannedOp, types: Mapping[Key, tuple[Spec, ...]]) -> PlannedOp:
    called = op.op.rpartition("/")[2]
    # Around what jax was asked for it adds operations of its own, under the same name.
    if op.kind != "op" or not op.name.startswith(called):
        return op
    specs = types.get((called, op.shape))
    if not specs or any(op.spec.equivalent(spec) for spec in specs):
        return op
    words = f"By its type it is {' or '.join(map(str, specs))}; the propagation says {op.spec}."
    return replace(op, note=" ".join(filter(None, (op.note, words))))


def _values(jaxpr: Any) -> Iterator[tuple[str, Any]]:
    for equation in jaxpr.eqns:
        for made in equation.outvars:
            yield equation.primitive.name, made.aval
        for inner in _inner(equation.params.values()):
            yield from _values(inner)


def _inner(params: Any) -> Iterator[Any]:
    for param in params:
        for one in param if isinstance(param, (tuple, list)) else (param,):
            inner = getattr(one, "jaxpr", one)
            if hasattr(inner, "eqns"):
                yield inner


def _spec(aval: Any) -> Spec | None:
    sharding = getattr(aval, "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    if mesh is None or not mesh.axis_types or set(mesh.axis_types) != {AxisType.Explicit}:
        return None
    spec = adopt_spec(sharding.spec)  # type: ignore[union-attr]
    dims = (spec.dims + ((),) * len(aval.shape))[: len(aval.shape)]
    return Spec(dims, unreduced=spec.unreduced)
