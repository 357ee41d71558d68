"""trace() traces a program's function with the requested shardings.

The function is traced as `jax.eval_shape` would trace it, in the context of the user's
own call. If jax refuses that, other contexts are tried. If Python code needs the value
of a number, numbers become static.

jax also compares the device kinds of two meshes: an abstract mesh differs from the same
axes on CPUs, and `shard_map(mesh=...)` refuses it. The plan is the same for both, so
such a program is traced again with the mesh that it names in context.

Traced functions take and return flat leaves, so that programs with the same lowered
text share an executable, for any argument and result pytrees.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from shardviz.base.backend import jax_compat
from shardviz.base.errors import ProgramError, ShardvizError
from shardviz.base.mesh_context import MeshContext
from shardviz.base.partition_spec import Spec, memory_of
from shardviz.base.typing import UserFunction
from shardviz.programs.backend.arguments import unique
from shardviz.programs.backend.bridge import jax_dtype, named_sharding, to_jax
from shardviz.programs.backend.build_program import Results
from shardviz.programs.backend.calls import BoundCall
from shardviz.programs.backend.constraint_calls import traced_with_calls
from shardviz.programs.backend.devices import lowering_without_backend
from shardviz.programs.backend.effect_rules import effect_names
from shardviz.programs.backend.failures import in_words
from shardviz.programs.backend.jaxprs import mesh_of_value
from shardviz.programs.backend.mesh_context import (
    NO_MESH,
    as_in,
    context_of,
    in_context,
    in_rules,
    in_users_context,
    is_set,
    other_mesh_note,
    users_mesh,
)
from shardviz.programs.backend.named_meshes import (
    MeshConflict,
    noting_conflict,
    refuse_other_axes,
    refuse_other_device_order,
    refuse_other_devices,
)
from shardviz.programs.backend.pmapped import check_devices
from shardviz.programs.backend.shard_maps import UnboundShardMaps, unbound
from shardviz.programs.notes import MeshNeeded, NoArrayArguments, StaticNumbers
from shardviz.programs.program import Program


@dataclass(frozen=True, eq=False)
class Output:
    """A leaf of the result: its name, global shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True, eq=False)
class Traced:
    """A traced program.

    Attributes:
        program: the program that was traced.
        mesh: the jax mesh it was traced on.
        stage: jax's own `Traced`.
        effects: names of its effects.
        outputs: one Output per leaf of the result.
        out_tree: `unflatten` rebuilds the function's result from the leaves.
        seconds: tracing time.
        out_specs: one Spec per leaf of the result; None if the compiler chooses.
        notes: notes for the user on how it was traced.
        around: enters the context in which it was traced.
        other_mesh: True if the mesh in the user's context differs from the program's.
    """

    program: Program
    mesh: Mesh | AbstractMesh
    stage: Any
    effects: tuple[str, ...]
    outputs: tuple[Output, ...]
    out_tree: Any
    seconds: float
    out_specs: tuple[Spec | None, ...] = ()
    notes: tuple[str, ...] = ()
    around: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    other_mesh: bool = False

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """Enters the context in which the program was traced, to lower it there.

        For an abstract mesh, jax also needs a mesh in context.
        """
        if isinstance(self.mesh, AbstractMesh):
            around = self.around() if self.other_mesh else in_context(self.mesh)
            with around, lowering_without_backend():
                yield
        else:
            with self.around():
                yield


