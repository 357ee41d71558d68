"""Edits for known patterns, most a `jax.shard_map` around what XLA does not split by batch.

XLA gathers all of a grouped convolution's batch, or that of a top_k or an FFT, on TPUs
that of most matrix decompositions; and a loop under `jax.vmap` asks all devices in every
step whether one still works. On its own block each device can do that alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.candidates.apply import APPLY
from shardviz.core.backend.candidates.blocks import Blocks
from shardviz.core.backend.candidates.proposals import GENERATORS, Proposal, Wanted
from shardviz.core.backend.jax_compat import with_partitionable_random
from shardviz.core.backend.tracing.edited import as_jaxpr, placed_operations
from shardviz.core.backend.tracing.jaxprs import (
    operations,
    rewritten,
    users_line,
    with_inner,
)
from shardviz.core.layout.libraries import spec_of
from shardviz.core.program.candidates import Edit, edit
from shardviz.core.program.program import Program

# What XLA may gather along a batch, or asks all devices about.
_GATHERED = {"while", "conv_general_dilated", "fft", "top_k", "lu", "eigh", "svd"}
_PARTITIONABLE = 'jax.config.update("jax_threefry_partitionable", True)'


def _options(wanted: Wanted) -> Iterator[Proposal]:
    """The option that makes random numbers alone on each device."""
    made = {one.name for one in operations(wanted.trials.traced.stage.jaxpr)}
    is_set = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    if not is_set and made & {"random_bits", "random_split"}:
        yield Proposal((edit("option", code=_PARTITIONABLE),), 1.0, ("option",))


def _shard_maps(wanted: Wanted) -> Iterator[Proposal]:
    """A `shard_map` around an operation or call that XLA may not split."""
    program = wanted.trials.as_jaxpr
    if set(program.mesh.axis_types) != {"Auto"}:
        return  # jax itself says there what cannot be split
    # Of a line the first one, which may be a call that contains others.
    firsts: dict[str, Any] = {}
    for one in placed_operations(program.fn.jaxpr):  # type: ignore[attr-defined]
        inner = operations(SimpleNamespace(eqns=[one.equation]))
        if not _GATHERED.isdisjoint(each.name for each in inner):
            firsts.setdefault(users_line(one.equation), one.equation)
    for line, first in firsts.items():
        far, name = 0.75 if line in wanted.sources else 3.0, _name(first)
        far -= 0.5 * (name in wanted.collective.op)
        # A batch is among the first dimensions.
        for split in enumerate(first.outvars[0].aval.shape[:2]):
            fields = {"operation": name, "source": line, "split": split}
            made = edit("shard_map", axes=wanted.axes, **fields)
            try:
                (call,) = _in_shard_map(program, made, first)
            # It needs other blocks, or jax refuses blocks that do not fit one another.
            except (TypeError, ValueError):
                continue
            made = edit("shard_map", code=_code(program, made, call), **made.fields)
            yield Proposal((made,), far, (f"shard_map {line}",))


def _name(equation: Any) -> str:
    """What an operation is called in the code."""
    params, name = equation.params, equation.primitive.name
    if "jaxpr" in params and "name" in params:
        name = params["name"]
    return "loop" if name == "while" else name


def _in_shard_map(program: Program, edit: Edit, equation: Any) -> list[Any]:
    """An operation in a `jax.shard_map`, as an operation."""
    variables, mesh, axes = equation.invars, program.mesh, edit.fields["axes"]
    (dimension, size), splits = edit.fields["split"], []
    for variable in variables:
        is_split = variable.aval.shape[dimension:][:1] == (size,)
        splits.append(dimension if is_split else None)
    blocks = Blocks({axis: mesh.shape[axis] for axis in axes})
    local, outs = blocks.traced(equation, splits)

    def spec(split: int | None) -> Any:
        return jax.P() if split is None else jax.P(*[None] * split, axes)

    call = jax.shard_map(
        jaxpr_as_fun(local),
        mesh=abstract_mesh(mesh),
        in_specs=tuple(map(spec, splits)),
        out_specs=[*map(spec, outs)],
        axis_names=set(axes),
        check_vma=False,
    )
    # Of values with other names, which get those of the operation.
    (made,) = jax.make_jaxpr(call)(*(v.aval for v in variables)).eqns
    made = made.replace(invars=variables, outvars=equation.outvars)
    return [made.replace(source_info=equation.source_info)]


def _code(program: Program, edit: Edit, call: Any) -> str:
    """The line of code that puts an operation into a `shard_map`."""
    name, axes = edit.fields["operation"], edit.fields["axes"]
    inputs = {}
    for variable, spec in zip(call.invars, call.params["in_specs"], strict=True):
        if not hasattr(variable, "val"):  # no number of the code
            inputs[variable] = spec
    shown = []
    for specs in (inputs.values(), call.params["out_specs"]):
        listed = [*map(str, map(spec_of, specs))]
        # One for all fits any tree: a named tuple, or a list.
        is_one = listed == listed[:1] * len(listed)
        shown.append(listed[0] if is_one else f"({', '.join(listed)})")
    options = f"mesh=mesh, in_specs={shown[0]}, out_specs={shown[1]}"
    if set(axes) != set(program.mesh.axis_names):
        options += f", axis_names={{{', '.join(map(repr, axes))}}}"
    if name == "loop":
        # What a loop begins with may be the same on all devices, and differ after it.
        options += ", check_vma=False"
    return f"{name} = jax.shard_map({name}, {options})  # {edit.fields['source']}"


def _with_shard_map(program: Program, edit: Edit) -> Program:
    """Puts a `jax.shard_map` around an operation, wherever its line is in the program.

    That is for each layer, and in a gradient as well.
    """
    program, same = as_jaxpr(program), (edit.fields["operation"], edit.fields["source"])

    def change(equation: Any) -> list[Any]:
        if (_name(equation), users_line(equation)) == same:
            return _in_shard_map(program, edit, equation)
        if equation.primitive.name == "shard_map":
            return [equation]
        return [with_inner(equation, lambda jaxpr: rewritten(jaxpr, change))]

    changed = rewritten(program.fn.jaxpr, change)  # type: ignore[attr-defined]
    return program.replace(fn=program.fn.with_jaxpr(changed))  # type: ignore[attr-defined]


def _parts(wanted: Wanted) -> Iterator[Proposal]:
    """Another order of the samples of a batch that is taken in parts.

    After `x.reshape(n, b // n, ...)` each part has samples of a few devices, after
    `x.reshape(b // n, n, ...).swapaxes(0, 1)` as many of every device.
    """
    if set(wanted.trials.program.mesh.axis_types) != {"Auto"}:
        return
    for one in placed_operations(wanted.trials.as_jaxpr.fn.jaxpr):  # type: ignore[attr-defined]
        if count := _count_of_parts(one.equation):
            line, sizes = (
                users_line(one.equation),
                [one.shape[1], count, *one.shape[2:]],
            )
            # In place of the reshape there, whatever it is of.
            code = f".reshape({str(sizes)[1:-1]}).swapaxes(0, 1)  # {line}"
            far = 0.75 if line in wanted.sources else 3.0
            yield Proposal((edit("parts", source=line, code=code),), far, (line,))


def _count_of_parts(equation: Any) -> int:
    """How many parts a reshape makes of the first dimension; 0 for anything else."""
    if equation.primitive.name != "reshape":
        return 0
    whole, parts = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    if len(parts) != len(whole) + 1 or parts[2:] != whole[1:] or 1 in parts[:2]:
        return 0
    return parts[0]


def _with_parts(program: Program, edit: Edit) -> Program:
    """Reshapes a batch into parts that have samples of every device."""

    def change(equation: Any) -> list[Any]:
        is_it = users_line(equation) == edit.fields["source"]
        if not is_it or not _count_of_parts(equation):
            return [with_inner(equation, lambda jaxpr: rewritten(jaxpr, change))]
        count, size, *others = equation.outvars[0].aval.shape

        def in_turns(x: Any) -> Any:
            return jax.numpy.swapaxes(x.reshape(size, count, *others), 0, 1)

        made = jax.make_jaxpr(in_turns)(equation.invars[0].aval).eqns
        info = {"source_info": equation.source_info}
        reshape, transpose = (one.replace(**info) for one in made)
        reshape = reshape.replace(invars=equation.invars)
        return [reshape, transpose.replace(outvars=equation.outvars)]

    program = as_jaxpr(program)
    changed = rewritten(program.fn.jaxpr, change)  # type: ignore[attr-defined]
    return program.replace(fn=program.fn.with_jaxpr(changed))  # type: ignore[attr-defined]


def _with_option(program: Program, edit: Edit) -> Program:
    """Makes random numbers as `jax_threefry_partitionable` does."""

    def change(equation: Any) -> list[Any]:
        inner = with_inner(equation, lambda jaxpr: rewritten(jaxpr, change))
        return [with_partitionable_random(inner)]

    program = as_jaxpr(program)
    changed = rewritten(program.fn.jaxpr, change)  # type: ignore[attr-defined]
    return program.replace(fn=program.fn.with_jaxpr(changed))  # type: ignore[attr-defined]


APPLY.update(shard_map=_with_shard_map, option=_with_option, parts=_with_parts)
GENERATORS.extend((_shard_maps, _options, _parts))
