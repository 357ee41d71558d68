"""build_program(): the parts a person gives, made into a Program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shardviz.core.errors import ProgramError, plural, shown
from shardviz.core.layout.checks import check_size
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.rules import Dialect, Rules
from shardviz.core.program.given.arguments import parameter_names, program_arrays
from shardviz.core.program.given.jitted import unjitted
from shardviz.core.program.given.specs import (
    Asked,
    mesh_of_shardings,
    other_mesh_note,
    out_trees,
    with_in_specs,
    with_jit_specs,
    without_rules_note,
)
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
) -> Program:
    """A Program from a function and its arguments in any of the forms that `sv.program` takes.

    Of a function under `jax.jit` its shardings, donation and options count where nothing else was
    given.

    Raises:
        ProgramError: where the parts do not fit together.
    """
    jitted = unjitted(fn)
    if not callable(fn):
        raise ProgramError(f"A program needs a function to run; got {shown(fn)}.")
    arrays, tree, found = program_arrays(args, jitted.fn, mesh, rules)
    asked = mesh_of_shardings((jitted.in_shardings, jitted.out_shardings))
    mesh = next((m for m in (mesh, found, asked) if m is not None), None)
    if mesh is None:
        raise ProgramError(
            "A program needs a mesh; got none, and no array's sharding brings one. Give"
            " mesh=sv.mesh(data=4, model=2)."
        )
    notes = [jitted.note] if jitted.note else []
    notes += other_mesh_note(asked, mesh)
    notes += [] if rules is not None else without_rules_note(arrays, args)
    parameters = parameter_names(jitted.fn, len(args))
    if in_specs is not None:
        arrays = with_in_specs(arrays, in_specs, tree, parameters, mesh)
    if jitted.in_shardings is not None:
        request = Asked(mesh, rules, dialect)
        arrays, more = with_jit_specs(arrays, jitted.in_shardings, tree, parameters, request)
        notes += more
    outs, more = out_trees(out_specs, jitted.out_shardings, mesh)
    notes += more
    positions, more = _donation(_donated(donate, len(args)), jitted.donate)
    options = {**jitted.options, **({"donate": positions} if positions else {})}
    return Program(
        jitted.fn,
        arrays,
        mesh,
        rules,
        dialect,
        tree,
        outs,
        options,
        function_name(fn) if isinstance(name, str) and not name else name,
        tuple(notes + more),
    )


def _donation(given: tuple[int, ...], jitted: tuple[int, ...]) -> tuple[tuple[int, ...], list[str]]:
    """The donated arguments, and a note where sv.program and jax.jit were told otherwise."""
    if given and jitted and set(given) != set(jitted):
        return given, [
            f"donate={given} was given to sv.program and donate_argnums={jitted} to jax.jit; what"
            " sv.program was given counts."
        ]
    return given or jitted, []


def _donated(donate: Any, count: int) -> tuple[int, ...]:
    given = donate if isinstance(donate, Iterable) and not isinstance(donate, str) else (donate,)
    positions = tuple(check_size(d, "A donated position", ProgramError) for d in given)
    for position in positions:
        if not 0 <= position < count:
            raise ProgramError(
                f"Argument {position} cannot be donated: there are {plural(count, 'argument')},"
                " counted from 0."
            )
    return positions
