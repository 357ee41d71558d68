"""build_program(): a Program from a function and the call that it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shardviz.core.backend.arguments import (
    SpecContext,
    mesh_of_shardings,
    other_mesh_note,
    out_trees,
    program_arrays,
    with_in_specs,
    with_jit_specs,
    without_rules_note,
)
from shardviz.core.backend.bridge import adopt_mesh
from shardviz.core.backend.calls import BoundCall, Call, read_call
from shardviz.core.backend.mesh_context import mesh_context
from shardviz.core.errors import ProgramError
from shardviz.core.format import plural, shown
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.array_tree import Names
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import check_size, limited
from shardviz.core.layout.rules import Dialect, Rules
from shardviz.core.program.program import Program, function_name


def build_program(
    fn: Callable[..., Any],
    args: Sequence[Any],
    mesh: MeshSpec | None,
    rules: Rules | None,
    dialect: Dialect,
    in_specs: Any,
    out_specs: Any,
    donate: Any,
    name: str,
    keywords: Mapping[str, Any] | None = None,
    axis_names: Names | None = None,
) -> Program:
    """A Program from a function and its arguments in any of the forms that `sv.program` takes.

    Of a function under `jax.jit` its shardings, donation and options count where nothing else was
    given.

    Raises:
        ProgramError: where the parts do not fit together.
    """
    call = read_call(fn, args, keywords or {})
    jitted, context = call.jitted, mesh_context()
    arrays, tree, found = program_arrays(
        call.arguments, call.fn, mesh, rules,
        dialect=dialect, names=call.names, axis_names=axis_names,
    )  # fmt: skip
    jit_mesh = mesh_of_shardings((jitted.in_shardings, jitted.out_shardings))
    passed = [m if isinstance(m, MeshSpec) else adopt_mesh(m) for m in call.meshes]
    meshes = (mesh, found, jit_mesh, context.mesh, *passed)
    mesh = next((m for m in meshes if m is not None), None)
    if mesh is None:
        raise ProgramError(
            "A program needs a mesh; got none, and no array's sharding brings one. Give"
            " mesh=sv.mesh(data=4, model=2)."
        )
    notes = [jitted.note] if jitted.note else []
    notes += other_mesh_note(jit_mesh, mesh)
    notes += [] if rules is not None else without_rules_note(arrays, call.arguments)
    known = (arrays, tree, SpecContext(mesh, rules, dialect))
    arrays, more = _with_specs(known, in_specs, call)
    notes += more
    outs, more = out_trees(out_specs, jitted.out_shardings, mesh)
    notes += more
    given = [call.positions[d] for d in _donated(donate, len(args))]
    positions, more = _donation(tuple(p for p in given if p is not None), call.donate)
    options = {**jitted.options, **({"donate": positions} if positions else {})}
    return Program(
        call.fn,
        arrays,
        mesh,
        rules,
        dialect,
        tree,
        outs,
        options,
        function_name(fn) if isinstance(name, str) and not name else name,
        tuple(notes + more),
        None if context.in_force == "none" and not context.rules else context,
    )


def _with_specs(
    known: tuple[tuple[ArraySpec, ...], Any, SpecContext], in_specs: Any, call: Call
) -> tuple[tuple[ArraySpec, ...], list[str]]:
    """The arrays with the specs of `in_specs` and then those of `jax.jit`, and notes on them."""
    arrays, tree, context = known
    if in_specs is not None:
        specs = _for_arguments(in_specs, call)
        arrays = with_in_specs(arrays, specs, tree, call.names, context.mesh)
    shardings = call.jitted.in_shardings
    if shardings is None:
        return arrays, []
    if isinstance(shardings, (tuple, list)):
        shardings = (*shardings, *(None,) * (len(call.arguments) - call.positional))
    return with_jit_specs(arrays, shardings, tree, call.names, context)


def _for_arguments(in_specs: Any, call: Call) -> Any:
    """`in_specs` for the arguments with arrays, from those for the arguments that were given."""
    if not isinstance(call.fn, BoundCall) or not isinstance(in_specs, (tuple, list)):
        return in_specs
    specs = tuple(in_specs)
    taken = [p for p in call.positions if p is not None]
    if len(specs) == len(call.positions):
        specs = tuple(s for s, p in zip(specs, call.positions, strict=True) if p is not None)
    if len(specs) != len(taken):
        return in_specs
    found = [None] * len(call.arguments)
    for position, spec in zip(taken, specs, strict=True):
        found[position] = spec
    return tuple(found)


def _donation(given: tuple[int, ...], jitted: tuple[int, ...]) -> tuple[tuple[int, ...], list[str]]:
    """The donated arguments, and a note where sv.program and jax.jit were given different ones."""
    if given and jitted and set(given) != set(jitted):
        return given, [
            f"donate={given} was given to sv.program and donate_argnums={jitted} to jax.jit; what"
            " sv.program was given counts."
        ]
    return given or jitted, []


def _donated(donate: Any, count: int) -> tuple[int, ...]:
    given: Iterable[Any] = (donate,)
    if isinstance(donate, Iterable) and not isinstance(donate, str):
        given = limited(donate, count, "The donated arguments", ProgramError)
    positions = tuple(check_size(d, "A donated position", ProgramError) for d in given)
    for position in positions:
        if not 0 <= position < count:
            raise ProgramError(
                f"Argument {shown(position, 30)} cannot be donated: there are"
                f" {plural(count, 'argument')}, counted from 0."
            )
    return positions