def trace(program: Program, mesh: Mesh | AbstractMesh) -> Traced:
    """Traces a program on a jax mesh, in the context of the user's own call.

    Adds a note if tracing needs a mesh in context, or static arguments (as in
    `if train:`).

    Raises:
        ProgramError: if an array cannot be laid out, output specs don't fit, a mesh in
            the program has the same devices in another order, or a function under
            `jax.pmap` needs more devices than there are.
        Exception: any exception that the function raises.
    """
    fn = program.fn
    check_devices(fn.fn if isinstance(fn, BoundCall) else fn, program.mesh)
    attempts: list[tuple[Any, tuple[str, ...]]] = [(fn, ())]
    if isinstance(fn, BoundCall):
        # First make only bools and ints static, so that floats stay arrays if possible.
        for types in ((bool, int), (bool, int, float, complex)):
            fixed, names = fn.with_static_numbers(types)
            if names:
                attempts.append((fixed, (str(StaticNumbers(names)),)))
    first: Exception | None = None
    with in_rules(program.context):
        for called, notes in attempts:
            try:
                traced = _trace_where_accepted(program.replace(fn=called), mesh)
            except _READS_NUMBERS as error:
                # Keep the first error, because the user's own call raises it.
                first = first or error
                continue
            return replace(traced, program=program, notes=(*notes, *traced.notes))
    assert first is not None
    raise first


# jax raises these if Python code needs the value of a traced number.
_READS_NUMBERS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerIntegerConversionError,
)


@dataclass(frozen=True, eq=False)
class _TracingContext:
    """A context to trace a program in.

    Attributes:
        mesh: jax mesh of the arguments.
        compared: the mesh that jax compares with meshes named in the function.
        enter: enters the context.
        copies_shard_maps: True to trace a copy of each `shard_map` without a mesh,
            because jax binds the user's own to the first mesh it is called on.
    """

    mesh: Mesh | AbstractMesh
    compared: AbstractMesh
    enter: Callable[[], AbstractContextManager[None]]
    copies_shard_maps: bool = False


@dataclass(frozen=True, eq=False)
class _FailedWithoutMesh:
    """Tracing fails in the user's context, which has no mesh.

    Attributes:
        error: the exception.
        asks_for_mesh: True if the error's message asks for a mesh in context. False for
            example if an operation needs Explicit axes.
    """

    error: Exception
    asks_for_mesh: bool


@dataclass(frozen=True, eq=False)
class _NamesOtherMesh:
    """jax refuses the mesh in context, because the function names another mesh.

    Attributes:
        error: the exception that jax raised.
        conflict: both meshes.
        named: the mesh that the function names.
    """

    error: ValueError
    conflict: MeshConflict
    named: AbstractMesh


@dataclass(frozen=True, eq=False)
class _Failed:
    """Tracing fails in a context, but not because the function names another mesh."""

    error: Exception


def _trace_where_accepted(program: Program, mesh: Mesh | AbstractMesh) -> Traced:
    """Traces a program in the first of these contexts that jax accepts.

    1. The user's own context, if it has no mesh and the program has arrays.
    2. The program's mesh.
    3. The mesh that the function names, if it has the axes of the program's mesh.
    4. No mesh, if the function names several meshes.

    If the user's context has another mesh and the program's mesh was not given, only
    the user's context is tried.
    """
    users = context_of(program.context)
    notes = other_mesh_note(users, program.mesh)
    if program.mesh_from != "given":
        refuse_other_devices(users, program.mesh)
        if notes:
            return _with_other_mesh(program, mesh, users)
    mesh_in_force: AbstractMesh | None = None
    without_mesh: _FailedWithoutMesh | None = None
    if is_set(users):
        mesh_in_force = users_mesh(users)
        if isinstance(mesh, AbstractMesh) and mesh_in_force is not None and not notes:
            # This mesh has a device kind, which jax compares.
            mesh = mesh_in_force
    # jax takes the mesh from the arguments; without arrays it must be in context.
    elif not program.arrays:
        notes = (str(NoArrayArguments()),)
    else:
        outcome = _trace_without_mesh(program, mesh, users, notes)
        if isinstance(outcome, Traced):
            return outcome
        without_mesh = outcome
    outcome = _trace_with_mesh(program, mesh, mesh_in_force, notes)
    if (
        isinstance(outcome, _Failed)
        and users.current is not None
        and mesh.abstract_mesh == mesh_in_force
        and jax_compat.asks_for_mesh(outcome.error)
    ):
        # For example, `jax.device_put` with a PartitionSpec needs a mesh with devices.
        enter = functools.partial(in_users_context, users)
        context = _TracingContext(mesh, mesh.abstract_mesh, enter)
        outcome = _attempt(program, context, notes)
    if isinstance(outcome, _NamesOtherMesh):
        refuse_other_axes(outcome.conflict, program.mesh)
        outcome = _trace_with_named_mesh(
            program, mesh, outcome.named, mesh_in_force, notes
        )
    if isinstance(outcome, Traced):
        if without_mesh is None:
            return outcome
        needed = str(MeshNeeded(in_words(without_mesh.error)))
        return replace(outcome, notes=(needed, *outcome.notes))
    if (
        without_mesh is None
        or without_mesh.asks_for_mesh
        or isinstance(outcome.error, ShardvizError)
    ):
        raise outcome.error
    # A mesh in context does not help, so raise the error of the user's own call.
    raise without_mesh.error from None


