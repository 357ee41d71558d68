"""trace() -> Traced: the function of a program, traced by jax with the requested shardings.

A program that is traced on an abstract mesh has no device order, so jax accepts there what it
refuses on real devices. The checks here find such programs first.

jax also compares the kind of device that a mesh is made for: a mesh of axes alone is not equal to
the same axes on CPUs, and `shard_map(mesh=...)` refuses it. That makes no difference to a plan, so
such a program is traced again with its own mesh in context.

Programs are traced flat: leaves in, leaves out. So an executable can serve every program with the
same text, whatever trees its arguments and results form.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AbstractMesh, Mesh

from shardviz.core.backend.arguments import unique
from shardviz.core.backend.bridge import abstract_mesh, adopt_spec, jax_dtype, named_sharding
from shardviz.core.backend.build_program import Results, SpecsByName
from shardviz.core.backend.calls import BoundCall
from shardviz.core.backend.constraint_calls import traced_with_calls
from shardviz.core.backend.failures import in_words, source_of
from shardviz.core.backend.jaxprs import (
    DEBUG_CALLS,
    device_meshes_in,
    effect_names,
    mesh_of_value,
    meshes_in,
    rewritten,
    users_line,
    with_inner,
    without_debug_effects,
    without_shardings,
)
from shardviz.core.backend.mesh_context import (
    NO_MESH,
    as_in,
    context_of,
    in_context,
    in_rules,
    is_set,
    other_mesh_note,
    users_mesh,
    wants_mesh,
)
from shardviz.core.backend.pmapped import check_devices
from shardviz.core.backend.shard_maps import UnboundShardMaps, unbound
from shardviz.core.backend.watching import CallListener
from shardviz.core.errors import ProgramError, ShardvizError
from shardviz.core.format import listed, plural
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec, memory_of
from shardviz.core.program.program import Program

MAX_SHOWN = 16


def refuse_other_device_order(jaxpr: Any, mesh: MeshSpec) -> None:
    """Refuses a program that names the devices of its mesh in another order than the mesh.

    Raises:
        ProgramError: with both orders, how they differ, and the source line of the second.
    """
    for named, equation in device_meshes_in(jaxpr):
        own = mesh.device_ids.ravel().tolist()  # here: most programs name no mesh, however large
        other = [d.id for d in named.devices.flat]
        if other != own and sorted(other) == sorted(own):
            raise ProgramError(
                _two_orders("The program's mesh", own, naming_operation(equation), other)
            )


def _two_orders(first: str, order: list[int], second: str, other: list[int]) -> str:
    """The sentence on two device orders: which mesh has which, and what to do."""
    return (
        f"Two meshes hold the same {plural(len(order), 'device')} in another order. {first}:"
        f" {_shown(order)}; {second}: {_shown(other)}{transposed(order, other)}. A program runs on"
        " one order of devices: make both meshes from one array of devices, or move the array"
        " first with jax.device_put."
    )


def naming_operation(equation: Any) -> str:
    """The operation that names a mesh, with its source line where jax kept one.

    >>> import jax
    >>> naming_operation(jax.make_jaxpr(jax.numpy.sin)(1.0).eqns[0])
    'sin'
    """
    line = users_line(equation)
    return equation.primitive.name + (f" ({line})" if line else "")


def transposed(order: list[int], other: list[int]) -> str:
    """How a transpose or reversal turns one order into the other, in words; else `""`.

    >>> transposed([0, 1, 2, 3, 4, 5], [0, 3, 1, 4, 2, 5])
    ', which is the first order as 2 × 3, transposed'
    """
    size = len(order)
    for rows in range(2, size // 2 + 1):
        grid = np.array(order).reshape(rows, -1) if size % rows == 0 else None
        if grid is not None and np.array_equal(grid.T.ravel(), other):
            return f", which is the first order as {rows} × {size // rows}, transposed"
    return ", which is the first order reversed" if order[::-1] == other else ""


def _shown(ids: list[int]) -> str:
    more = f", … {len(ids) - MAX_SHOWN:,} more" if len(ids) > MAX_SHOWN else ""
    return ", ".join(map(str, ids[:MAX_SHOWN])) + more


@dataclass
class MeshConflict:
    """A mesh that a program names and that jax refuses because of the mesh in context.

    Attributes:
        context: the mesh in context.
        named: the mesh that the program names; None where jax refused none.
        source: the line of the user's code that names it.
    """

    context: AbstractMesh
    named: AbstractMesh | None = None
    source: str = ""

    @property
    def same_axes(self) -> bool:
        """Whether the two differ in nothing but the kind of device."""
        return self.named is not None and _axes(self.named) == _axes(self.context)


def noting_conflict(fn: Callable[..., Any], conflict: MeshConflict) -> Callable[..., Any]:
    """The same function; which of its meshes jax refuses is noted in `conflict`."""

    @functools.wraps(fn)
    def noting(*args: Any) -> Any:
        try:
            return fn(*args)
        except ValueError as error:
            # Here, since jax takes its own frames out of the error before it hands it on.
            conflict.named = _named(error, conflict.context)
            conflict.source = source_of(error)
            raise

    return noting


def refuse_other_axes(conflict: MeshConflict, mesh: MeshSpec) -> None:
    """Refuses a program that names a mesh with other axes than its own.

    Raises:
        ProgramError: with both meshes, and what differs.
    """
    if conflict.named is not None and not conflict.same_axes:
        at = f" at {conflict.source}" if conflict.source else ""
        words = two_meshes(f"The function names a mesh of its own{at}", conflict.named, mesh)
        raise ProgramError(f"{words} Give both the same mesh.")


def two_meshes(start: str, named: Mesh | AbstractMesh, mesh: MeshSpec) -> str:
    """The sentence on a program's mesh and one that its function names, and what differs."""
    sizes = zip(named.axis_names, named.axis_sizes, strict=True)
    other = ", ".join(f"{name}={size}" for name, size in sizes)
    differs = differing_axes(mesh, named)
    return f"{start}, {other}, and the program's mesh is {mesh}. {differs}"


