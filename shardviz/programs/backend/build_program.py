"""A Program from a function and its call, and how its arrays form the results.

`build_program` makes the Program. `Results` has what the traced function returned, in
the order in which jax itself returns its arrays: XLA combines collectives by the order
of the results that need them, so a program with its results in another order is another
program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from shardviz.axis_rules.array_tree import Names
from shardviz.axis_rules.dialects import NameDialect
from shardviz.axis_rules.requests import request
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.backend.jax_compat import warn_if_untested
from shardviz.base.errors import ProgramError
from shardviz.base.format import plural, shown
from shardviz.base.layout import lay_out
from shardviz.base.mesh import MeshSpec
from shardviz.base.parse import check_size, limited
from shardviz.base.partition_spec import Spec
from shardviz.programs.backend.arguments import (
    as_spec,
    check_mesh,
    is_array,
    is_number,
    leaves_with_paths,
    mesh_of_shardings,
    path_name,
    program_arrays,
    spec_leaves,
    spec_tree,
    spread,
    unique,
    with_spec,
    without_rules_note,
)
from shardviz.programs.backend.bridge import adopt_mesh, to_jax
from shardviz.programs.backend.calls import BoundCall, Call, is_of, read_call
from shardviz.programs.backend.jaxprs import meshes_in
from shardviz.programs.backend.mesh_context import mesh_context
from shardviz.programs.notes import JitDiffers, JitUnreadable
from shardviz.programs.program import Program, function_name


def build_program(
    fn: Callable[..., Any],
    args: Sequence[Any],
    mesh: MeshSpec | None,
    rules: Rules | None,
    dialect: NameDialect,
    in_specs: Any,
    out_specs: Any,
    donate: Any,
    name: str,
    keywords: Mapping[str, Any] | None = None,
    axis_names: Names | None = None,
) -> Program:
    """A Program from a function and its arguments in any form that `sv.program` takes.

    Of a function under `jax.jit` its shardings, donation and options count where
    nothing else was given.

    Raises:
        ProgramError: where the parts do not fit together.
    """
    warn_if_untested()
    call = read_call(fn, args, keywords or {})
    settings, context = call.jitted.settings, mesh_context()
    arrays, tree, on = program_arrays(
        call.arguments,
        call.fn,
        # jax.pmap makes a mesh of the dimension that it maps over.
        mesh if call.own_mesh is None else call.own_mesh,
        rules,
        dialect=dialect,
        names=call.names,
        axis_names=axis_names,
    )
    jit_mesh = mesh_of_shardings((settings.in_shardings, settings.out_shardings))
    meshes = {"given": mesh, "arrays": on or jit_mesh, "context": context.mesh}
    mesh, mesh_from = _first_mesh(call, meshes) or _mesh_in(call, arrays, tree)
    if mesh_from != "given":
        _refuse_single_devices(call, arrays, mesh)
    notes: list[str] = []
    if call.jitted.unreadable:
        notes.append(str(JitUnreadable(call.jitted.unreadable)))
    if rules is None:
        notes += without_rules_note(arrays, call.arguments)
    placed = list(arrays)
    if in_specs is not None:
        specs = _for_arguments(in_specs, call)
        if len(call.names) == 1 and not isinstance(specs, (tuple, list)):
            specs = (specs,)
        for i, leaf in enumerate(spec_leaves(specs, tree, "in_specs")):
            check_mesh(leaf, mesh, f"in_specs of {arrays[i].name}")
            placed[i] = with_spec(placed[i], leaf)
    differing = []  # what jax.jit was given otherwise
    if jit_mesh is not None and [*jit_mesh.shape.items()] != [*mesh.shape.items()]:
        differing.append("mesh")
    # What jax.jit was given counts where nothing else says it.
    for i, leaf in enumerate(_jit_specs(call, tree)):
        array, spec = placed[i], as_spec(leaf)
        own = request(array, mesh, rules, dialect).spec
        if array.spec is None and (array.logical is None or rules is None):
            placed[i] = with_spec(array, leaf)
        elif spec is not None and own is not None and not own.equivalent(spec):
            differing.append(f"sharding of {array.name}")
    outs, jit_outs = spec_tree(out_specs, mesh), spec_tree(settings.out_shardings, None)
    if None not in (outs, jit_outs) and outs != jit_outs:
        differing.append("out_specs")
    donated = _donated(donate, call)
    if donated and call.donate and set(donated) != set(call.donate):
        differing.append("donation")
    if differing:
        notes.append(str(JitDiffers(tuple(differing))))
    options = dict(settings.options)
    if donated := donated or call.donate:
        options["donate"] = donated
    return Program(
        call.fn,
        tuple(placed),
        mesh,
        rules,
        dialect,
        tree,
        jit_outs if outs is None else outs,
        options,
        name or function_name(fn),
        tuple(notes),
        # Without one, the context of the later call counts.
        None if context.in_force == "none" and not context.rules else context,
        mesh_from,
    )


def _jit_specs(call: Call, tree: Any) -> list[Any]:
    """One sharding per array that jax.jit was given; none where it was given none."""
    shardings = call.jitted.settings.in_shardings
    if shardings is None:
        return []
    if isinstance(shardings, (tuple, list)):
        by_name = len(call.arguments) - call.positional
        shardings = (*shardings, *(None,) * by_name)
    return spec_leaves(shardings, tree, "in_shardings of jax.jit")


def _first_mesh(
    call: Call, meshes: Mapping[str, MeshSpec | None]
) -> tuple[MeshSpec, str] | None:
    """The first known mesh, and where it comes from; None if there is none.

    Args:
        call: the call that the program is made of.
        meshes: the mesh that was given, that of the arrays or `jax.jit`, and that in
            context.
    """
    given, own = meshes["given"], call.own_mesh
    if own is not None and given is not None and given.shape != own.shape:
        raise ProgramError(
            f"A function under jax.pmap has a mesh of its own, ({own}), made of the"
            f" dimension that it maps over; got ({given}). Leave mesh= out, or give"
            f" mesh='{own}'."
        )
    if given is None and own is not None:
        return own, "given"
    for mesh_from, mesh in meshes.items():
        if mesh is not None:
            return mesh, mesh_from
    for passed in call.meshes:
        mesh = passed if isinstance(passed, MeshSpec) else adopt_mesh(passed)
        return mesh, "given"
    return None


def _mesh_in(
    call: Call, arrays: Sequence[ArraySpec], tree: Any
) -> tuple[MeshSpec, str]:
    """The first mesh that the function itself names, found by tracing it.

    Raises:
        ProgramError: if it names none.
    """
    jaxpr = _traced_without_mesh(call.fn, arrays, tree)
    for named, _ in () if jaxpr is None else meshes_in(jaxpr):
        mesh = adopt_mesh(named)
        # A mesh without devices does not make jax use all of them.
        return mesh, "function" if mesh.concrete else "given"
    raise ProgramError(
        "A program needs a mesh; got none: no array's sharding brings one, jax.set_mesh"
        " set none, and the function names none. Give mesh=sv.mesh(data=4, model=2)."
    )


def _refuse_single_devices(
    call: Call, arrays: Sequence[ArraySpec], mesh: MeshSpec
) -> None:
    """Refuses arrays that are on one device beside a mesh of several, as jax does.

    Raises:
        ProgramError: with the name of the first.
    """
    leaves = [leaf for _, leaf, _ in leaves_with_paths(call.arguments)[0]]
    for array, leaf in zip(arrays, leaves, strict=True):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, SingleDeviceSharding) and mesh.size > 1:
            if getattr(leaf, "committed", False):
                raise ProgramError(
                    f"{array.name} is on one device, {leaf.device}, and the program is on"
                    f" the mesh ({mesh}). jax refuses such a call, or runs it on that"
                    " device alone. Move the array to the mesh with jax.device_put."
                )


def _traced_without_mesh(fn: Any, arrays: Sequence[ArraySpec], tree: Any) -> Any:
    """The jaxpr of a function whose arrays are on no mesh; None if jax refuses it."""
    calls = [fn]
    if isinstance(fn, BoundCall):
        calls.append(fn.with_static_numbers((bool, int, float, complex))[0])
    for call in calls:

        def arrays_of_result(*leaves: Any, call: Any = call) -> list[Any]:
            result = jax.tree.leaves(call(*tree.unflatten(leaves)))
            return [leaf for leaf in result if is_array(leaf)]

        # The function may raise anything, which the user sees once there is a mesh.
        with contextlib.suppress(Exception):
            return jax.make_jaxpr(arrays_of_result)(*map(to_jax, arrays))
    return None


def _for_arguments(in_specs: Any, call: Call) -> Any:
    """`in_specs` for the arguments with arrays, from those for all that were given."""
    if not isinstance(call.fn, BoundCall) or not isinstance(in_specs, (tuple, list)):
        return in_specs
    specs: list[Any] = [None] * len(call.arguments)
    taken = [position for position in call.positions if position is not None]
    # One for every argument that was given, static ones included, or for the others.
    positions = call.positions if len(in_specs) == len(call.positions) else taken
    if len(in_specs) != len(positions):
        return in_specs
    for position, spec in zip(positions, in_specs, strict=True):
        if position is not None:
            specs[position] = spec
    return tuple(specs)


def _donated(donate: Any, call: Call) -> tuple[int, ...]:
    """The donated positions among the arguments with arrays."""
    count, given = len(call.positions), (donate,)
    if isinstance(donate, Iterable) and not isinstance(donate, str):
        given = limited(donate, count, "The donated arguments", ProgramError)
    donated = []
    for one in given:
        position = check_size(one, "A donated position", ProgramError)
        if not 0 <= position < count:
            raise ProgramError(
                f"Argument {shown(position, 30)} cannot be donated: there are"
                f" {plural(count, 'argument')}, counted from 0."
            )
        # What is static has no memory to reuse.
        if call.positions[position] is not None:
            donated.append(call.positions[position])
    return tuple(donated)


@dataclass(frozen=True, eq=False)
class Returned:
    """How the arrays that a program returns form what its function returns.

    Attributes:
        tree: the structure of the result.
        others: what is no array, by its position among the leaves of `tree`.
        before: the names of those arrays before the result that the function changed in
            place; `""` for one that is no part of the result at all.
    """

    tree: Any
    others: Mapping[int, Any] = field(default_factory=dict)
    before: tuple[str, ...] = ()

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The result; with the new values by name of what was changed, if any was."""
        given = iter(leaves[len(self.before) :])
        filled = []
        for i in range(self.tree.num_leaves):
            filled.append(self.others[i] if i in self.others else next(given))
        changed = dict(zip(self.before, leaves, strict=False))
        # The marker of filter_jit is no result of the function.
        changed.pop("", None)
        result = self.tree.unflatten(filled)
        return (result, changed) if changed else result


