"""trace() -> Traced: the function of a program, traced by jax with the requested
shardings.

It is traced as `jax.eval_shape` would trace it, in the context that the user's own call
would have. Where jax refuses that, other contexts are tried, in the order of
`_CONTEXTS`, and where Python reads a number while it traces, with numbers as they are.

jax also compares the kind of device that a mesh is made for: a mesh of axes alone is
not equal to the same axes on CPUs, and `shard_map(mesh=...)` refuses it. That makes no
difference to a plan, so such a program is traced again with its own mesh in context.

Programs are traced flat: leaves in, leaves out. So an executable can serve every
program with the same text, whatever trees its arguments and results form.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from shardviz.core.backend.bridge import jax_dtype, named_sharding
from shardviz.core.backend.failures import in_words
from shardviz.core.backend.tracing.arguments import unique
from shardviz.core.backend.tracing.build_program import Results
from shardviz.core.backend.tracing.calls import BoundCall
from shardviz.core.backend.tracing.constraint_calls import traced_with_calls
from shardviz.core.backend.tracing.effect_rules import effect_names
from shardviz.core.backend.tracing.mesh_context import (
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
from shardviz.core.backend.tracing.named_meshes import (
    MeshConflict,
    noting_conflict,
    refuse_other_axes,
    refuse_other_device_order,
)
from shardviz.core.backend.tracing.pmapped import check_devices
from shardviz.core.backend.tracing.shard_maps import UnboundShardMaps, unbound
from shardviz.core.backend.tracing.watching import CallListener
from shardviz.core.errors import ProgramError, ShardvizError
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.mesh_context import MeshContext
from shardviz.core.layout.partition_spec import Spec, memory_of
from shardviz.core.program.notes import Note
from shardviz.core.program.program import Program


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

        It is the one that it was traced in. Without devices jax asks for a mesh in
        context, too.
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
    """Traces a program on a jax mesh, in the context that the user's own call would
    have.

    A note says where it could only be traced with a mesh in context, or with numbers
    among its arguments as they are, as for `if train:`.

    Raises:
        ProgramError: for an array that cannot be laid out, output specs that do not
            fit, a mesh inside the program that holds the same devices in another order,
            or a function under `jax.pmap` for more devices than there are.
        Exception: whatever the function raises.
    """
    fn = program.fn.fn if isinstance(program.fn, BoundCall) else program.fn
    check_devices(fn, program.mesh)
    with in_rules(program.context):
        return _first_that_works(program, mesh)


# What jax raises where Python asks a traced number for its value.
_READS_NUMBERS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerIntegerConversionError,
)
# Which Python numbers among the arguments the function gets as they are.
_NUMBERS = ((), (bool, int), (bool, int, float, complex))
# The mesh in context: the user's own, or none; that of the program; one that the
# function names with the same axes; none, for a function that names several.
_CONTEXTS = ("user", "program", "function", "none")


def _first_that_works(program: Program, mesh: Mesh | AbstractMesh) -> Traced:
    setting = _Setting.of(program, mesh)
    history = _History(program, setting.contexts[0])
    for numbers, context in itertools.product(_NUMBERS, setting.contexts):
        if not history.calls_for(numbers, context):
            continue
        fixed = _with_numbers(program, numbers)
        if fixed is None:
            continue
        one, note = fixed
        conflict = MeshConflict(setting.mesh.abstract_mesh)
        try:
            traced = _in_context(one, setting, context, history, conflict)
        except Exception as error:  # noqa: BLE001  a user's function may raise anything
            history.add(numbers, context, error, conflict)
            continue
        if context == "user" and _asks_when_lowered(traced):
            refused = ValueError("Please enter your `jit` into a mesh context.")
            history.add(numbers, context, refused, conflict)
            continue
        notes = (*note, *history.notes(context), *traced.notes)
        return replace(traced, program=program, notes=notes)
    raise history.read or RuntimeError("no context was tried")


def _with_numbers(
    program: Program, numbers: tuple[type, ...]
) -> tuple[Program, tuple[str, ...]] | None:
    """The program with numbers as they are, and a note; None where it has none."""
    if not numbers:
        return program, ()
    if not isinstance(program.fn, BoundCall):
        return None
    fixed = program.fn.with_static_numbers(numbers)
    if fixed is None:
        return None
    fn, names = fixed
    return program.replace(fn=fn), (str(Note("static numbers", tuple(names))),)


@dataclass(frozen=True)
class _Setting:
    """Where a program is traced.

    Attributes:
        mesh: the jax mesh that its arrays are on.
        users: the user's own context.
        own: the mesh that the user's own calls have in context, where it is known.
        contexts: those of `_CONTEXTS` that are tried.
        notes: what the user should know about the context.
    """

    mesh: Mesh | AbstractMesh
    users: MeshContext
    own: AbstractMesh | None
    contexts: tuple[str, ...]
    notes: tuple[str, ...]

    @staticmethod
    def of(program: Program, mesh: Mesh | AbstractMesh) -> _Setting:
        """The setting of a program that is to be traced on a mesh."""
        users = context_of(program.context)
        notes = other_mesh_note(users, program.mesh)
        if is_set(users):
            own = users_mesh(users)
            if isinstance(mesh, AbstractMesh) and own is not None and not notes:
                mesh = own  # it knows the kind of device, too, which jax compares
            return _Setting(mesh, users, own, _CONTEXTS[1:], notes)
        if not program.arrays:
            notes = (str(Note("no array arguments")),)
            return _Setting(mesh, users, None, _CONTEXTS[1:], notes)
        return _Setting(mesh, users, None, _CONTEXTS, notes)


class _History:
    """The attempts so far: what they raised, and which one is next.

    Attributes:
        read: the first error of a function that reads a number while it is traced.
        named: the mesh that the function names, where jax refused it.
    """

    def __init__(self, program: Program, first: str) -> None:
        self.read: Exception | None = None
        self.named: AbstractMesh | None = None
        self._program, self._first = program, first
        self._next = ""
        self._without: Exception | None = None  # of the user's context

    def calls_for(self, numbers: tuple[type, ...], context: str) -> bool:
        """Whether an attempt is worth making after those before it."""
        if context == self._first:
            # With other numbers only where one was read.
            begins = not numbers or self.read is not None
            self._next = context if begins else ""
            self._without = self.named = None
        return context == self._next

    def add(
        self,
        numbers: tuple[type, ...],
        context: str,
        error: Exception,
        conflict: MeshConflict,
    ) -> None:
        """Notes a failed attempt.

        Raises:
            Exception: where no other attempt can help.
        """
        self._next = ""
        if isinstance(error, _READS_NUMBERS):
            self.read = self.read or error
            return
        if context == "user" and not isinstance(error, ShardvizError):
            # jax does not always say that it wants a mesh, as for what Explicit axes
            # allow.
            self._without, self._next = error, "program"
            return
        if isinstance(error, ValueError) and conflict.named is not None:
            if context == "program":
                refuse_other_axes(conflict, self._program.mesh)
                self.named, self._next = conflict.named, "function"
                return
            if context == "function":
                self._next = "none"
                return
        without = self._without
        if without is None or wants_mesh(without) or isinstance(error, ShardvizError):
            raise error
        raise without from None

    def notes(self, context: str) -> tuple[str, ...]:
        """What the user should know about an attempt that worked."""
        if context == "user" or self._without is None:
            return ()
        return (str(Note("mesh needed", (in_words(self._without),))),)


def _in_context(
    program: Program,
    setting: _Setting,
    context: str,
    history: _History,
    conflict: MeshConflict,
) -> Traced:
    """A program traced in one of `_CONTEXTS`."""
    mesh = setting.mesh
    if context == "user":
        around = functools.partial(as_in, setting.users, mesh, program.mesh)
        return _traced(program, mesh, around, conflict, setting.notes)
    entered = mesh
    if context != "program" and history.named is not None:
        # The function names the same axes for another kind of device: that mesh serves.
        entered = conflict.context = history.named
        mesh = history.named if isinstance(mesh, AbstractMesh) else mesh
    if context == "none":
        entered = NO_MESH
    around = functools.partial(in_context, entered)
    listeners = () if entered.abstract_mesh == setting.own else (UnboundShardMaps(),)
    return _traced(program, mesh, around, conflict, setting.notes, listeners)


def _asks_when_lowered(traced: Traced) -> bool:
    """Whether jax asks for a mesh in context later: for Explicit axes and no argument
    in use.
    """
    jaxpr = traced.stage.jaxpr.jaxpr
    if not any(
        "Explicit" in str(getattr(v.aval, "sharding", "")) for v in jaxpr.outvars
    ):
        return False
    used = {id(v) for v in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(id(v) in used for v in equation.outvars):
            used |= {id(v) for v in equation.invars}
    return not any(id(v) in used for v in jaxpr.invars)


def _traced(
    program: Program,
    mesh: Mesh | AbstractMesh,
    around: Callable[[], AbstractContextManager[None]],
    conflict: MeshConflict,
    notes: tuple[str, ...],
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
            # How many outputs there are is known only now. jax keeps what it traced of
            # `flat`.
            outs = tuple(s and named_sharding(mesh, s, memory_of(s)) for s in specs)
            jitted = jax.jit(flat, donate_argnums=donated, out_shardings=outs)
            stage = jitted.trace(*arguments)
        return stage, specs

    with around(), _noting_mesh(program.mesh):
        stage, specs = traced_with_calls(staged, lambda found: found[0].jaxpr, others)
    refuse_other_device_order(stage.jaxpr, program.mesh)
    outputs = tuple(
        Output(name, tuple(info.shape), info.dtype)
        for name, info in zip(
            results.names, jax.tree.leaves(stage.out_info), strict=True
        )
    )
    seconds = time.perf_counter() - begun
    effects = effect_names(stage)
    if results.note:
        notes = (*notes, results.note)
    return Traced(
        program,
        mesh,
        stage,
        effects,
        outputs,
        results.tree,
        seconds,
        specs,
        notes,
        around,
    )


def argument_structs(
    program: Program, mesh: Mesh | AbstractMesh
) -> list[jax.ShapeDtypeStruct]:
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
        structs.append(
            jax.ShapeDtypeStruct(array.shape, dtype, sharding=sharding, weak_type=weak)
        )
    return structs


def left_to_compiler(program: Program) -> frozenset[int]:
    """The positions of arrays that jax lets the compiler split, since nobody says how.

    So it is with uncommitted arrays beside others that are on a mesh of Auto axes.
    Where no array is on the mesh, jax would take one device; then all are replicated.
    """
    if set(program.mesh.axis_types) != {"Auto"}:
        return frozenset()
    free = {
        i
        for i, a in enumerate(program.arrays)
        if a.uncommitted
        and a.spec is None
        and (a.logical is None or program.rules is None)
    }
    on_mesh = any(a.rank and i not in free for i, a in enumerate(program.arrays))
    return frozenset(free if on_mesh else ())


def placed_spec(spec: Spec) -> Spec:
    """The spec an argument is placed with: a dimension left to the compiler is not
    split.
    """
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
    """The function from leaves to leaves. A new one every time: jax keeps what it
    traced by function, and would not notice that a value it closes over has changed.
    """
    fn, tree = program.fn, program.tree

    def flat(*leaves: Any) -> tuple[Any, ...]:
        arguments = leaves if tree is None else tree.unflatten(leaves)
        if isinstance(fn, BoundCall):
            return results.take(*fn.call(arguments))
        return results.take(unbound(fn)(*arguments), {})

    return named_as(program, flat)


def named_as(program: Program, flat: Callable[..., Any]) -> Callable[..., Any]:
    """A function from leaves to leaves, with the names of a program's function and
    arrays.
    """

    def named(*leaves: Any) -> Any:
        return flat(*leaves)

    fn = program.fn
    functools.update_wrapper(
        named, fn.fn if isinstance(fn, BoundCall) else fn, updated=()
    )
    # jax names arguments in its messages, and operations of the compiler after
    # arguments.
    only = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(name, only) for name in flat_names(program)]
    named.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return named


def flat_names(program: Program) -> list[str]:
    """What the compiler calls the arrays of a program: their names as Python writes
    names.

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