def differing_axes(mesh: MeshSpec, named: Any) -> str:
    """What differs between the axes of a program's mesh and of one that its function names.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> differing_axes(make_mesh(data=2, model=4), AbstractMesh((2, 2), ("data", "model")))
    'The sizes differ: model is 2 there and 4 here.'
    """
    names, own = tuple(named.axis_names), mesh.axis_names
    if set(names) != set(own):
        sides = (("there", names, own), ("here", own, names))
        extra = [(where, [a for a in mine if a not in other]) for where, mine, other in sides]
        words = [f"{listed(axes)} only {where}" for where, axes in extra if axes]
        return f"The axes differ: {', '.join(words)}."
    if names != own:
        return f"The axes are in another order: {listed(names)} there."
    types = [t.name for t in named.axis_types]
    for what, theirs, ours in (
        ("sizes", tuple(named.axis_sizes), mesh.axis_sizes),
        ("types", types, mesh.axis_types),
    ):
        rows = zip(names, theirs, ours, strict=True)
        if differ := [f"{a} is {t} there and {o} here" for a, t, o in rows if t != o]:
            return f"The {what} differ: {', '.join(differ)}."
    return ""


def _named(error: BaseException, context: AbstractMesh) -> AbstractMesh | None:
    """The other mesh among the local variables of the jax function that raised the error."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if "mesh" not in str(error) or not frames:
        return None
    innermost = frames[-1]
    if not str(innermost.f_globals.get("__name__", "")).startswith("jax."):
        return None
    for value in innermost.f_locals.values():
        found = mesh_of_value(value)
        mesh = None if found is None else found.abstract_mesh
        if mesh is not None and mesh != context and not mesh.empty and not _manual(mesh):
            return mesh
    return None


def _manual(mesh: AbstractMesh) -> bool:
    return any(t.name == "Manual" for t in mesh.axis_types)


def _axes(mesh: Any) -> tuple[Any, ...]:
    return tuple(mesh.axis_names), tuple(mesh.axis_sizes), tuple(mesh.axis_types)


@dataclass(frozen=True, eq=False)
class Output:
    """One leaf of the result: its name, global shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True, eq=False)