class SpecsByName(dict[str, Spec | None]):
    """In place of `out_specs`, one Spec per result, and per argument that was changed.

    >>> SpecsByName({"model.w (changed)": Spec.parse("data")})["model.w (changed)"]
    P('data')
    """


class Results:
    """What a trace finds out about the results.

    Attributes:
        program: what is traced.
        tree: how they form what the function returns, a `Returned`.
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

        `nnx.jit` returns its states before the result. `eqx.filter_jit` returns a
        number of its own first, and drops what is no array.
        """
        fn = self.program.fn
        bound = fn if isinstance(fn, BoundCall) else None
        leaves, tree = leaves_with_paths(result)
        filters = is_of(fn if bound is None else bound.fn, "equinox", "_JitWrapper")
        # What is no array stays beside the results where the function is not under a
        # jit that returns it as an array; equinox returns numbers as they are, too.
        loose = filters or (bound is not None and not bound.compiles)
        others: dict[int, Any] = {}
        taken: set[str] = set()
        self._own, own, ordered = [], [], []
        for i, (path, leaf, _) in enumerate(leaves):
            # Two leaves may read alike, as of the keys "a.b", and "b" in "a".
            name = unique(path_name("output", path), taken)
            taken.add(name)
            self._own.append(name)
            number = is_number(leaf) and not filters
            if loose and not is_array(leaf) and not number:
                others[i] = leaf
            else:
                own.append((name, leaf))
        if filters:
            ordered.append((unique("marker of filter_jit", taken), jnp.array(0)))
        for name, value in changed.items():
            ordered.append((unique(f"{name} (changed)", taken), value))
        ordered += own
        self.tree = Returned(tree, others, ("",) * filters + tuple(changed))
        if bound is not None:
            self.note = bound.change_note(list(changed))
        self.names = [name for name, _ in ordered]
        self.shapes = [getattr(leaf, "shape", ()) for _, leaf in ordered]
        return tuple(leaf for _, leaf in ordered)

    def specs(self) -> tuple[Spec | None, ...]:
        """One Spec for each result, from the program's `out_specs`, checked against it.

        Raises:
            ProgramError: for specs that are no prefix of the results, or do not fit one
                of them.
        """
        by_name = self.program.out_specs
        # Specs are for what the function returns; what it changed has none.
        if not isinstance(by_name, SpecsByName):
            full = self.tree.tree.unflatten(range(len(self._own)))
            given = spread(by_name, full, "out_specs")
            by_name = dict(zip(self._own, given, strict=True))
        specs = [as_spec(by_name.get(name)) for name in self.names]
        for name, spec, shape in zip(self.names, specs, self.shapes, strict=True):
            try:
                if spec is not None:
                    lay_out(shape, spec, self.program.mesh)
            except ValueError as error:
                raise ProgramError(f"{name}: {error}") from None
        return tuple(specs)
