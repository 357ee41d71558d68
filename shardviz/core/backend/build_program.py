"""build_program(): a Program from a function, also a jitted one, and its arguments.

jax has no public way to read what `jax.jit` was given. jax 0.10 to 0.12 keep it in `_jit_info`,
which is read here only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from shardviz.core.backend.arguments import (
    SpecContext,
    mesh_of_shardings,
    other_mesh_note,
    out_trees,
    parameter_names,
    program_arrays,
    with_in_specs,
    with_jit_specs,
    without_rules_note,
)
from shardviz.core.errors import ProgramError
from shardviz.core.format import plural, shown
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import check_size, limited
from shardviz.core.layout.rules import Dialect, Rules
from shardviz.core.program.program import Program, function_name

_INFO = "_jit_info"
_UNREADABLE = (
    "The function is under jax.jit already, and this jax does not say what jax.jit was given:"
    " shardings and donation there are not seen. Give in_specs, out_specs and donate to sv.program."
)


@dataclass(frozen=True)
class Jitted:
    """A function and the options that `jax.jit` was given with it.

    Attributes:
        fn: the function under `jax.jit`, or the function itself where there is none.
        in_shardings: a pytree prefix of the arguments, or None.
        out_shardings: a pytree prefix of the results, or None.
        donate: the positions of donated arguments.
        options: compiler options.
        note: what could not be seen, in one sentence; or `""`.
    """

    fn: Callable[..., Any]
    in_shardings: Any = None
    out_shardings: Any = None
    donate: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


def unjitted(fn: Callable[..., Any]) -> Jitted:
    """The function under `jax.jit`, and what it was jitted with.

    Raises:
        ProgramError: for a program that jax compiled already, which is no function any more.

    >>> found = unjitted(jax.jit(abs, donate_argnums=0))
    >>> found.fn is abs, found.donate
    (True, (0,))
    """
    if isinstance(fn, (jax.stages.Compiled, jax.stages.Lowered, jax.stages.Traced)):
        kind = type(fn).__name__
        raise ProgramError(
            f"A program needs a function that jax can trace; got a jax.stages.{kind}, which is"
            f" {kind.lower()} for its own arguments already. Give the function itself, or jax.jit"
            " of it."
        )
    if isinstance(fn, functools.partial):
        return _through_partial(fn)
    under = getattr(fn, "__wrapped__", None)
    if not (callable(under) and hasattr(fn, "lower") and hasattr(fn, "trace")):
        return Jitted(fn)
    info = getattr(fn, _INFO, None)
    if info is None:
        return Jitted(fn, note=_UNREADABLE)
    try:
        return Jitted(
            under,
            _tree(info.in_shardings_treedef, info.in_shardings_leaves),
            _tree(info.out_shardings_treedef, info.out_shardings_leaves),
            tuple(info.donate_argnums),
            dict(info.compiler_options_kvs),
        )
    except AttributeError:  # private to jax, and it may change
        return Jitted(fn, note=_UNREADABLE)


def _through_partial(fn: functools.partial) -> Jitted:
    """The function and options of a partial of a jitted function."""
    found, bound = unjitted(fn.func), len(fn.args)
    if found.fn is fn.func:
        return Jitted(fn, note=found.note)
    shardings = found.in_shardings
    return Jitted(
        functools.partial(found.fn, *fn.args, **fn.keywords),
        tuple(shardings[bound:]) if isinstance(shardings, (tuple, list)) else shardings,
        found.out_shardings,
        tuple(d - bound for d in found.donate if d >= bound),
        found.options,
    )


def _tree(treedef: Any, leaves: Any) -> Any:
    """The tree of shardings as it was given; None where there was none."""
    kept = [leaf if isinstance(leaf, jax.sharding.Sharding) else _spec(leaf) for leaf in leaves]
    return None if all(leaf is None for leaf in kept) else treedef.unflatten(kept)


def _spec(leaf: Any) -> Any:
    """A PartitionSpec as it is; None for what jax writes where nothing was said."""
    return leaf if isinstance(leaf, jax.sharding.PartitionSpec) else None


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
    arrays, tree, found = program_arrays(args, jitted.fn, mesh, rules, dialect=dialect)
    jit_mesh = mesh_of_shardings((jitted.in_shardings, jitted.out_shardings))
    mesh = next((m for m in (mesh, found, jit_mesh) if m is not None), None)
    if mesh is None:
        raise ProgramError(
            "A program needs a mesh; got none, and no array's sharding brings one. Give"
            " mesh=sv.mesh(data=4, model=2)."
        )
    notes = [jitted.note] if jitted.note else []
    notes += other_mesh_note(jit_mesh, mesh)
    notes += [] if rules is not None else without_rules_note(arrays, args)
    parameters = parameter_names(jitted.fn, len(args))
    if in_specs is not None:
        arrays = with_in_specs(arrays, in_specs, tree, parameters, mesh)
    if jitted.in_shardings is not None:
        context = SpecContext(mesh, rules, dialect)
        arrays, more = with_jit_specs(arrays, jitted.in_shardings, tree, parameters, context)
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
