"""Builds a Program from a function and its call, and reads the results of its trace.

`Results` keeps the results in the order in which jax returns them. XLA combines
collectives depending on the order of the results that need them, so another order would
change the compiled program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from shardviz.axis_rules.array_tree import Names
from shardviz.axis_rules.dialects import NameDialect
from shardviz.axis_rules.matching import without_size_one
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
from shardviz.base.typing import PyTree, SpecLike, UserFunction
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
from shardviz.programs.backend.calls import (
    BoundCall,
    Call,
    is_of,
    jit_settings_of,
    read_call,
)
from shardviz.programs.backend.failures import in_words
from shardviz.programs.backend.jaxprs import meshes_in
from shardviz.programs.backend.mesh_context import mesh_context
from shardviz.programs.notes import JitDiffers, JitStays, JitUnreadable
from shardviz.programs.program import Program, function_name

#: The structure of a pytree. jax exports this class as a value, not as a type.
PyTreeDef: TypeAlias = Any

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr


def build_program(
    fn: UserFunction,
    args: Sequence[PyTree],
    mesh: MeshSpec | None,
    rules: Rules | None,
    dialect: NameDialect,
    in_specs: PyTree = None,
    out_specs: PyTree = None,
    donate: object = (),
    name: str = "",
    keywords: Mapping[str, PyTree] | None = None,
    axis_names: Names | None = None,
    jit_arguments: Mapping[str, object] | None = None,
) -> Program:
    """Builds a Program from a function and its arguments, as `sv.program` takes them.

    If the function is under `jax.jit`, its shardings, donation and options are used,
    unless `in_specs`, `out_specs` or `donate` replace them.

    Raises:
        ProgramError: if the arguments don't fit together.
    """
    warn_if_untested()
    added = jit_settings_of(fn, jit_arguments or {})
    call = read_call(fn, args, keywords or {}, added)
    settings, context = call.jitted.settings, mesh_context()
    # Names of the settings of jax.jit that differ from `jit_arguments`, and stay.
    stays = list(call.differing)
    in_shardings, out_shardings = added.in_shardings, added.out_shardings
    if settings.in_shardings is not None:
        if _differ(settings.in_shardings, in_shardings):
            stays.append("in_shardings")
        in_shardings = None
    if settings.out_shardings is not None:
        if _differ(settings.out_shardings, out_shardings):
            stays.append("out_shardings")
        out_shardings = None
    if in_shardings is not None:
        in_specs = in_shardings
    if out_shardings is not None:
        out_specs = out_shardings
    arrays, tree, on = program_arrays(
        call.arguments,
        call.fn,
        # jax.pmap creates a mesh from the dimension that it maps over.
        mesh if call.own_mesh is None else call.own_mesh,
        rules,
        dialect=dialect,
        names=call.names,
        axis_names=axis_names,
    )
    jit_mesh = mesh_of_shardings((settings.in_shardings, settings.out_shardings))
    specs_mesh = mesh_of_shardings((in_specs, out_specs))
    on = on or jit_mesh or specs_mesh
    meshes = {"given": mesh, "arrays": on, "context": context.mesh}
    mesh, mesh_from = _first_mesh(call, meshes) or _mesh_in(call, arrays, tree)
    if mesh_from != "given":
        _refuse_single_devices(call, arrays, mesh)
    notes: list[str] = []
    if call.jitted.unreadable:
        notes.append(str(JitUnreadable(call.jitted.unreadable)))
    if stays:
        notes.append(str(JitStays(tuple(stays))))
    if rules is None:
        notes += without_rules_note(arrays, call.arguments)
    placed = list(arrays)
    if in_specs is not None:
        specs = _for_arguments(in_specs, call)
        if len(call.names) == 1 and not isinstance(specs, (tuple, list)):
            specs = (specs,)
        word = "in_specs" if in_shardings is None else "in_shardings"
        for i, leaf in enumerate(spec_leaves(specs, tree, word)):
            check_mesh(leaf, mesh, f"{word} of {arrays[i].name}")
            if in_shardings is not None:
                _refuse_other_sharding(placed[i], leaf, mesh, word)
            placed[i] = with_spec(placed[i], leaf)
    differing = []  # settings that differ between jax.jit and the caller
    if jit_mesh is not None and [*jit_mesh.shape.items()] != [*mesh.shape.items()]:
        differing.append("mesh")
    # jax.jit's shardings are for arrays that have no other sharding.
    leaves = leaves_with_paths(call.arguments)[0]
    for i, leaf in enumerate(_jit_specs(call, tree)):
        array, spec = placed[i], as_spec(leaf)
        if array is arrays[i] and not isinstance(leaves[i][1], ArraySpec):
            _refuse_other_sharding(array, leaf, mesh, "in_shardings of jax.jit")
        requested = request(array, mesh, rules, dialect).spec
        if array.spec is None and (array.logical is None or rules is None):
            placed[i] = with_spec(array, leaf)
        elif (
            spec is not None
            and requested is not None
            and not requested.equivalent(spec)
        ):
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
    has_context = context.in_force != "none" or bool(context.rules)
    return Program(
        fn=call.fn,
        arrays=tuple(placed),
        mesh=mesh,
        rules=rules,
        dialect=dialect,
        tree=tree,
        out_specs=jit_outs if outs is None else outs,
        options=options,
        name=name or function_name(fn),
        notes=tuple(notes),
        # If None, the context of a later call is used.
        context=context if has_context else None,
        mesh_from=mesh_from,
    )


def _differ(jitted: PyTree, shardings: PyTree) -> bool:
    """True if shardings are given that differ from the shardings of `jax.jit`."""
    if shardings is None:
        return False
    return spec_tree(jitted, None) != spec_tree(shardings, None)


def _refuse_other_sharding(
    array: ArraySpec, leaf: SpecLike, mesh: MeshSpec, word: str
) -> None:
    """Raises if `in_shardings` differ from the sharding of an array, as in jax.

    Args:
        array: the array.
        leaf: its sharding in `in_shardings`.
        mesh: the mesh of both.
        word: what to call the `in_shardings` in the message.
    """
    spec = as_spec(leaf)
    if spec is None or array.spec is None:
        return
    if not without_size_one(spec, mesh).equivalent(without_size_one(array.spec, mesh)):
        raise ProgramError(
            f"The {word} split {array.name} as {spec}, but the array's own sharding is"
            f" {array.spec}. jax refuses such a call: leave one of the two out."
        )


def _jit_specs(call: Call, tree: PyTreeDef) -> list[SpecLike]:
    """Returns one sharding per array from jax.jit; `[]` if jax.jit has no shardings."""
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
    """Returns the first mesh and its origin (see `Program.mesh_from`), or None.

    Args:
        call: the call that the program is built from.
        meshes: origin -> mesh: the given mesh, the mesh of the arrays or of `jax.jit`,
            and the mesh in context.
    """
    given_mesh, pmap_mesh = meshes["given"], call.own_mesh
    if pmap_mesh is not None:
        if given_mesh is None:
            return pmap_mesh, "given"
        if given_mesh.shape != pmap_mesh.shape:
            raise ProgramError(
                f"A function under jax.pmap has a mesh of its own, ({pmap_mesh}), made of"
                f" the dimension that it maps over; got ({given_mesh}). Leave mesh= out,"
                f" or give mesh='{pmap_mesh}'."
            )
    for mesh_from, mesh in meshes.items():
        if mesh is not None:
            return mesh, mesh_from
    for passed in call.meshes:
        mesh = passed if isinstance(passed, MeshSpec) else adopt_mesh(passed)
        return mesh, "given"
    return None


def _mesh_in(
    call: Call, arrays: Sequence[ArraySpec], tree: PyTreeDef
) -> tuple[MeshSpec, str]:
    """Traces a function, and returns the first mesh that it names.

    Raises:
        ProgramError: if the function names no mesh, or cannot be traced without one.
    """
    jaxpr, error = _traced_without_mesh(call.fn, arrays, tree)
    for named, _ in () if jaxpr is None else meshes_in(jaxpr):
        mesh = adopt_mesh(named)
        # An abstract mesh doesn't place the program on devices.
        return mesh, "function" if mesh.concrete else "given"
    if error is not None:
        raise ProgramError(
            f"jax could not trace the function. {in_words(error).rstrip('.')}. If the"
            " cause is a missing mesh, give mesh=sv.mesh(data=4, model=2): no array's"
            " sharding brings one, and jax.set_mesh set none."
        )
    raise ProgramError(
        "A program needs a mesh; got none: no array's sharding brings one, jax.set_mesh"
        " set none, and the function names none. Give mesh=sv.mesh(data=4, model=2)."
    )


def _refuse_single_devices(
    call: Call, arrays: Sequence[ArraySpec], mesh: MeshSpec
) -> None:
    """Raises if an array is on one device while the mesh has several, as jax does.

    Raises:
        ProgramError: names the first such array.
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


