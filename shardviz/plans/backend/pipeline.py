"""Runs Shardy's passes on a copy of a lowered module, after XLA's own rewrites.

The rewrites before propagation are:

- jax carries every constant of a scan through the loop. XLA makes the loop body read
  these constants from outside. Otherwise axes from different uses in the body would
  conflict at the carried value, and the plan would differ from XLA.
- jax lowers `erf`, `top_k` and similar operations to CHLO, for which Shardy has no
  rules. XLA decomposes them, but jaxlib exposes no such pass. All elementwise
  operations propagate alike, so an elementwise CHLO operation is replaced by one that
  Shardy knows; an attribute keeps the original name.
- A composite becomes a call of its decomposition.
- A concatenation loses its empty operands.
- Calls are inlined (`before_propagation`), and operations simplified (`simplify`).
- Operations are sorted as in HLO (`hlo_order`), and sorted back after propagation.

`shardy_passes` selects the passes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shardviz.base.errors import ProgramError
from shardviz.plans.backend.attributes import defining_op, named_attribute, value_of
from shardviz.plans.backend.before_propagation import (
    OPEN,
    READ_BY_LOOP,
    WRITTEN,
    inline_calls,
    operations_in,
    remove_dead,
)
from shardviz.plans.backend.hlo_order import sort_as_in_hlo, sort_as_in_program
from shardviz.plans.backend.mlir_names import (
    ARGUMENT_ATTRIBUTES,
    ASKED_SHARDING,
    ATAN2,
    CALL_TARGET,
    CALLEE,
    COMPOSITE,
    CONCATENATE,
    CONCATENATED_DIM,
    CONSTRAINT,
    CUSTOM_CALL,
    DECOMPOSITION,
    ERF,
    FUNCTION_CALL,
    IS_FINITE,
    MANUAL_COMPUTATION,
    MESH,
    MODULE_FUNCTION,
    OUT_SHARDINGS,
    RAGGED_DOT,
    RESHAPE,
    RESHARD,
    SHARDING_ATTRIBUTE,
    SHARDING_GROUP,
    SHARDY_MESH,
    TANH,
    TOP_K,
    WHILE,
)
from shardviz.plans.backend.shardy_passes import (
    INSERT_RESHARDS,
    TO_COLLECTIVES,
    PassSelection,
    merging_passes,
    missing_estimate_passes,
    pass_manager,
    settling_passes,
)
from shardviz.plans.backend.simplify import REPLACES, simplify

# CHLO operation -> target of the custom call to which XLA converts it, instead of
# decomposing it. Shardy has no rule for ragged_dot, so its operands are gathered.
_CALLS = {
    TOP_K: "mhlo.topk",
    ERF: "mhlo.erf",
    RAGGED_DOT: "mhlo.ragged_dot",
}
# In jax 0.10, XLA passes `erf` to Shardy as an operation without a rule, so shardings
# do not propagate across it.
_LEFT = {ERF} if jax.__version_info__ < (0, 11) else set()
# Elementwise replacements for operations with one operand, with two operands, and with
# a boolean result.
_UNARY, _BINARY, _TEST = TANH, ATAN2, IS_FINITE
_REPLACEMENTS = frozenset({CUSTOM_CALL, RESHAPE, _UNARY, _BINARY, _TEST})


def rewrite_operations(module: Any) -> None:
    """Rewrites CHLO operations, composites and empty operands in place, as XLA does."""
    to_replace = []
    for op in operations_in(module.operation):
        is_named = op.name in (COMPOSITE, CONCATENATE)
        if is_named or (op.name.startswith("chlo.") and op.name not in _LEFT):
            to_replace.append(op)
    for op in to_replace:
        _replace(op)


def name_of(op: ir.Operation) -> str:
    """The name of an operation without its dialect; for a replacement, the original."""
    name = op.name
    if name in _REPLACEMENTS and REPLACES in op.attributes:
        return value_of(op, REPLACES)
    return name.partition(".")[2]


def _replace(op: ir.Operation) -> None:
    if op.name == CONCATENATE:
        _without_empty(op)
        return
    with op.context, op.location:
        attributes: dict[str, Any] = {
            REPLACES: ir.StringAttr.get(op.name.partition(".")[2])
        }
        if op.name == COMPOSITE:
            attributes, name = {CALLEE: op.attributes[DECOMPOSITION]}, FUNCTION_CALL
        elif op.name in _CALLS:
            attributes[CALL_TARGET] = ir.StringAttr.get(_CALLS[op.name])
            name = CUSTOM_CALL
        elif not (name := _elementwise(op)):
            return
        replacement = ir.Operation.create(
            name,
            results=[r.type for r in op.results],
            operands=list(op.operands),
            attributes=attributes,
            loc=op.location,
            ip=ir.InsertionPoint(op),
        )
    for old, new in zip(op.results, replacement.results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _without_empty(op: ir.Operation) -> None:
    """Removes the empty operands of a concatenation."""
    full = [v for v in op.operands if 0 not in v.type.maybe_downcast().shape]
    if not full or len(full) == len(op.operands):
        return
    if len(full) == 1:
        op.results[0].replace_all_uses_with(full[0])
    else:
        with op.context, op.location:
            concatenation = ir.Operation.create(
                op.name,
                results=[op.results[0].type],
                operands=full,
                attributes={CONCATENATED_DIM: op.attributes[CONCATENATED_DIM]},
                loc=op.location,
                ip=ir.InsertionPoint(op),
            )
        op.results[0].replace_all_uses_with(concatenation.results[0])
    op.erase()


def _elementwise(op: ir.Operation) -> str:
    """The name of the replacement for an elementwise operation; `""` for others."""
    count = len(op.operands)
    if len(op.results) != 1 or count not in (1, 2) or len(op.regions):
        return ""
    types = {str(value.type) for value in op.operands}
    if len(types) != 1:
        return ""
    (operand,), result = types, str(op.results[0].type)
    if operand == result:
        return (_UNARY, _BINARY)[count - 1]
    same_shape = operand.rpartition("x")[0] == result.rpartition("x")[0]
    if count == 1 and same_shape and result.endswith(("xi1>", "<i1>")):
        return _TEST
    return ""


def read_invariants_outside(module: Any) -> None:
    """Removes loop-invariant values from the carry of every loop, in place.

    The loops then read these values from outside. In XLA, StableHLO's canonicalization
    of loops does the same.

    >>> import jax
    >>> loop = jax.jit(lambda x, y: jax.lax.fori_loop(0, 3, lambda i, c: c + y, x)).lower(1.0, 2.0)
    >>> module = loop.compiler_ir("stablehlo").operation.clone()
    >>> inline_calls(module)
    >>> [len(loop.operands) for loop in _loops_in(module)]
    [3]
    >>> read_invariants_outside(module)
    >>> [len(loop.operands) for loop in _loops_in(module)]
    [2]
    """
    with module.context:
        # Inner loops first, because their invariants may be invariants of the outer
        # loop too. Repeat until nothing changes, because a change of an outer loop can
        # make more values invariant in an inner one.
        while sum(_reads_outside(op) for op in _loops_in(module)):
            pass


def _loops_in(op: ir.Operation) -> list[Any]:
    inside = operations_in(op, inner_first=True)
    return [inner for inner in inside if inner.name == WHILE]


def _reads_outside(loop: ir.Operation) -> bool:
    """Removes invariant values from the carry of one loop; True if there were any."""
    condition, body, returned = _parts(loop)
    carried = list(zip(loop.operands, body.arguments, returned.operands, strict=True))
    carried_on = []
    for number, (first, inside, last) in enumerate(carried):
        if last not in (first, inside):
            carried_on.append(number)
    if len(carried_on) in (0, len(carried)):
        return False
    for number in reversed(range(len(carried))):
        if number not in carried_on:
            outer = carried[number][0]
            loop.results[number].replace_all_uses_with(outer)
            for block in (condition, body):
                block.arguments[number].replace_all_uses_with(outer)
    _carry(loop, carried_on)
    return True


def _parts(loop: ir.Operation) -> tuple[Any, Any, Any]:
    """The condition and the body of a loop, and the operation that ends the body."""
    condition, body = loop.regions[0].blocks[0], loop.regions[1].blocks[0]
    return condition, body, body.operations[len(body.operations) - 1].operation


def _carry(loop: Any, carried_on: Sequence[int]) -> None:
    """Replaces a loop by one that carries only the values with these numbers."""
    condition, body, returned = _parts(loop)
    types, inits, results = [], [], []
    for number in carried_on:
        types.append(loop.results[number].type)
        inits.append(loop.operands[number])
        results.append(returned.operands[number])
    ir.Operation.create(
        returned.name,
        operands=results,
        loc=returned.location,
        ip=ir.InsertionPoint(returned),
    )
    returned.erase()
    new_loop = ir.Operation.create(
        WHILE,
        results=types,
        operands=inits,
        attributes=dict(loop.attributes.items()),
        regions=2,
        loc=loop.location,
        ip=ir.InsertionPoint(loop),
    )
    for block, region in zip((condition, body), new_loop.regions, strict=True):
        for number in reversed(range(len(block.arguments))):
            if number not in carried_on:
                block.erase_argument(number)
        block.append_to(region)
    for i, result in zip(carried_on, new_loop.results, strict=True):
        loop.results[i].replace_all_uses_with(result)
    loop.erase()


def open_what_loops_read(op: ir.Operation) -> None:
    """Opens the shardings of values that loops read from outside, in place.

    Like XLA's pass `xla-sdy-open-while-free-vars-sharding`, puts a constraint with open
    dimensions before the loop, for every value with a requested sharding.
    """
    for loop in _loops_in(op):
        _open(loop)


def _open(loop: ir.Operation) -> None:
    opened: dict[Any, Any] = {}
    for inner in operations_in(loop):
        for number, value in enumerate(inner.operands):
            if value not in opened:
                opened[value] = _opened(value, loop)
            if opened[value] is not None:
                inner.operands[number] = opened[value]


def _opened(value: ir.Value, loop: ir.Operation) -> Any:
    """A constrained value with open dimensions; None if not needed.

    None if the value is defined inside the loop, has no requested sharding, or is open
    already.
    """
    if _is_inside(value, loop):
        return None
    requested = _requested(value)
    if requested is None:
        return None
    shardings = sdy.TensorShardingAttr(requested).dimension_shardings
    dims = list(map(sdy.DimensionShardingAttr, shardings))
    if all(not dim.is_closed and not list(dim.axes) for dim in dims):
        return None
    anything = sdy.DimensionShardingAttr.get([], is_closed=False)
    mesh = sdy.TensorShardingAttr(requested).mesh_or_ref
    constraint = ir.Operation.create(
        CONSTRAINT,
        results=[value.type],
        operands=[value],
        attributes={
            "sharding": sdy.TensorShardingAttr.get(mesh, [anything] * len(dims)),
            READ_BY_LOOP: ir.UnitAttr.get(),
        },
        loc=loop.location,
        ip=ir.InsertionPoint(loop),
    )
    return constraint.results[0]


def _requested(value: Any) -> Any:
    """The requested sharding of a value in a lowered module, or None."""
    defining = defining_op(value)
    if defining is None:
        owner, number = value.owner.owner.operation, value.maybe_downcast().arg_number
        if owner.name != MODULE_FUNCTION:
            return None
        return named_attribute(owner, ARGUMENT_ATTRIBUTES, number)
    if defining.name == CONSTRAINT:
        return defining.attributes[ASKED_SHARDING]
    name = SHARDING_ATTRIBUTE
    if defining.name == MANUAL_COMPUTATION:
        name = OUT_SHARDINGS
    if name not in defining.attributes:
        return None
    shardings = list(
        sdy.TensorShardingPerValueAttr(defining.attributes[name]).shardings
    )
    return shardings[value.maybe_downcast().result_number]


def _is_inside(value: Any, loop: Any) -> bool:
    defining = defining_op(value)
    if defining is None:
        around = value.owner.owner
    else:
        around = defining.parent
    while around is not None and around.operation != loop:
        around = around.operation.parent
    return around is not None


_MESH = re.compile(r"<(@\w+)")


def check_available() -> None:
    """Checks that Shardy's passes can be run.

    Raises:
        ProgramError: if Shardy's passes cannot be run.
    """
    if not getattr(jax.config, "jax_use_shardy_partitioner", True):
        raise ProgramError(
            "jax is set to GSPMD, which cannot explain shardings:"
            " jax_use_shardy_partitioner is False. Set it to True for explanations;"
            " everything else works."
        )
    settling_passes()


def propagate(module: Any, selection: PassSelection | None = None) -> Any:
    """Propagates shardings through a copy of a lowered module, with calls inlined.

    Every operation in the copy has the origins of its axes (`sdy.sharding_origins`),
    the propagation steps that crossed it (`sdy.propagation_edges`) and its sharding
    rule (`sdy.sharding_rule`). No reshard is inserted.

    Args:
        module: the result of `lowered.compiler_ir("stablehlo")`. It is not changed,
            because jax keeps it.
        selection: the passes to run; None for the passes in `settling_passes`.

    Raises:
        ProgramError: if jaxlib has no propagation passes.
        Exception: any error of a pass.
    """
    check_available()
    op_names = {op.name for op in operations_in(module.operation)}
    if SHARDING_GROUP in op_names:
        raise ProgramError(
            "A plan does not cover jax.experimental.shard_alike: Shardy crashes when"
            " asked why values are split alike. sv.compile accepts such a program."
        )
    with module.context as context:
        # There is too little work for several threads to save time.
        context.enable_multithreading(False)
        # Printing and parsing would take three times as long as all the rest.
        copy = module.operation.clone()
        _keep_axes_of_size_one(copy)
        _keep_open_dims(copy)
        _rewrite(copy, WHILE in op_names)
        pass_manager((selection or settling_passes()).passes).run(copy)
        sort_as_in_program(copy)
    return copy


def planned_module_on(propagated: Any) -> Any:
    """Inserts Shardy's collectives into a copy of the propagated module.

    The copy contains operations such as `sdy.all_gather` and `sdy.all_reduce`. They are
    an estimate, because XLA's partitioner makes its own choices. Returns an operation,
    not a module; it must not outlive the context of `propagated`.
    """
    copy = propagated.operation.clone()
    with propagated.context:
        pass_manager((INSERT_RESHARDS, *merging_passes())).run(copy)
        _without_reshards_between_meshes(copy)
        pass_manager((TO_COLLECTIVES,)).run(copy)
    return copy


def _without_reshards_between_meshes(module: Any) -> None:
    """Removes reshards from the device that ran a Python callback to the mesh.

    Shardy has no collective for these reshards, so it would refuse the module.
    """
    for op in list(operations_in(module)):
        if op.name != RESHARD:
            continue
        source = defining_op(op.operands[0])
        if source is None or SHARDING_ATTRIBUTE not in source.attributes:
            continue
        before = _MESH.search(str(source.attributes[SHARDING_ATTRIBUTE]))
        after = _MESH.search(str(op.attributes[ASKED_SHARDING]))
        if before and after and before[1] != after[1]:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


def run_all(bytecode: bytes, with_untried: bool, folder: str) -> None:
    """Propagates a module and plans its collectives in a worker, which may crash.

    Args:
        bytecode: a lowered module.
        with_untried: whether to run passes that `shardy_passes.PASSES` lacks.
        folder: the worker's folder for the files of a call; not used.
    """
    # The context of any module from jax has all dialects.
    any_module: Any = jax.jit(lambda: 0).lower().compiler_ir("stablehlo")
    module = ir.Module.parse(bytecode, any_module.operation.context)
    selection = settling_passes()
    if not with_untried:
        selection = selection.without_untried()
    propagated = propagate(module, selection)
    if not missing_estimate_passes():
        planned_module_on(propagated)


def _keep_axes_of_size_one(module: Any) -> None:
    """Keeps shardings with axes of size 1 in an attribute of the constraint, in place.

    Shardy removes these axes, but jax's types in Explicit mode include them.
    """
    quoted_axes = set()
    for item in module.regions[0].blocks[0].operations:
        op = item.operation
        if op.name == SHARDY_MESH:
            for axis in map(sdy.MeshAxisAttr, sdy.MeshAttr(op.attributes[MESH]).axes):
                if axis.size == 1:
                    quoted_axes.add(f'"{axis.name}"')
    for op in operations_in(module) if quoted_axes else ():
        if op.name == CONSTRAINT:
            text = str(op.attributes[ASKED_SHARDING])
            if any(name in text for name in quoted_axes):
                op.attributes[WRITTEN] = ir.StringAttr.get(text)


def _keep_open_dims(module: Any) -> None:
    """Keeps shardings with open dimensions in an attribute of their operation, in place.

    Shardy closes the dimensions after propagation.
    """
    shardings = {CONSTRAINT: ASKED_SHARDING, MANUAL_COMPUTATION: OUT_SHARDINGS}
    for op in operations_in(module):
        name = shardings.get(op.name)
        if name is not None and "?" in str(op.attributes[name]):
            op.attributes[OPEN] = op.attributes[name]


def _rewrite(copy: ir.Operation, loops: bool) -> None:
    """Rewrites a module in place, as XLA does before propagation."""
    rewrite_operations(copy)
    simplify(copy)
    inline_calls(copy)
    remove_dead(copy)
    sort_as_in_hlo(copy)
    if loops:
        read_invariants_outside(copy)
    # Remove dead operations after rewriting loops, which leaves more of them. Shardy
    # crashes if it can't name the origins of an unused operation.
    remove_dead(copy)
    if loops:
        open_what_loops_read(copy)