class Traced:
    """A traced program.

    Attributes:
        program: what was traced.
        mesh: the jax mesh it was traced on.
        stage: jax's own `Traced`.
        effects: its effects, in words.
        outputs: one Output a leaf of the result.
        out_tree: how the leaves form what the function returns, by its `unflatten`.
        seconds: how long it took.
        out_specs: one Spec a leaf of the result, or None where the compiler chooses.
        notes: what the user should know about how it was traced.
        around: enters the context that it was traced in.
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

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """The context to lower it in.

        It is the one that it was traced in. Without devices jax asks for a mesh in context, too.
        """
        around = self.around
        if isinstance(self.mesh, AbstractMesh):
            around = functools.partial(in_context, self.mesh)
        with around():
            yield


# The mesh of the program that is traced now; it need not be in jax's context.
TRACED_ON: ContextVar[MeshSpec | None] = ContextVar("traced_on", default=None)


@contextlib.contextmanager
def _noting_mesh(mesh: MeshSpec) -> Iterator[None]:
    token = TRACED_ON.set(mesh)
    try:
        yield
    finally:
        TRACED_ON.reset(token)


def trace(program: Program, mesh: Mesh | AbstractMesh) -> Traced:
    """Traces a program on a jax mesh, in the context that the user's own call would have.

    Where jax refuses it because no mesh is in context, it is traced with that mesh in context, and
    a note says so. So does one where Python reads a number in the arguments while it is traced, as
    in `if train:`: it is static then.

    Raises:
        ProgramError: for an array that cannot be laid out, output specs that do not fit, a mesh
            inside the program that holds the same devices in another order, or a function under
            `jax.pmap` for more devices than there are.
        Exception: whatever the function raises.
    """
    fn = program.fn.fn if isinstance(program.fn, BoundCall) else program.fn
    check_devices(fn, program.mesh)
    with in_rules(program.context):
        return _trace(program, mesh)


def _trace(program: Program, mesh: Mesh | AbstractMesh) -> Traced:
    read: Exception
    try:
        return _in_users_context(program, mesh)
    except _READS_NUMBERS as error:
        read = error
    for kinds in (bool, int), (bool, int, float, complex):
        fixed = None
        if isinstance(program.fn, BoundCall):
            fixed = program.fn.with_static_numbers(kinds)
        if fixed is None:
            continue
        fn, names = fixed
        with contextlib.suppress(*_READS_NUMBERS):
            traced = _in_users_context(program.replace(fn=fn), mesh)
            note = (
                f"{listed(names, 'and')} {'is' if len(names) == 1 else 'are'} static here, since"
                f" Python reads a number while it traces; jax.jit needs static_argnames={names!r}."
            )
            return replace(traced, program=program, notes=(note, *traced.notes))
    raise read


# What jax raises where Python asks a traced number for its value.
_READS_NUMBERS = (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError)


_NO_ARGUMENTS = (
    "Traced with the program's mesh in context, as under jax.set_mesh: it has no array arguments,"
    " so nothing else says on which devices it runs."
)


def _in_users_context(program: Program, mesh: Mesh | AbstractMesh) -> Traced:
    context = context_of(program.context)
    note = other_mesh_note(context, program.mesh)
    if is_set(context):
        own = users_mesh(context)
        if isinstance(mesh, AbstractMesh) and own is not None and not note:
            mesh = own  # it knows the kind of device, too, which jax compares
        return _with_mesh(program, mesh, note, own)
    if not program.arrays:
        return _with_mesh(program, mesh, _NO_ARGUMENTS)
    around = functools.partial(as_in, context, mesh, program.mesh)
    conflict = MeshConflict(mesh.abstract_mesh)
    try:
        traced = _traced(program, mesh, around, conflict, note)
        if not _asks_when_lowered(traced):
            return traced
        without: Exception = ValueError("Please enter your `jit` into a mesh context.")
    except (ShardvizError, *_READS_NUMBERS):
        raise
    except Exception as error:  # noqa: BLE001  a user's function may raise anything
        without = error
    words = in_words(without)
    note = f"Traced with the program's mesh in context, as under jax.set_mesh: without it, {words}"
    try:
        # jax does not always say that it wants one, as for what Explicit axes allow.
        return _with_mesh(program, mesh, note)
    except Exception as error:
        if wants_mesh(without) or isinstance(error, ShardvizError):
            raise
        raise without from None


def _asks_when_lowered(traced: Traced) -> bool:
    """Whether jax asks for a mesh in context later: for Explicit axes and no argument in use."""
    jaxpr = traced.stage.jaxpr.jaxpr
    if not any("Explicit" in str(getattr(v.aval, "sharding", "")) for v in jaxpr.outvars):
        return False
    used = {id(v) for v in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(id(v) in used for v in equation.outvars):
            used |= {id(v) for v in equation.invars}
    return not any(id(v) in used for v in jaxpr.invars)


def _with_mesh(
    program: Program,
    mesh: Mesh | AbstractMesh,
    note: str,
    own: AbstractMesh | None = None,
) -> Traced:
    """A program traced with a mesh in context.

    Args:
        program: the program.
        mesh: the jax mesh that its arrays are on.
        note: what the user should know about the context.
        own: the mesh that the user's own calls have in context, where it is known.
    """

    def attempt(on: Mesh | AbstractMesh, context: Mesh | AbstractMesh) -> Traced:
        around = functools.partial(in_context, context)
        others = () if context.abstract_mesh == own else (UnboundShardMaps(),)
        return _traced(program, on, around, conflict, note, others)

    conflict = MeshConflict(mesh.abstract_mesh)
    try:
        return attempt(mesh, mesh)
    except ValueError:
        refuse_other_axes(conflict, program.mesh)
        if conflict.named is None:
            raise
    # The function names the same axes for another kind of device: its own mesh is as good.
    named = conflict.named
    again = named if isinstance(mesh, AbstractMesh) else mesh
    conflict = MeshConflict(named)
    try:
        return attempt(again, named)
    except ValueError:
        if conflict.named is None:
            raise
    # It names several, as jax allows without one.
    return attempt(again, NO_MESH)


def _traced(
    program: Program,
    mesh: Mesh | AbstractMesh,
    around: Callable[[], AbstractContextManager[None]],
    conflict: MeshConflict,
    note: str,
    others: Sequence[CallListener] = (),
) -> Traced:
    """A program traced on a mesh, in a context; `others` hear of calls meanwhile."""
    begun = time.perf_counter()
    arguments = argument_structs(program, mesh)
    results = Results(program)
    donated = donated_leaves(program)

    def staged() -> tuple[Any, tuple[Spec | None, ...]]:
        flat = noting_conflict(_flat(program, results), conflict)
        stage = jax.jit(flat, donate_argnums=donated).trace(*arguments)
        specs = results.specs()
        if any(spec is not None for spec in specs):
            # How many outputs there are is known only now. jax keeps what it traced of `flat`.
            outs = tuple(s and named_sharding(mesh, s, memory_of(s)) for s in specs)
            jitted = jax.jit(flat, donate_argnums=donated, out_shardings=outs)
            stage = jitted.trace(*arguments)
        return stage, specs

    with around(), _noting_mesh(program.mesh):
        stage, specs = traced_with_calls(staged, lambda found: found[0].jaxpr, others)
    refuse_other_device_order(stage.jaxpr, program.mesh)
    outputs = tuple(
        Output(name, tuple(info.shape), info.dtype)
        for name, info in zip(results.names, jax.tree.leaves(stage.out_info), strict=True)
    )
    seconds = time.perf_counter() - begun
    effects = effect_names(stage)
    notes = tuple(filter(None, (note, results.note)))
    return Traced(
        program, mesh, stage, effects, outputs, results.tree, seconds, specs, notes, around
    )


def for_one_device(traced: Traced) -> Traced:
    """A program on one device, without shardings over a mesh of more, which jax refuses there.

    Raises:
        ProgramError: where something else is over such a mesh, as a `shard_map` may be.
    """
    if all(mesh.size == 1 for mesh, _ in meshes_in(traced.stage.jaxpr)):
        return traced
    jaxpr = without_shardings(traced.stage.jaxpr)
    _refuse_meshes_of_more(jaxpr)
    return _traced_again(traced, jaxpr, ())


def trace_unsharded(
    program: Program, single: Program, on_one: Callable[[Program], Traced]
) -> Traced:
    """The unsharded function of a program, traced for one device.

    Some functions can be traced on their own mesh alone: jax refuses partial sums over an axis that
    splits nothing. Then what was traced there is taken, without its shardings.

    Args:
        program: the program.
        single: the same on a mesh of one device.
        on_one: traces `single`.

    Raises:
        Exception: whatever the function raises on one device, where it has no form for one.
    """
    try:
        return for_one_device(on_one(single))
    except Exception as refused:
        if "Explicit" in program.mesh.axis_types:
            with contextlib.suppress(Exception):  # what was raised first says more
                jaxpr = without_shardings(trace(program, abstract_mesh(program.mesh)).stage.jaxpr)
                _refuse_meshes_of_more(jaxpr)
                return on_one(single.replace(fn=jaxpr_as_fun(jaxpr), tree=None))
        raise refused


def _refuse_meshes_of_more(jaxpr: Any) -> None:
    """Refuses a program in which something is over a mesh of several devices.

    Raises:
        ProgramError: with the operation.
    """
    for mesh, equation in meshes_in(jaxpr):
        if mesh.size > 1:
            raise ProgramError(
                f"{naming_operation(equation)} is over a mesh of {plural(mesh.size, 'device')},"
                " which the function names."
            )


def spec_of_type(aval: Any) -> Spec | None:
    """How a value is split as its type says: on Explicit axes; else None.

    Args:
        aval: jax's type of the value.
    """
    sharding = getattr(aval, "sharding", None)
    if sharding is None:
        return None
    explicit = any(t.name == "Explicit" for t in sharding.mesh.axis_types or ())
    return adopt_spec(sharding.spec) if explicit else None


def specs_of_types(traced: Traced) -> tuple[Spec | None, ...]:
    """`spec_of_type` of every result of a program."""
    return tuple(map(spec_of_type, traced.stage.jaxpr.out_avals))


def with_specs_of_types(traced: Traced) -> Traced:
    """A program whose results are requested as their types say, where nothing else is.

    For devices jax splits a result as its type says. Without any, it has to be given the specs: the
    lowered module does not say them, and partial sums would be added up.

    Args:
        traced: a program on a mesh whose axes are all Explicit: jax takes no spec of some alone.
    """
    rows = zip(traced.outputs, traced.out_specs, specs_of_types(traced), strict=True)
    specs = {output.name: own or typed for output, own, typed in rows}
    program = traced.program
    found = trace(program.replace(out_specs=SpecsByName(specs)), traced.mesh)
    return replace(found, program=program, out_specs=traced.out_specs)


def with_partial_sums(traced: Traced) -> Traced:
    """`with_specs_of_types` where a result is a partial sum, on a mesh of Explicit axes alone."""
    partial = any(spec is not None and spec.unreduced for spec in specs_of_types(traced))
    explicit = set(traced.program.mesh.axis_types) == {"Explicit"}
    return with_specs_of_types(traced) if partial and explicit else traced


def without_prints(traced: Traced) -> tuple[Traced, str]:
    """A program without `jax.debug.print` and `jax.debug.callback`, and a note on it.

    For devices that cannot call Python: no result depends on what is left out.
    """
    left_out: list[str] = []

    def change(equation: Any) -> list[Any]:
        if equation.primitive.name in DEBUG_CALLS:
            left_out.append(users_line(equation) or equation.primitive.name)
            return []
        return [with_inner(equation, without)]

    def without(jaxpr: Any) -> Any:
        return without_debug_effects(rewritten(jaxpr, change))

    jaxpr = without(traced.stage.jaxpr)
    if not left_out:
        return traced, ""
    at = ", ".join(dict.fromkeys(left_out))
    note = (
        f"Compiled without jax.debug.print or jax.debug.callback ({at}): described devices cannot"
        " call Python. On real ones XLA gathers all that is printed on one device, each time."
    )
    specs = traced.out_specs
    if set(traced.program.mesh.axis_types) == {"Explicit"}:
        typed = specs_of_types(traced)
        specs = tuple(own or spec for own, spec in zip(specs, typed, strict=True))
    return _traced_again(traced, jaxpr, specs), note


def _traced_again(traced: Traced, jaxpr: Any, out_specs: Sequence[Spec | None]) -> Traced:
    """A program with another jaxpr, traced where it was traced before."""
    program, mesh = traced.program, traced.mesh
    arguments = argument_structs(program, mesh)
    options: dict[str, Any] = {}
    if any(spec is not None for spec in out_specs):
        outs = tuple(s if s is None else named_sharding(mesh, s) for s in out_specs)
        options["out_shardings"] = outs
    flat = _named_as(program, jaxpr_as_fun(jaxpr))
    jitted = jax.jit(flat, donate_argnums=donated_leaves(program), **options)
    with traced.around():
        stage = jitted.trace(*arguments)
        return replace(traced, stage=stage, effects=effect_names(stage))


def argument_structs(program: Program, mesh: Mesh | AbstractMesh) -> list[jax.ShapeDtypeStruct]:
    """One ShapeDtypeStruct per array, sharded over `mesh` as was requested.

    What is left to the compiler has no sharding.

    Raises:
        ProgramError: naming the first array that cannot be laid out.
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
        sharding = None
        if position not in free:
            sharding = named_sharding(mesh, spec, array.memory_kind)
        weak = array.weak_type
        structs.append(jax.ShapeDtypeStruct(array.shape, dtype, sharding=sharding, weak_type=weak))
    return structs


