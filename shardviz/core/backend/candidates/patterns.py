"""Edits for known patterns, most a `jax.shard_map` around what XLA does not split by batch.

XLA gathers all of a grouped convolution's batch, or that of a top_k or an FFT, on TPUs
that of most matrix decompositions; and a loop under `jax.vmap` asks all devices in every
step whether one still works. On its own block each device can do that alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.candidates.apply import APPLY
from shardviz.core.backend.candidates.blocks import Blocks
from shardviz.core.backend.candidates.proposals import GENERATORS, Proposal, Wanted
from shardviz.core.backend.jax_compat import (
    expression_of,
    line_frames,
    scan_counts,
    with_partitionable_random,
)
from shardviz.core.backend.tracing.edited import as_jaxpr, placed_operations
from shardviz.core.backend.tracing.jaxprs import (
    operations,
    plain_jaxpr,
    rewritten,
    users_line,
    with_equations,
    with_inner,
)
from shardviz.core.layout.libraries import spec_of
from shardviz.core.program.candidates import Edit, edit
from shardviz.core.program.program import Program
from shardviz.core.xla.module import is_user_file

# What XLA may gather along a batch, or asks all devices about.
_GATHERED = {"while", "conv_general_dilated", "fft", "top_k", "lu", "eigh", "svd"}
_MANUAL = {"shard_map", "xla_pmap"}
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
    firsts: dict[str, _Region] = {}
    jaxpr = program.fn.jaxpr  # type: ignore[attr-defined]
    bodies = [jaxpr]
    for one in operations(jaxpr):
        if _MANUAL.isdisjoint((one.name, *one.around)):
            bodies += one.inner
    for region in itertools.chain(*map(_regions, bodies)):
        inner = operations(SimpleNamespace(eqns=region.equations))
        if region.manual or any(_is_gathered(one.equation) for one in inner):
            firsts.setdefault(region.line, region)
    firsts.pop("", None)  # not of the user's code
    for line, region in firsts.items():
        far = 0.75 if line in wanted.sources else 3.0
        far -= 0.5 * (region.name in wanted.collective.op)
        axes = tuple(filter(region.can_use, wanted.axes))
        if not axes:
            continue
        # A batch is among the first dimensions.
        for split in enumerate(region.body.outvars[0].aval.shape[:2]):
            fields = {"operation": region.name, "source": line, "split": split}
            made = edit("shard_map", axes=axes, **fields)
            try:
                call = _in_shard_map(program, made, region)
            # It needs other blocks, or jax refuses blocks that do not fit one another.
            except (TypeError, ValueError, NotImplementedError):
                continue
            code = _code(program, made, region, call)
            made = edit("shard_map", code=code, **made.fields)
            yield Proposal((made,), far, (f"shard_map {line}",))


@dataclass(frozen=True)
class _Region:
    """Operations to put a `jax.shard_map` around, or one that is there.

    Attributes:
        equations: the operations.
        invars, outvars: the values that they take and make.
        body: what each device does, as a jaxpr.
        in_specs, out_specs: how the values are split for it already.
        manual: the mesh axes of a shard_map that is there.
        constants: how many of its values are no arguments in the code; None: not known.
    """

    equations: Sequence[Any]
    invars: Sequence[Any]
    outvars: Sequence[Any]
    body: Any
    in_specs: Sequence[Any]
    out_specs: Sequence[Any]
    manual: frozenset[str] = frozenset()
    constants: int | None = 0

    @property
    def line(self) -> str:
        return users_line(self.equations[0])

    @property
    def name(self) -> str:
        """What it is called in the code."""
        if len(self.equations) > 1:
            return "map"
        params, name = self.equations[0].params, self.equations[0].primitive.name
        if "jaxpr" in params and "name" in params:
            name = params["name"]
        return {"while": "loop", "scan": "map"}.get(name, name)

    def can_use(self, axis: str) -> bool:
        """Whether it can be split over a mesh axis, in the code, and is not yet."""
        for spec in (*self.in_specs, *self.out_specs):
            if axis in spec_of(spec).axes:
                return False
        # The others of a shard_map are left to XLA, inside of it as well.
        is_manual = axis in self.manual and self.constants is not None
        return is_manual or not self.manual


def _regions(jaxpr: Any) -> Iterator[_Region]:
    """All operations of a jaxpr, each alone, except that a `jax.lax.map` is several."""
    body = plain_jaxpr(jaxpr)
    for _, run in itertools.groupby(body.eqns, _expression):
        found = [*run]
        if len(found) > 1 and any(map(_is_map, found)):
            yield _region(found, body)
        else:
            for one in found:
                yield _region([one], body)


def _region(equations: Sequence[Any], around: Any) -> _Region:
    """Operations of a jaxpr, next to one another, as a region."""
    first, params = equations[0], equations[0].params
    if first.primitive.name == "shard_map":
        # jax puts constants first, and they have no name; in a gradient nothing has.
        names = params["jaxpr"].debug_info.arg_names
        constants = None if names is None else names.count("")
        specs = params["in_specs"], params["out_specs"], params["newly_manual_axes"]
        values = first.invars, first.outvars, params["jaxpr"]
        return _Region(equations, *values, *specs, constants)
    taken, made = dict[Any, None](), dict[Any, None]()
    for equation in equations:
        for variable in equation.invars:
            if not hasattr(variable, "val") and variable not in made:
                taken[variable] = None
        made.update(dict.fromkeys(equation.outvars))
    if len(equations) > 1:
        read = set(map(id, around.outvars))
        for equation in around.eqns:
            if equation not in equations:
                read.update(map(id, equation.invars))
        made = {one: None for one in made if id(one) in read}
    values = {"invars": [*taken], "outvars": [*made]}
    body = SimpleNamespace(constvars=(), eqns=equations, **values)
    specs = [jax.P()] * len(taken), [jax.P()] * len(made)
    return _Region(equations, *values.values(), body, *specs)


def _expression(equation: Any) -> Any:
    """The line and expression of the user's code that an operation is of."""
    for frame in line_frames(equation):
        if is_user_file(frame.file_name):
            return frame.line_num, expression_of(equation, frame.file_name)
    return None


