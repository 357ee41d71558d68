"""Edits for known patterns: a `jax.shard_map` where XLA does not split by batch.

XLA gathers all of a grouped convolution's batch, of an FFT's or a top_k's on some
devices, of matrix decompositions on others; and a loop under `jax.vmap` asks all devices
in every step whether one still works. On its own block each device can do that alone.
"""

from __future__ import annotations

import itertools
import keyword
from collections.abc import Callable, Iterator
from math import prod
from types import SimpleNamespace
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.candidates.apply import APPLY
from shardviz.core.backend.candidates.blocks import (
    ALWAYS_SPLIT,
    Blocks,
    NotInBlocks,
    Split,
)
from shardviz.core.backend.candidates.proposals import GENERATORS, Proposal, Wanted
from shardviz.core.backend.jax_compat import with_partitionable_random
from shardviz.core.backend.tracing.edited import (
    JaxprFunction,
    Path,
    PlacedOperation,
    as_jaxpr,
    placed_operations,
)
from shardviz.core.backend.tracing.jaxprs import (
    operations,
    plain_jaxpr,
    rewritten,
    users_line,
    with_equations,
    with_inner,
)
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.candidates import Edit
from shardviz.core.program.program import Program

_FEW_DIMENSIONS = 2  # a batch is among the first
_MOST_FAR = 6  # operations that are on no line of the collective
_PARTITIONABLE = 'jax.config.update("jax_threefry_partitionable", True)'
_RANDOM = {"random_bits", "random_split"}


def _options(wanted: Wanted) -> Iterator[Proposal]:
    """The option that makes random numbers alone on each device."""
    jaxpr = plain_jaxpr(wanted.trials.traced.stage.jaxpr)
    names = {operation.name for operation in operations(jaxpr)}
    if not jax.config.jax_threefry_partitionable and names & _RANDOM:  # type: ignore[attr-defined]
        yield Proposal((Edit("option", {"code": _PARTITIONABLE}),), 1.0, ("option",))


def _shard_maps(wanted: Wanted) -> Iterator[Proposal]:
    """A `shard_map` around an operation or call that XLA may not split.

    A line may be in the program several times, for each layer and for a gradient, and
    all of these are changed as the line would be.
    """
    program = wanted.trials.as_jaxpr
    if set(program.mesh.axis_types) != {"Auto"}:
        return  # jax itself says there what cannot be split
    assert isinstance(program.fn, JaxprFunction)
    groups: dict[tuple[str, str], list[PlacedOperation]] = {}
    for one in placed_operations(program.fn.jaxpr, (), ""):
        if not _kinds(one.equation) <= ALWAYS_SPLIT:
            groups.setdefault((users_line(one.equation), one.name), []).append(one)
    seldom = 0
    for (line, name), places in groups.items():
        far = 0.75 if line in wanted.sources else 3.0
        far -= 0.5 * (name in wanted.collective.op)
        seldom += far > 1
        for dimension in range(_FEW_DIMENSIONS):
            if far > 1 and seldom > _MOST_FAR:
                continue
            made = _shard_map(program, wanted.axes, places, dimension)
            if made is not None:
                yield Proposal((made,), far, (f"shard_map {line}",))


def _kinds(equation: Any) -> set[str]:
    kinds = {one.name for one in operations(SimpleNamespace(eqns=[equation]))}
    return kinds - {"jit", "custom_jvp_call", "custom_vjp_call"}


def _shard_map(
    program: Program,
    axes: tuple[str, ...],
    places: list[PlacedOperation],
    dimension: int,
) -> Edit | None:
    """A `shard_map` that splits one dimension of all operands that have its size there."""
    found: list[tuple[Path, tuple[Split, ...]]] = []
    shown: list[Any] = []
    for one in places:
        ranked = [v for v in _read(one.equation) if v.aval.ndim > dimension]
        largest = max(ranked, key=lambda variable: variable.aval.size, default=None)
        if largest is None:
            return None
        size, splits = largest.aval.shape[dimension], list[Split]()
        for variable in _read(one.equation):
            alike = variable in ranked and variable.aval.shape[dimension] == size
            splits.append(dimension if alike else None)
        try:
            local, outs = _in_blocks(one.equation, _blocks(program, axes), splits)
        except NotInBlocks:
            return None
        sums = any(inner.name.startswith("psum") for inner in operations(local))
        if sums and not one.is_backward:
            return None  # only for a gradient does jax itself add up what each has
        shown = shown or [splits, outs]
        found.append((one.path, tuple(splits)))
    name, source = places[0].name, users_line(places[0].equation)
    name = "loop" if keyword.iskeyword(name) else name
    listed = [_listed(axes, splits) for splits in shown]
    code = f"{name} = jax.shard_map({name}, mesh=mesh, in_specs={listed[0]}"
    code += f", out_specs={listed[1]}"
    if set(axes) != set(program.mesh.axis_names):
        code += f", axis_names={{{', '.join(map(repr, axes))}}}"
    if "while" in _kinds(places[0].equation):
        # What a loop begins with may be the same on all devices, and differ after it.
        code += ", check_vma=False"
    fields = {
        "operation": name,
        "source": source,
        "code": f"{code})  # {source}",
        "axes": axes,
        "places": tuple(found),
    }
    return Edit("shard_map", fields)