def left_to_compiler(program: Program) -> frozenset[int]:
    """The positions of arrays that jax lets the compiler split, since nobody says how.

    So it is with uncommitted arrays beside others that are on a mesh of Auto axes. Where no array
    is on the mesh, jax would take one device; then all are replicated.
    """
    if set(program.mesh.axis_types) != {"Auto"}:
        return frozenset()
    free = {
        i
        for i, a in enumerate(program.arrays)
        if a.uncommitted and a.spec is None and (a.logical is None or program.rules is None)
    }
    on_mesh = any(a.rank and i not in free for i, a in enumerate(program.arrays))
    return frozenset(free if on_mesh else ())


def placed_spec(spec: Spec) -> Spec:
    """The spec an argument is placed with: a dimension left to the compiler is not split."""
    return Spec(spec.dims, frozenset(), spec.unreduced, spec.reduced)


def donated_leaves(program: Program) -> tuple[int, ...]:
    """The positions, among the leaves, of arguments whose memory may be reused.

    That of a `jax.Ref` always is: its last value takes the place of its first.
    """
    donate = tuple(program.options.get("donate", ()))
    refs = program.fn.refs if isinstance(program.fn, BoundCall) else ()
    if program.tree is not None and donate:
        sizes = [child.num_leaves for child in program.tree.children()]
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        donate = tuple(starts[a] + i for a in donate for i in range(sizes[a]))
    return tuple(sorted({*donate, *refs})) if refs else donate


