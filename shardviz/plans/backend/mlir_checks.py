"""Checks that this jaxlib has the passes, operations and attributes that plans use.

Lowers, propagates and plans an example of each operation, and looks for its attributes.
`python -m shardviz doctor` prints the result; `commands/words/doctor.py` describes the
feature that each missing name disables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jaxlib.mlir import ir

from shardviz.plans.backend import mlir_names as names
from shardviz.plans.backend.before_propagation import operations_in
from shardviz.plans.backend.pipeline import planned_module_on, propagate
from shardviz.plans.backend.shardy_passes import (
    missing_estimate_passes,
    settling_passes,
)
from shardviz.plans.backend.simplify import CHLO_ONLY, SIMPLIFIED

_MESH = AbstractMesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
_ROWS, _COLUMNS = PartitionSpec("x"), PartitionSpec(None, "x")
# Written out, because Shardy plans a reduce-scatter only for partial sums.
_REDUCE_SCATTER = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> tensor<4xf32> {
  %y = sdy.reduce_scatter [{"x"}] %x out_sharding=<@mesh, [{"x"}]> : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""
# Attributes that Shardy sets during propagation.
_WRITTEN_BY_SHARDY = frozenset({
    names.RULE_ATTRIBUTE, names.ORIGINS, names.EDGES, names.RESULT_ORIGINS,
    names.RESULT_EDGES, names.ORIGIN_NAME, *names.COLLECTIVE_AXES.values(),
})  # fmt: skip


def _small_operations(x: jax.Array) -> tuple[jax.Array, ...]:
    """Uses each operation whose attributes plans read, on one 4 x 4 array."""
    composite = jax.lax.composite(jnp.sin, "shardviz.example")
    jax.debug.callback(print, x)
    with set_xla_metadata(inlineable="false"):
        called = jax.jit(jnp.cos)(x)
    return (
        called,
        jnp.concatenate([x, x]) + 1.5,
        x.T,
        x[jnp.array([1, 0])],
        x[1:3],
        x.sum(0),
        composite(x),
        jnp.where(x > 0, x, 0.0),
        jax.lax.fori_loop(0, 3, lambda i, carry: carry @ x, x),
    )


def _constrained(x: jax.Array) -> jax.Array:
    return jax.lax.with_sharding_constraint(x * 2, NamedSharding(_MESH, _COLUMNS))


def _on_blocks(x: jax.Array) -> jax.Array:
    total = jax.lax.psum(x, "x") + jax.lax.all_gather(x, "x").sum(0)
    return total + jax.lax.ppermute(x, "x", [(0, 1), (1, 0)])


def _in_shard_map(x: jax.Array) -> jax.Array:
    mapped = jax.shard_map(
        _on_blocks, mesh=_MESH, in_specs=_ROWS, out_specs=_ROWS, check_vma=False
    )
    return mapped(x)


def _lowered(
    function: Callable[..., object],
    specs: Iterable[PartitionSpec],
    result: PartitionSpec | None = None,
) -> ir.Module:
    arguments = []
    for spec in specs:
        sharding = NamedSharding(_MESH, spec)
        arguments.append(jax.ShapeDtypeStruct((4, 4), "float32", sharding=sharding))
    jitted = jax.jit(function)
    if result is not None:
        jitted = jax.jit(function, out_shardings=NamedSharding(_MESH, result))
    traced = jitted.trace(*arguments)
    module = traced.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
    assert module is not None
    return module


@cache
def _attributes() -> Mapping[str, frozenset[str]]:
    """Operation in the examples -> names of its attributes."""
    lowered = [_lowered(_small_operations, [_ROWS])]
    to_plan = [
        _lowered(jnp.dot, [_ROWS, PartitionSpec()]),
        _lowered(jnp.dot, [_COLUMNS, _ROWS]),
        _lowered(jnp.dot, [_COLUMNS, _ROWS], _ROWS),
        _lowered(jnp.sin, [_ROWS], _COLUMNS),
        _lowered(jnp.sin, [_ROWS], PartitionSpec()),
        _lowered(_constrained, [_ROWS]),
        _lowered(_in_shard_map, [_ROWS]),
        _lowered(lambda x: jax.lax.fori_loop(0, 3, lambda i, y: y * x, x), [_ROWS]),
    ]
    attributes: dict[str, set[str]] = defaultdict(set)

    def collect(module: ir.Operation) -> None:
        for operation in operations_in(module):
            attributes[operation.name].update(operation.attributes)

    context = to_plan[0].context
    lowered.append(ir.Module.parse(_REDUCE_SCATTER, context))
    for module in (*lowered, *to_plan):
        collect(module.operation)
    for module in to_plan:
        propagated = propagate(module)
        collect(propagated)
        collect(planned_module_on(propagated))
    return {operation: frozenset(present) for operation, present in attributes.items()}


def _has_attributes(is_read: Callable[[str], bool]) -> bool:
    """True if the examples have all attributes that plans read.

    Args:
        is_read: returns whether to check for an attribute.

    Raises:
        LookupError: if attributes are missing; names them.
    """
    missing = []
    for operation, read in names.ATTRIBUTES.items():
        present = _attributes().get(operation, frozenset())
        for attribute in filter(is_read, read):
            if attribute not in present:
                missing.append(f"{operation}: {attribute}")
    if missing:
        raise LookupError(", ".join(missing))
    return True


def _are_registered(operations: Iterable[str]) -> bool:
    """True if this jaxlib's dialects have operations of these names.

    Raises:
        LookupError: if operations are missing; names them.
    """
    module = _lowered(jnp.sin, [_ROWS])
    missing = []
    for name in operations:
        if not module.context.is_registered_operation(name):
            missing.append(name)
    if missing:
        raise LookupError(", ".join(missing))
    return True


def _knows_passes() -> bool:
    """True if `PASSES` has all Shardy passes, and MLIR has the estimate's passes.

    Raises:
        LookupError: if passes are unknown or missing; names them.
    """
    selection = settling_passes()
    unknown = (*selection.untried, *selection.left_out, *missing_estimate_passes())
    if unknown:
        raise LookupError(", ".join(unknown))
    return True


#: Group of MLIR names that plans use -> check.
MLIR_NAMES: Mapping[str, Callable[[], bool]] = {
    "MLIR: Shardy passes": _knows_passes,
    "MLIR: operations": lambda: _are_registered(names.OPERATIONS),
    "MLIR: simplified operations": lambda: _are_registered(
        f"stablehlo.{name}" for name in SIMPLIFIED - CHLO_ONLY
    ),
    "MLIR: program attributes": lambda: _has_attributes(
        lambda name: name not in _WRITTEN_BY_SHARDY
    ),
    "MLIR: Shardy attributes": lambda: _has_attributes(
        lambda name: name in _WRITTEN_BY_SHARDY
    ),
}
