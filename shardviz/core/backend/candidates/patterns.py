"""Edits for known patterns, most a `jax.shard_map` around what XLA does not split by batch.

XLA gathers all of a grouped convolution's batch, or that of a top_k or an FFT, on TPUs
that of most matrix decompositions; and a loop under `jax.vmap` asks all devices in every
step whether one still works. On its own block each device can do that alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import jax

from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.candidates.apply import INSIDE
from shardviz.core.backend.candidates.blocks import Blocks
from shardviz.core.backend.candidates.proposals import GENERATORS, Proposal, Wanted
from shardviz.core.backend.jax_compat import (
    jaxpr_as_fun,
    scan_counts,
    with_partitionable_random,
)
from shardviz.core.backend.tracing.edited import operation_name, placed_operations
from shardviz.core.backend.tracing.jaxprs import (
    operations,
    rewritten,
    users_line,
    with_inner,
)
from shardviz.core.layout.libraries import spec_of
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.candidates import Edit, edit

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
    """A `shard_map` around what XLA may not split; more axes for one that is there."""
    program = wanted.trials.as_jaxpr
    if set(program.mesh.axis_types) != {"Auto"}:
        return  # jax itself says there what cannot be split
    # Of a line the first one, which may be a call that contains others.
    proposed: set[str] = set()
    for first in placed_operations(program.fn.jaxpr):  # type: ignore[attr-defined]
        equation, line = first.equation, users_line(first.equation)
        inner = operations(SimpleNamespace(eqns=[equation]))
        if line in proposed or not any(_is_wanted(one.equation) for one in inner):
            continue
        name, axes = _name(equation), _free(equation, wanted.axes)
        far = 0.75 if line in wanted.sources else 3.0
        far -= 0.5 * (name in wanted.collective.op)
        # A batch is among the first dimensions.
        for split in enumerate(first.shape[:2]):
            fields = {"operation": name, "source": line, "split": split}
            made = edit("shard_map", axes=axes, **fields)
            try:
                call = _in_shard_map(equation, made, program.mesh)
            # It needs other blocks, or jax refuses such a shard_map.
            except (TypeError, ValueError):
                continue
            code = _code(equation, made, program.mesh, call)
            made = edit("shard_map", code=code, **made.fields)
            proposed.add(line)
            yield Proposal((made,), far, (f"shard_map {line}",))


def _is_wanted(equation: Any) -> bool:
    name = equation.primitive.name
    # Steps that do not read what others wrote can each be on one device.
    is_map = name == "scan" and scan_counts(equation)[1] == 0
    return is_map or name == "shard_map" or name in _GATHERED


def _name(equation: Any) -> str:
    name = operation_name(equation)
    return {"while": "loop", "scan": "map"}.get(name, name)


def _as_shard_map(equation: Any) -> Any:
    """An operation as if a `jax.shard_map` over no mesh axes were around it."""
    if equation.primitive.name == "shard_map":
        return equation
    values = {"invars": [], "outvars": equation.outvars}
    for variable in equation.invars:
        if not hasattr(variable, "val"):  # no number of the code
            values["invars"].append(variable)
    jaxpr = SimpleNamespace(constvars=(), eqns=[equation], **values)
    params = {"jaxpr": jaxpr, "newly_manual_axes": frozenset()}
    params["in_specs"] = [jax.P()] * len(values["invars"])
    params["out_specs"] = [jax.P()] * len(values["outvars"])
    return SimpleNamespace(params=params, **values)


def _constants(equation: Any) -> int:
    """How many values come before those that its function is called with."""
    if equation.primitive.name == "scan":
        constants = equation.invars[: scan_counts(equation)[0]]
        return sum(not hasattr(one, "val") for one in constants)
    if equation.primitive.name != "shard_map":
        return 0
    # They have no name there; in a gradient, which nobody writes, nothing has.
    names = equation.params["jaxpr"].debug_info.arg_names
    return len(equation.invars) if names is None else names.count("")


def _free(equation: Any, axes: Sequence[str]) -> tuple[str, ...]:
    """The mesh axes that can split more of what a `shard_map` takes and returns."""
    params, named = _as_shard_map(equation).params, set()
    for spec in (*params["in_specs"], *params["out_specs"]):
        named.update(spec_of(spec).axes)
    # Others than its own are left to XLA, inside of it as well.
    known = params["newly_manual_axes"] or axes
    return tuple(axis for axis in axes if axis in known and axis not in named)


def _in_shard_map(equation: Any, edit: Edit, mesh: MeshSpec) -> Any:
    """An operation in a `jax.shard_map`, or one that is that with more in its specs."""
    around, axes, splits = _as_shard_map(equation), edit.fields["axes"], []
    params, constants = around.params, _constants(equation)
    dimension, size = edit.fields["split"]
    for number, variable in enumerate(params["jaxpr"].invars):
        is_split = variable.aval.shape[dimension:][:1] == (size,)
        splits.append(dimension if is_split and number >= constants else None)
    local, outs = Blocks(axes, mesh.shape).traced(params["jaxpr"], splits)

    def split_as_well(spec: Any, split: int | None) -> Any:
        if split is None:
            return spec
        dims = list(spec_of(spec).padded(max(split + 1, len(spec))))
        dims[split] += axes
        return jax.P(*dims)

    call = jax.shard_map(
        jaxpr_as_fun(local),
        mesh=abstract_mesh(mesh),
        in_specs=tuple(map(split_as_well, params["in_specs"], splits)),
        out_specs=[*map(split_as_well, params["out_specs"], outs)],
        axis_names={*params["newly_manual_axes"], *axes},
        check_vma=False,
    )
    # Of values with other names, which get those of the operation.
    (made,) = jax.make_jaxpr(call)(*(v.aval for v in around.invars)).eqns
    made = made.replace(invars=around.invars, outvars=around.outvars)
    return made.replace(source_info=equation.source_info)


def _code(equation: Any, edit: Edit, mesh: MeshSpec, call: Any) -> str:
    """The line of code that puts an operation into a `shard_map`, or its new specs."""
    name, axes = edit.fields["operation"], edit.fields["axes"]
    shown, given = [], call.params["in_specs"]
    if name == "shard_map":
        given = given[_constants(equation) :]
    for specs in (given, call.params["out_specs"]):
        listed = [*map(str, map(spec_of, specs))]
        # One for all fits any tree: a named tuple, or a list.
        is_one = listed == listed[:1] * len(listed)
        shown.append(listed[0] if is_one else f"({', '.join(listed)})")
    options = f"in_specs={shown[0]}, out_specs={shown[1]}"
    if name == "shard_map":
        return f"{options}  # {edit.fields['source']}"
    if set(axes) != set(mesh.axis_names):
        options += f", axis_names={{{', '.join(map(repr, axes))}}}"
    if name == "loop":
        # What a loop begins with may be the same on all devices, and differ after it.
        options += ", check_vma=False"
    code = f"{name} = jax.shard_map({name}, mesh=mesh, {options})"
    return f"{code}  # {edit.fields['source']}"


def _with_shard_map(jaxpr: Any, edit: Edit, mesh: MeshSpec) -> Any:
    """Puts a `jax.shard_map` around an operation, wherever its line is in the program.

    That is for each layer, and in a gradient as well.
    """
    same = edit.fields["operation"], edit.fields["source"]

    def change(equation: Any) -> list[Any]:
        if (_name(equation), users_line(equation)) == same:
            return [_in_shard_map(equation, edit, mesh)]
        if equation.primitive.name == "shard_map":
            return [equation]
        return [with_inner(equation, lambda inner: rewritten(inner, change))]

    return rewritten(jaxpr, change)


def _parts(wanted: Wanted) -> Iterator[Proposal]:
    """Another order of the samples of a batch that is taken in parts.

    After `x.reshape(n, b // n, ...)` each part has samples of a few devices, after
    `x.reshape(b // n, n, ...).swapaxes(0, 1)` as many of every device.
    """
    if set(wanted.trials.program.mesh.axis_types) != {"Auto"}:
        return
    for one in placed_operations(wanted.trials.as_jaxpr.fn.jaxpr):  # type: ignore[attr-defined]
        if count := _count_of_parts(one.equation):
            line = users_line(one.equation)
            sizes = [one.shape[1], count, *one.shape[2:]]
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


def _with_parts(jaxpr: Any, edit: Edit, *_: Any) -> Any:
    """Reshapes a batch into parts that have samples of every device."""

    def change(equation: Any) -> list[Any]:
        is_it = users_line(equation) == edit.fields["source"]
        if not is_it or not _count_of_parts(equation):
            return [with_inner(equation, lambda jaxpr: rewritten(jaxpr, change))]
        count, size, *others = equation.outvars[0].aval.shape

        def in_turns(x: Any) -> Any:
            return jax.numpy.swapaxes(x.reshape(size, count, *others), 0, 1)

        values = {"invars": equation.invars, "outvars": equation.outvars}
        (made,) = jax.make_jaxpr(jax.jit(in_turns))(equation.invars[0].aval).eqns
        return [made.replace(source_info=equation.source_info, **values)]

    return rewritten(jaxpr, change)


def _with_option(jaxpr: Any, *_: Any) -> Any:
    """Makes random numbers as `jax_threefry_partitionable` does."""

    def change(equation: Any) -> list[Any]:
        inner = with_inner(equation, lambda jaxpr: rewritten(jaxpr, change))
        return [with_partitionable_random(inner)]

    return rewritten(jaxpr, change)


INSIDE.update(shard_map=_with_shard_map, option=_with_option, parts=_with_parts)
GENERATORS.extend((_shard_maps, _options, _parts))