def _flat(program: Program, results: Results) -> Callable[..., Any]:
    """The function from leaves to leaves. A new one every time: jax keeps what it traced by
    function, and would not notice that a value it closes over has changed.
    """
    fn, tree = program.fn, program.tree

    def flat(*leaves: Any) -> tuple[Any, ...]:
        arguments = leaves if tree is None else tree.unflatten(leaves)
        if isinstance(fn, BoundCall):
            return results.take(*fn.call(arguments))
        return results.take(unbound(fn)(*arguments), {})

    return _named_as(program, flat)


def _named_as(program: Program, flat: Callable[..., Any]) -> Callable[..., Any]:
    """A function from leaves to leaves, with the names of a program's function and arrays."""

    def named(*leaves: Any) -> Any:
        return flat(*leaves)

    fn = program.fn
    functools.update_wrapper(named, fn.fn if isinstance(fn, BoundCall) else fn, updated=())
    # jax names arguments in its messages, and operations of the compiler after arguments.
    only = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(name, only) for name in flat_names(program)]
    named.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return named


def flat_names(program: Program) -> list[str]:
    """What the compiler calls the arrays of a program: their names as Python writes names.

    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> flat_names(Program(abs, (ArraySpec("layers[0].w", (8,)),), make_mesh(data=4)))
    ['layers_0_w']
    """
    names = [re.sub(r"\W+", "_", a.name).strip("_") or "a" for a in program.arrays]
    taken: set[str] = set()
    for i, name in enumerate(names):
        names[i] = unique(name if name.isidentifier() else f"a_{name}", taken)
        taken.add(names[i])
    return names