def _traced_without_mesh(
    fn: Callable[..., PyTree],
    arrays: Sequence[ArraySpec],
    tree: PyTreeDef,
) -> tuple[ClosedJaxpr | None, Exception | None]:
    """Traces a function without a mesh; returns its jaxpr, or jax's first error."""
    calls, first_error = [fn], None
    if isinstance(fn, BoundCall):
        calls.append(fn.with_static_numbers((bool, int, float, complex))[0])
    for call in calls:

        def arrays_of_result(
            *leaves: Any, call: Callable[..., PyTree] = call
        ) -> list[Any]:
            result = jax.tree.leaves(call(*tree.unflatten(leaves)))
            return [leaf for leaf in result if is_array(leaf)]

        try:
            return jax.make_jaxpr(arrays_of_result)(*map(to_jax, arrays)), None
        except Exception as error:  # noqa: BLE001  a user's function may raise anything
            first_error = first_error or error
    return None, first_error


def _for_arguments(in_specs: PyTree, call: Call) -> PyTree:
    """Selects the entries of `in_specs` for arguments that hold arrays."""
    if not isinstance(call.fn, BoundCall) or not isinstance(in_specs, (tuple, list)):
        return in_specs
    specs: list[PyTree] = [None] * len(call.arguments)
    with_arrays = [position for position in call.positions if position is not None]
    # `in_specs` may have one entry per argument, or one per argument with arrays.
    positions = call.positions if len(in_specs) == len(call.positions) else with_arrays
    if len(in_specs) != len(positions):
        return in_specs
    for position, spec in zip(positions, in_specs, strict=True):
        if position is not None:
            specs[position] = spec
    return tuple(specs)