def _trace_without_mesh(
    program: Program,
    mesh: Mesh | AbstractMesh,
    users: MeshContext,
    notes: tuple[str, ...],
) -> Traced | _FailedWithoutMesh:
    """Traces a program in the user's context, which has no mesh."""
    enter = functools.partial(as_in, users, mesh, program.mesh)
    context = _TracingContext(mesh, mesh.abstract_mesh, enter)
    outcome = _attempt(program, context, notes)
    if isinstance(outcome, Traced):
        if not _asks_when_lowered(outcome):
            return outcome
        # The error that jax would raise at lowering.
        error = ValueError("Please enter your `jit` into a mesh context.")
        return _FailedWithoutMesh(error, asks_for_mesh=True)
    if isinstance(outcome.error, ShardvizError):
        raise outcome.error
    return _FailedWithoutMesh(outcome.error, jax_compat.asks_for_mesh(outcome.error))


def _trace_with_mesh(
    program: Program,
    mesh: Mesh | AbstractMesh,
    mesh_in_force: AbstractMesh | None,
    notes: tuple[str, ...],
) -> Traced | _NamesOtherMesh | _Failed:
    """Traces a program with the program's mesh in context."""
    enter = functools.partial(in_context, mesh)
    # If the mesh is already in force, jax binds shard_maps as in the user's call.
    copies = mesh.abstract_mesh != mesh_in_force
    context = _TracingContext(mesh, mesh.abstract_mesh, enter, copies)
    return _attempt(program, context, notes)


def _trace_with_named_mesh(
    program: Program,
    mesh: Mesh | AbstractMesh,
    named: AbstractMesh,
    mesh_in_force: AbstractMesh | None,
    notes: tuple[str, ...],
) -> Traced | _NamesOtherMesh | _Failed:
    """Traces a program with the mesh that its function names in context, or without a
    mesh if it names several."""
    on = named if isinstance(mesh, AbstractMesh) else mesh
    outcome: Traced | _NamesOtherMesh | _Failed
    for entered in (named, NO_MESH):
        enter = functools.partial(in_context, entered)
        context = _TracingContext(on, named, enter, entered != mesh_in_force)
        outcome = _attempt(program, context, notes)
        if not isinstance(outcome, _NamesOtherMesh):
            break
    return outcome


def _attempt(
    program: Program, context: _TracingContext, notes: tuple[str, ...]
) -> Traced | _NamesOtherMesh | _Failed:
    """Traces a program in a context, or returns why that fails.

    Raises:
        jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError: if
            Python code needs a traced number, which fails in every context.
    """
    conflict = MeshConflict(context.compared)
    try:
        return _traced(program, context, conflict, notes)
    except _READS_NUMBERS:
        raise
    except ValueError as error:
        if conflict.named is not None:
            return _NamesOtherMesh(error, conflict, conflict.named)
        return _Failed(error)
    # The user's function may raise anything. The caller re-raises the error or tries
    # another context.
    except Exception as error:  # noqa: BLE001
        return _Failed(error)