def _listed(axes: tuple[str, ...], splits: list[Split]) -> str:
    listed = ", ".join(str(_spec(axes, split)) for split in splits)
    return f"({listed})" if len(splits) > 1 else listed


def _read(equation: Any) -> list[Any]:
    """The values that an operation takes, each once; no numbers written in it."""
    return list(dict.fromkeys(v for v in equation.invars if not hasattr(v, "val")))


def _spec(axes: tuple[str, ...], split: Split) -> Spec:
    return Spec() if split is None else Spec(((),) * split + (axes,))


def _blocks(program: Program, axes: tuple[str, ...]) -> Blocks:
    return Blocks(axes, prod(program.mesh.shape[axis] for axis in axes))


def _in_blocks(equation: Any, blocks: Blocks, splits: Any) -> tuple[Any, list[Split]]:
    """An operation on a device's block, and how its results are split."""
    called = SimpleNamespace(
        constvars=(), invars=_read(equation), eqns=[equation], outvars=equation.outvars
    )
    found: list[Any] = []
    # Their sizes do not matter here: nothing is evaluated.
    sizes = [(axis, 2) for axis in blocks.axes]
    look = jax.make_jaxpr(
        lambda: found.extend(blocks.traced(called, splits)), axis_env=sizes
    )
    look()
    return found[0], found[1]


def _with_shard_map(program: Program, edit: Edit) -> Program:
    """Puts a `jax.shard_map` around an operation, at all its places."""
    program, axes = as_jaxpr(program), edit.fields["axes"]
    function, blocks = program.fn, _blocks(program, axes)
    assert isinstance(function, JaxprFunction)
    jaxpr = function.constrained_jaxpr
    for path, splits in edit.fields["places"]:

        def mapped(equation: Any, splits: Any = splits) -> Any:
            local, outs = _in_blocks(equation, blocks, splits)
            call = jax.shard_map(
                jaxpr_as_fun(_on_line_of(equation, local)),
                mesh=abstract_mesh(program.mesh),
                in_specs=tuple(_spec(axes, split).to_jax() for split in splits),
                out_specs=[_spec(axes, split).to_jax() for split in outs],
                axis_names=set(axes),
                check_vma=False,
            )
            read = _read(equation)
            made = jax.make_jaxpr(jax.jit(call))(*(v.aval for v in read))
            (whole,) = plain_jaxpr(made).eqns
            whole = whole.replace(invars=read, outvars=equation.outvars)
            return whole.replace(source_info=equation.source_info)

        jaxpr = _changed_at(jaxpr, path, mapped)
    return program.replace(fn=function.with_jaxpr(jaxpr))


def _on_line_of(equation: Any, jaxpr: Any) -> Any:
    """A jaxpr whose operations are from the line of another one."""

    def change(inner: Any) -> list[Any]:
        info = inner.source_info.replace(traceback=equation.source_info.traceback)
        inner = with_inner(inner, lambda jaxpr: _on_line_of(equation, jaxpr))
        return [inner.replace(source_info=info)]

    return rewritten(jaxpr, change)


def _changed_at(jaxpr: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    """A jaxpr with another operation at one place."""
    equations, (number, *deeper) = list(plain_jaxpr(jaxpr).eqns), path
    if not deeper:
        equations[number] = change(equations[number])
    else:
        numbers = itertools.count()

        def inside(inner: Any) -> Any:
            is_there = next(numbers) == deeper[0]
            return _changed_at(inner, tuple(deeper[1:]), change) if is_there else inner

        equations[number] = with_inner(equations[number], inside)
    return with_equations(jaxpr, equations)


def _with_option(program: Program, edit: Edit) -> Program:
    """Makes random numbers as `jax_threefry_partitionable` does."""
    program = as_jaxpr(program)
    function = program.fn
    assert isinstance(function, JaxprFunction)

    def changed(jaxpr: Any) -> Any:
        return rewritten(jaxpr, change)

    def change(equation: Any) -> list[Any]:
        return [with_partitionable_random(with_inner(equation, changed))]

    return program.replace(fn=function.with_jaxpr(changed(function.constrained_jaxpr)))


APPLY.update({"shard_map": _with_shard_map, "option": _with_option})
GENERATORS.extend((_shard_maps, _options))