def _is_map(equation: Any) -> bool:
    """Whether it is a loop whose steps do not read what others wrote."""
    return equation.primitive.name == "scan" and scan_counts(equation)[1] == 0


def _is_gathered(equation: Any) -> bool:
    return equation.primitive.name in _GATHERED or _is_map(equation)


def _in_shard_map(program: Program, edit: Edit, region: _Region) -> Any:
    """A region in a `jax.shard_map`, as an operation."""
    mesh, axes = program.mesh, edit.fields["axes"]
    (dimension, size), splits = edit.fields["split"], []
    for number, variable in enumerate(region.body.invars):
        is_split = variable.aval.shape[dimension:][:1] == (size,)
        is_given = number >= (region.constants or 0)
        splits.append(dimension if is_split and is_given else None)
    local, outs = Blocks(axes, mesh.shape).traced(region.body, splits)

    def split_as_well(spec: Any, split: int | None) -> Any:
        if split is None:
            return spec
        dims = list(spec_of(spec).padded(max(split + 1, len(spec))))
        dims[split] += axes
        return jax.P(*dims)

    call = jax.shard_map(
        jaxpr_as_fun(local),
        mesh=abstract_mesh(mesh),
        in_specs=tuple(map(split_as_well, region.in_specs, splits)),
        out_specs=[*map(split_as_well, region.out_specs, outs)],
        axis_names={*region.manual, *axes},
        check_vma=False,
    )
    # Of values with other names, which get those of the operations.
    (made,) = jax.make_jaxpr(call)(*(v.aval for v in region.invars)).eqns
    made = made.replace(invars=region.invars, outvars=region.outvars)
    return made.replace(source_info=region.equations[0].source_info)


def _code(program: Program, edit: Edit, region: _Region, call: Any) -> str:
    """The line of code that puts a region into a `shard_map`, or changes its specs."""
    name, axes = edit.fields["operation"], edit.fields["axes"]
    shown = []
    for specs in (
        call.params["in_specs"][region.constants :],
        call.params["out_specs"],
    ):
        listed = [*map(str, map(spec_of, specs))]
        # One for all fits any tree: a named tuple, or a list.
        is_one = listed == listed[:1] * len(listed)
        shown.append(listed[0] if is_one else f"({', '.join(listed)})")
    options = f"in_specs={shown[0]}, out_specs={shown[1]}"
    if region.manual:
        return f"{options}  # {edit.fields['source']}"
    if set(axes) != set(program.mesh.axis_names):
        options += f", axis_names={{{', '.join(map(repr, axes))}}}"
    if name == "loop":
        # What a loop begins with may be the same on all devices, and differ after it.
        options += ", check_vma=False"
    arrays = [f"{v.aval.dtype}{[*v.aval.shape]}" for v in region.invars]
    call = f"{name} = jax.shard_map({name}, mesh=mesh, {options})"
    return f"{call}  # {edit.fields['source']}: {', '.join(arrays)}"


def _with_shard_map(program: Program, edit: Edit) -> Program:
    """Puts a `jax.shard_map` around operations, wherever their line is in the program.

    That is for each layer, and in a gradient as well.
    """
    program, same = as_jaxpr(program), (edit.fields["operation"], edit.fields["source"])

    def changed(jaxpr: Any) -> Any:
        equations = []
        for region in _regions(jaxpr):
            if (region.name, region.line) == same:
                equations.append(_in_shard_map(program, edit, region))
            elif region.manual:
                equations += region.equations
            else:
                equations += [with_inner(one, changed) for one in region.equations]
        return with_equations(jaxpr, equations)

    made = changed(program.fn.jaxpr)  # type: ignore[attr-defined]
    return program.replace(fn=program.fn.with_jaxpr(made))  # type: ignore[attr-defined]


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
