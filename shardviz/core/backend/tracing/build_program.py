"""A Program from a function and its call, and how the arrays it returns form the
results.

`build_program` makes the Program. `Results` has what the traced function returned, in
the order in which jax itself returns its arrays: XLA combines collectives by the order
of the results that need them, so a program with its results in another order is another
program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from shardviz.core.backend.bridge import adopt_mesh
from shardviz.core.backend.tracing.arguments import (
    SpecContext,
    as_spec,
    is_array,
    leaves_with_paths,
    mesh_of_shardings,
    other_mesh_note,
    out_trees,
    path_name,
    program_arrays,
    spread,
    unique,
    with_in_specs,
    with_jit_specs,
    without_rules_note,
)
from shardviz.core.backend.tracing.calls import BoundCall, Call, is_of, read_call
from shardviz.core.backend.tracing.mesh_context import mesh_context
from shardviz.core.errors import ProgramError
from shardviz.core.format import plural, shown
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.array_tree import Names
from shardviz.core.layout.layout import lay_out
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import check_size, limited
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.rules import Dialect, Rules
from shardviz.core.program.notes import Note
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
    """A Program from a function and its arguments in any of the forms that `sv.program`
    takes.

    Of a function under `jax.jit` its shardings, donation and options count where
    nothing else was given.

    Raises:
        ProgramError: where the parts do not fit together.
    """
    call = read_call(fn, args, keywords or {})
    jitted, context = call.jitted, mesh_context()
    if call.own_mesh is not None:
        mesh = _mesh_of_pmap(call.own_mesh, mesh)
    arrays, tree, found = program_arrays(
        call.arguments,
        call.fn,
        mesh,
        rules,
        dialect=dialect,
        names=call.names,
        axis_names=axis_names,
    )
    jit_mesh = mesh_of_shardings((jitted.in_shardings, jitted.out_shardings))
    # The first that is known: given, of the arrays, of jax.jit, in force, or passed.
    meshes = [mesh, found, jit_mesh, context.mesh]
    for passed in call.meshes:
        meshes.append(passed if isinstance(passed, MeshSpec) else adopt_mesh(passed))
    mesh = next((known for known in meshes if known is not None), None)
    if mesh is None:
        raise ProgramError(
            "A program needs a mesh; got none, and no array's sharding brings one. Give"
            " mesh=sv.mesh(data=4, model=2)."
        )
    notes = [jitted.note] if jitted.note else []
    notes += other_mesh_note(jit_mesh, mesh)
    if rules is None:
        notes += without_rules_note(arrays, call.arguments)
    known = (arrays, tree, SpecContext(mesh, rules, dialect))
    arrays, more = _with_specs(known, in_specs, call)
    notes += more
    outs, more = out_trees(out_specs, jitted.out_shardings, mesh)
    notes += more
    given = []
    for position in _donated(donate, len(args)):
        taken = call.positions[position]
        if taken is not None:
            given.append(taken)
    positions, more = _donation(tuple(given), call.donate)
    options = dict(jitted.options)
    if positions:
        options["donate"] = positions
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


def _mesh_of_pmap(own: MeshSpec, given: MeshSpec | None) -> MeshSpec:
    """The mesh of a function under jax.pmap, with the devices of the one that was
    given.
    """
    if given is None:
        return own
    if given.shape != own.shape:
        raise ProgramError(
            f"A function under jax.pmap has a mesh of its own, ({own}), made of the dimension that"
            f" it maps over; got ({given}). Leave mesh= out, or give mesh='{own}'."
        )
    return given


def _with_specs(
    known: tuple[tuple[ArraySpec, ...], Any, SpecContext], in_specs: Any, call: Call
) -> tuple[tuple[ArraySpec, ...], list[str]]:
    """The arrays with the specs of `in_specs` and then those of `jax.jit`, and notes on
    them.
    """
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
    """`in_specs` for the arguments with arrays, from those for the arguments that were
    given.
    """
    if not isinstance(call.fn, BoundCall) or not isinstance(in_specs, (tuple, list)):
        return in_specs
    specs = tuple(in_specs)
    taken = [p for p in call.positions if p is not None]
    if len(specs) == len(call.positions):
        # One for every argument that was given, static ones included.
        pairs = zip(specs, call.positions, strict=True)
        specs = tuple(spec for spec, position in pairs if position is not None)
    if len(specs) != len(taken):
        return in_specs
    found = [None] * len(call.arguments)
    for position, spec in zip(taken, specs, strict=True):
        found[position] = spec
    return tuple(found)


def _donation(
    given: tuple[int, ...], jitted: tuple[int, ...]
) -> tuple[tuple[int, ...], list[str]]:
    """The donated arguments, and a note where sv.program and jax.jit were given
    different ones.
    """
    if given and jitted and set(given) != set(jitted):
        return given, [str(Note("two donations", (str(given), str(jitted))))]
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


@dataclass(frozen=True, eq=False)
class Returned:
    """How the arrays that a program returns form what its function returns.

    Attributes:
        tree: the structure of the result.
        others: what is no array, by its position among the leaves of `tree`.
        before: the names of those arrays before the result that the function changed in
            place; `""` for one that is no part of the result at all.
        after: the names of those after the result.
    """

    tree: Any
    others: Mapping[int, Any] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The result; with the values of what was changed in place, by name, where
        anything was.
        """
        begin, end = len(self.before), len(leaves) - len(self.after)
        given = iter(leaves[begin:end])
        filled = []
        for i in range(self.tree.num_leaves):
            filled.append(self.others[i] if i in self.others else next(given))
        changed = dict(zip(self.before, leaves, strict=False))
        changed |= dict(zip(self.after, leaves[end:], strict=True))
        changed.pop("", None)
        result = self.tree.unflatten(filled)
        return (result, changed) if changed else result


