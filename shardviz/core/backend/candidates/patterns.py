"""Edits for known patterns: a `jax.shard_map` around what XLA does not split by batch.

XLA gathers all of a grouped convolution's batch, or that of a top_k or an FFT, on TPUs
that of most matrix decompositions; and a loop under `jax.vmap` asks all devices in every
step whether one still works. On its own block each device can do that alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import jax

from shardviz.core.backend.candidates.apply import APPLY
from shardviz.core.backend.candidates.blocks import Blocks, NotInBlocks
from shardviz.core.backend.candidates.proposals import GENERATORS, Proposal, Wanted
from shardviz.core.backend.jax_compat import with_partitionable_random
from shardviz.core.backend.tracing.edited import (
    JaxprFunction,
    as_jaxpr,
    placed_operations,
)
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
    names = {one.name for one in operations(wanted.trials.traced.stage.jaxpr)}
    is_set = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    if not is_set and names & {"random_bits", "random_split"}:
        yield Proposal((edit("option", code=_PARTITIONABLE),), 1.0, ("option",))


def _shard_maps(wanted: Wanted) -> Iterator[Proposal]:
    """A `shard_map` around an operation or call that XLA may not split."""
    program = wanted.trials.as_jaxpr
    if set(program.mesh.axis_types) != {"Auto"}:
        return  # jax itself says there what cannot be split
    blocks = Blocks(program.mesh, wanted.axes)
    assert isinstance(program.fn, JaxprFunction)
    # Of a line the first one, since what a call of jax contains has its line as well.
    first: dict[str, Any] = {}
    for one in placed_operations(program.fn.jaxpr):
        kinds = {
            inner.name for inner in operations(SimpleNamespace(eqns=[one.equation]))
        }
        if kinds & _GATHERED:
            first.setdefault(users_line(one.equation), one.equation)
    for line, equation in first.items():
        name, _ = _called(equation)
        far = 0.75 if line in wanted.sources else 3.0
        far -= 0.5 * (name in wanted.collective.op)
        for dimension in (0, 1):  # a batch is among the first
            fields = {"operation": name, "source": line, "dimension": dimension}
            try:
                made = blocks.in_shard_map(equation, dimension)
                code = f"{_code(name, made, program, wanted.axes)}  # {line}"
                one = edit("shard_map", code=code, axes=wanted.axes, **fields)
                _with_shard_map(program, one)
            except NotInBlocks:
                continue
            yield Proposal((one,), far, (f"shard_map {line}",))


def _called(equation: Any) -> tuple[str, str]:
    """What an operation is called in the code, and its line there."""
    params, name = equation.params, equation.primitive.name
    if "jaxpr" in params and "name" in params:
        name = params["name"]
    return "loop" if name == "while" else name, users_line(equation)


def _code(name: str, equation: Any, program: Program, axes: tuple[str, ...]) -> str:
    """The code of a `shard_map`, which is an operation here."""
    params, taken = equation.params, {}
    for variable, spec in zip(equation.invars, params["in_specs"], strict=True):
        if not hasattr(variable, "val"):  # no number of the code
            taken[variable] = spec
    specs = []
    for listed in ([*taken.values()], params["out_specs"]):
        words = ", ".join(str(spec_of(spec)) for spec in listed)
        specs.append(f"({words})" if len(listed) > 1 else words)
    code = f"{name} = jax.shard_map({name}, mesh=mesh, in_specs={specs[0]}, out_specs={specs[1]}"
    if set(axes) != set(program.mesh.axis_names):
        code += f", axis_names={{{', '.join(map(repr, axes))}}}"
    if name == "loop":
        # What a loop begins with may be the same on all devices, and differ after it.
        code += ", check_vma=False"
    return f"{code})"


def _with_shard_map(program: Program, edit: Edit) -> Program:
    """Puts a `jax.shard_map` around an operation, wherever its line is in the program.

    That is for each layer, and in a gradient as well.
    """
    fields, program = edit.fields, as_jaxpr(program)
    blocks = Blocks(program.mesh, fields["axes"])

    def change(equation: Any) -> list[Any]:
        if _called(equation) == (fields["operation"], fields["source"]):
            return [blocks.in_shard_map(equation, fields["dimension"])]
        if equation.primitive.name == "shard_map":
            return [equation]
        return [with_inner(equation, lambda jaxpr: rewritten(jaxpr, change))]

    return _rewritten(program, change)


def _with_option(program: Program, edit: Edit) -> Program:
    """Makes random numbers as `jax_threefry_partitionable` does."""

    def change(equation: Any) -> list[Any]:
        inner = with_inner(equation, lambda jaxpr: rewritten(jaxpr, change))
        return [with_partitionable_random(inner)]

    return _rewritten(as_jaxpr(program), change)


def _rewritten(program: Program, change: Callable[[Any], list[Any]]) -> Program:
    function = program.fn
    assert isinstance(function, JaxprFunction)
    changed = rewritten(function.jaxpr, change)
    return program.replace(fn=function.with_jaxpr(changed))


APPLY.update({"shard_map": _with_shard_map, "option": _with_option})
GENERATORS.extend((_shard_maps, _options))