def _donated(donate: object, call: Call) -> tuple[int, ...]:
    """Converts donated positions to indices among the arguments with arrays."""
    count = len(call.positions)
    candidates: Iterable[object] = (donate,)
    if isinstance(donate, Iterable) and not isinstance(donate, str):
        candidates = limited(donate, count, "The donated arguments", ProgramError)
    donated = []
    for candidate in candidates:
        position = check_size(candidate, "A donated position", ProgramError)
        if not 0 <= position < count:
            raise ProgramError(
                f"Argument {shown(position, 30)} cannot be donated: there are"
                f" {plural(count, 'argument')}, counted from 0."
            )
        # Static arguments have no memory to reuse.
        if call.positions[position] is not None:
            donated.append(call.positions[position])
    return tuple(donated)


@dataclass(frozen=True, eq=False)
class Returned:
    """Rebuilds the function's result from the arrays that its program returns.

    Attributes:
        tree: structure of the result.
        non_arrays: leaves that aren't arrays, by position in `tree`.
        before: names of the arguments changed in place, whose new values are returned
            before the result; `""` for the marker of filter_jit.
    """

    tree: PyTreeDef
    non_arrays: Mapping[int, object] = field(default_factory=dict)
    before: tuple[str, ...] = ()

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Returns the result, and new values of changed arguments by name, if any."""
        arrays = iter(leaves[len(self.before) :])
        filled = []
        for i in range(self.tree.num_leaves):
            filled.append(self.non_arrays[i] if i in self.non_arrays else next(arrays))
        changed = dict(zip(self.before, leaves, strict=False))
        # Drop the marker that eqx.filter_jit adds.
        changed.pop("", None)
        result = self.tree.unflatten(filled)
        return (result, changed) if changed else result


class SpecsByName(dict[str, Spec | None]):
    """One Spec per result and per changed argument, for use as `out_specs`.

    >>> SpecsByName({"model.w (changed)": Spec.parse("data")})["model.w (changed)"]
    P('data')
    """


class Results:
    """The results of a program, filled in while it is traced.

    Attributes:
        program: the program.
        tree: rebuilds the function's result from its arrays.
        names: names of the results.
        shapes: shapes of the results.
        note: a note for the user about the results, or `""`.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tree = Returned(jax.tree.structure(None))
        self.names: list[str] = []
        self.shapes: list[tuple[int, ...]] = []
        self.note = ""
        self._names_of_leaves: list[str] = []

    def take(self, result: Any, changed: Mapping[str, Any]) -> tuple[Any, ...]:
        """Returns the arrays in the function's result and in arguments that it changed.

        `nnx.jit` returns its states before the result. `eqx.filter_jit` first returns
        an extra number, and drops leaves that aren't arrays.
        """
        fn = self.program.fn
        bound = fn if isinstance(fn, BoundCall) else None
        leaves, tree = leaves_with_paths(result)
        filters = is_of(fn if bound is None else bound.fn, "equinox", "_JitWrapper")
        # Store leaves that aren't arrays separately, unless a jit around the function
        # converts them to arrays. equinox's jit leaves numbers unconverted, too.
        keeps_apart = filters or (bound is not None and not bound.compiles)
        non_arrays: dict[int, object] = {}
        used_names: set[str] = set()
        self._names_of_leaves, arrays, ordered = [], [], []
        for i, (path, leaf, _) in enumerate(leaves):
            # Two leaves may get the same name: {"a.b": x} and {"a": {"b": x}}.
            name = unique(path_name("output", path), used_names)
            used_names.add(name)
            self._names_of_leaves.append(name)
            is_result = is_array(leaf) or (is_number(leaf) and not filters)
            if keeps_apart and not is_result:
                non_arrays[i] = leaf
            else:
                arrays.append((name, leaf))
        if filters:
            ordered.append((unique("marker of filter_jit", used_names), jnp.array(0)))
        for name, value in changed.items():
            ordered.append((unique(f"{name} (changed)", used_names), value))
        ordered += arrays
        self.tree = Returned(tree, non_arrays, ("",) * filters + tuple(changed))
        if bound is not None:
            self.note = bound.change_note(list(changed))
        self.names = [name for name, _ in ordered]
        self.shapes = [getattr(leaf, "shape", ()) for _, leaf in ordered]
        return tuple(leaf for _, leaf in ordered)

    def specs(self) -> tuple[Spec | None, ...]:
        """Returns one Spec per result from the program's `out_specs`.

        Raises:
            ProgramError: if `out_specs` isn't a prefix of the results, or a spec
                doesn't fit.
        """
        by_name = self.program.out_specs
        # `out_specs` describe the function's result; changed arguments have no specs.
        if not isinstance(by_name, SpecsByName):
            full = self.tree.tree.unflatten(range(len(self._names_of_leaves)))
            specs_of_leaves = spread(by_name, full, "out_specs")
            by_name = dict(zip(self._names_of_leaves, specs_of_leaves, strict=True))
        specs = [as_spec(by_name.get(name)) for name in self.names]
        for name, spec, shape in zip(self.names, specs, self.shapes, strict=True):
            try:
                if spec is not None:
                    lay_out(shape, spec, self.program.mesh)
            except ValueError as error:
                raise ProgramError(f"{name}: {error}") from None
        return tuple(specs)