class SpecsByName(dict[str, Spec | None]):
    """In place of `out_specs`, one Spec per result, also for arguments that the
    function changed.

    >>> SpecsByName({"model.w (changed)": Spec.parse("data")})["model.w (changed)"]
    P('data')
    """


class Results:
    """What a trace finds out about the results: their tree and names, and whether specs
    fit.

    Attributes:
        program: what is traced.
        tree: how they form what the function returns.
        names: what they are called.
        shapes: their shapes.
        note: what the user should know about them, or `""`.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tree: Any = None
        self.names: list[str] = []
        self.shapes: list[tuple[int, ...]] = []
        self.note = ""
        self._own: list[str] = []

    def take(self, result: Any, changed: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arrays of what the function returned, and of arguments that it changed.

        `nnx.jit` returns its states before the result, and `jax.jit` the values of a
        `jax.Ref` after it. `eqx.filter_jit` returns a number of its own first, and
        drops what is no array.
        """
        fn = self.program.fn
        found, tree = leaves_with_paths(result)
        filters = is_of(
            fn.fn if isinstance(fn, BoundCall) else fn, "equinox", "_JitWrapper"
        )
        loose = filters or (isinstance(fn, BoundCall) and not fn.compiles)
        # What is no array stays beside the results where the function is not under a
        # jit that returns it as an array; equinox returns numbers as they are, too.
        others = {}
        if loose:
            for i, (_, leaf, _) in enumerate(found):
                number = _is_number(leaf) and not filters
                if not is_array(leaf) and not number:
                    others[i] = leaf
        taken: set[str] = set()
        self._own, own = [], []
        for i, (path, leaf, _) in enumerate(found):
            name = unique(path_name("output", path), taken)
            taken.add(name)
            self._own.append(name)
            if i not in others:
                own.append((name, leaf))
        more = []
        for name, value in changed.items():
            more.append((unique(f"{name} (changed)", taken), value))
        if filters:
            more = [(unique("marker of filter_jit", taken), jnp.array(0)), *more]
        names = ("",) * filters + tuple(changed)
        first = not getattr(fn, "refs", ())
        before, after = (names, ()) if first else ((), names)
        self.tree = Returned(tree, others, before, after)
        if changed and isinstance(fn, BoundCall):
            self.note = fn.change_note(list(changed))
        ordered = [*more, *own] if first else [*own, *more]
        self.names = [name for name, _ in ordered]
        leaves = tuple(leaf for _, leaf in ordered)
        self.shapes = [getattr(leaf, "shape", ()) for leaf in leaves]
        return leaves

    def specs(self) -> tuple[Spec | None, ...]:
        """One Spec for each result, from the program's `out_specs`, checked against it.

        Raises:
            ProgramError: for specs that are no prefix of the results, or do not fit one
                of them.
        """
        by_name = self.program.out_specs
        if not isinstance(by_name, SpecsByName):
            full = self.tree.tree.unflatten(range(len(self._own)))
            given = spread(by_name, full, "out_specs", self._own)
            by_name = dict(zip(self._own, given, strict=True))
        specs = [as_spec(by_name.get(name)) for name in self.names]
        for name, spec, shape in zip(self.names, specs, self.shapes, strict=True):
            try:
                if spec is not None:
                    lay_out(shape, spec, self.program.mesh)
            except ValueError as error:
                raise ProgramError(f"{name}: {error}") from None
        return tuple(specs)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (bool, int, float, complex))