def _with_other_mesh(
    program: Program, mesh: Mesh | AbstractMesh, users: MeshContext
) -> Traced:
    """Traces a program in the user's context, whose mesh isn't the arrays' mesh.

    Errors are not caught, because the user's own call raises them, too.
    """
    if isinstance(mesh, AbstractMesh) and program.mesh.concrete:
        # Adds the device kind, which jax compares with that of the mesh in context.
        mesh = to_jax(program.mesh).abstract_mesh
    enter = functools.partial(in_users_context, users)
    context = _TracingContext(mesh, mesh.abstract_mesh, enter)
    traced = _traced(program, context, MeshConflict(context.compared), ())
    return replace(traced, other_mesh=True)


def _asks_when_lowered(traced: Traced) -> bool:
    """True if lowering needs a mesh: results on Explicit axes depend on no argument."""
    jaxpr = traced.stage.jaxpr.jaxpr
    meshes = {mesh_of_value(variable.aval) for variable in jaxpr.outvars}
    if "Explicit" not in str(meshes):
        return False
    used = {id(v) for v in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):
        if equation.effects or not used.isdisjoint(map(id, equation.outvars)):
            used |= {id(v) for v in equation.invars}
    return used.isdisjoint(map(id, jaxpr.invars))


def _traced(
    program: Program,
    context: _TracingContext,
    conflict: MeshConflict,
    notes: tuple[str, ...],
) -> Traced:
    """Traces a program in a context; `conflict` records the mesh that jax refuses."""
    begun, mesh = time.perf_counter(), context.mesh
    arguments = argument_structs(program, mesh)
    results = Results(program)
    donated = donated_leaves(program)

    def staged() -> tuple[Any, tuple[Spec | None, ...]]:
        flat = noting_conflict(_flat(program, results), conflict)
        stage = jax.jit(flat, donate_argnums=donated).trace(*arguments)
        specs = results.specs()
        if any(spec is not None for spec in specs):
            # The number of outputs is known only after tracing. Tracing again is cheap,
            # because jax has cached the trace of `flat`.
            outs = tuple(s and named_sharding(mesh, s, memory_of(s)) for s in specs)
            jitted = jax.jit(flat, donate_argnums=donated, out_shardings=outs)
            stage = jitted.trace(*arguments)
        return stage, specs

    listeners = [UnboundShardMaps()] if context.copies_shard_maps else []
    with context.enter():
        stage, specs = traced_with_calls(staged, lambda s: s[0].jaxpr, listeners)
    refuse_other_device_order(stage.jaxpr, program.mesh, mesh)
    outputs = []
    for name, info in zip(results.names, jax.tree.leaves(stage.out_info), strict=True):
        outputs.append(Output(name, tuple(info.shape), info.dtype))
    return Traced(
        program=program,
        mesh=mesh,
        stage=stage,
        effects=effect_names(stage.jaxpr),
        outputs=tuple(outputs),
        out_tree=results.tree,
        seconds=time.perf_counter() - begun,
        out_specs=specs,
        notes=(*notes, results.note) if results.note else notes,
        around=context.enter,
    )


def argument_structs(
    program: Program, mesh: Mesh | AbstractMesh
) -> list[jax.ShapeDtypeStruct]:
    """Returns one ShapeDtypeStruct per array, with its requested sharding over `mesh`.

    Arrays whose sharding the compiler chooses have no sharding.

    Raises:
        ProgramError: if an array cannot be laid out; names the first one.
    """
    if program.problems:
        raise ProgramError(program.problems[0])
    structs, free = [], left_to_compiler(program)
    for position, request in enumerate(program.requests):
        array, spec = request.array, placed_spec(request.spec or Spec())
        try:
            dtype = jax_dtype(array.dtype)
        except ProgramError as error:
            raise ProgramError(f"{array.name}: {error}") from None
        options: dict[str, Any] = {"weak_type": array.weak_type}
        if position not in free:
            options["sharding"] = named_sharding(mesh, spec, array.memory_kind)
        structs.append(jax.ShapeDtypeStruct(array.shape, dtype, **options))
    return structs


def left_to_compiler(program: Program) -> frozenset[int]:
    """Returns the positions of arrays whose sharding the compiler chooses.

    These are the uncommitted arrays without a spec or rules, provided that jax learns
    the mesh from `jax.set_mesh` or, if all axes are Auto, from another array,
    `out_specs` or the function. If jax does not learn the mesh, it would use one
    device. We then replicate these arrays, and this function returns no positions.
    """
    context, set_by_user = program.context, False
    if context is not None and context.in_force == "set_mesh":
        # The abstract form of the mesh has no device ids.
        set_by_user = program.mesh in (context.current, context.mesh)
    if not set_by_user and set(program.mesh.axis_types) != {"Auto"}:
        return frozenset()
    on_mesh = set_by_user or program.mesh_from == "function"
    on_mesh = on_mesh or jax.tree.leaves(program.out_specs) != []
    free = set()
    for i, array in enumerate(program.arrays):
        ruled = array.logical is not None and program.rules is not None
        if array.uncommitted and array.spec is None and not ruled:
            free.add(i)
        elif array.rank:
            on_mesh = True
    return frozenset(free if on_mesh else ())


def placed_spec(spec: Spec) -> Spec:
    """Returns the spec to place an argument with, without unconstrained dimensions."""
    return spec.with_dims(spec.dims)


def donated_leaves(program: Program) -> tuple[int, ...]:
    """Returns the positions of leaves whose memory may be reused."""
    donate = tuple(program.options.get("donate", ()))
    if program.tree is not None and donate:
        sizes = [child.num_leaves for child in program.tree.children()]
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        donate = tuple(starts[a] + i for a in donate for i in range(sizes[a]))
    return donate


def _flat(program: Program, results: Results) -> UserFunction:
    """Returns a new function that takes and returns flat leaves.

    jax caches traces by function, so it would miss changed values in the closure of a
    function that it has traced before.
    """
    fn, tree = program.fn, program.tree

    def flat(*leaves: Any) -> tuple[Any, ...]:
        arguments = leaves if tree is None else tree.unflatten(leaves)
        if isinstance(fn, BoundCall):
            return results.take(*fn.call(arguments))
        return results.take(unbound(fn)(*arguments), {})

    return named_as(program, flat)


def named_as(program: Program, flat: UserFunction) -> UserFunction:
    """Returns a function of leaves, named like the program's function and arrays."""

    def named(*leaves: Any) -> Any:
        return flat(*leaves)

    fn = program.fn.fn if isinstance(program.fn, BoundCall) else program.fn
    functools.update_wrapper(named, fn, updated=())
    # jax shows argument names in error messages, XLA in operation metadata.
    only = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(name, only) for name in flat_names(program)]
    named.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return named


def flat_names(program: Program) -> list[str]:
    """Returns the arrays' names in compiled modules, which are valid Python names.

    >>> from shardviz.base.array_spec import ArraySpec
    >>> from shardviz.base.mesh import make_mesh
    >>> flat_names(Program(abs, (ArraySpec("layers[0].w", (8,)),), make_mesh(data=4)))
    ['layers_0_w']
    """
    # XLA copies these names into operation metadata.
    names = [re.sub(r"\W+", "_", a.name).strip("_") or "a" for a in program.arrays]
    used_names: set[str] = set()
    for i, name in enumerate(names):
        names[i] = unique(name if name.isidentifier() else f"a_{name}", used_names)
        used_names.add(names[i])
    return names
