"""The mesh in force, as jax has it, and what jax does again when a function gets
another mesh.

Devices are no part of a trace: a function that names no devices is traced and lowered
once for all meshes of one shape, and only compiled again.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from shardviz.core.backend.bridge import adopt_mesh, check_axis_names, to_jax
from shardviz.core.backend.devices import mesh_of_names
from shardviz.core.backend.failures import failure
from shardviz.core.backend.jax_compat import concrete_mesh, entered_meshes
from shardviz.core.backend.tracing.listening import jax_cache_events
from shardviz.core.errors import ProgramError, ShardvizError
from shardviz.core.format import shown
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.mesh_context import MeshContext, Unreadable
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.notes import Note


def mesh_context() -> MeshContext:
    """The mesh context of this thread, here and now.

    >>> mesh_context().in_force
    'none'
    >>> import numpy as np
    >>> with jax.set_mesh(Mesh(np.array(jax.devices()[:1]), ("x",))):
    ...     str(mesh_context().current)
    'x=1'
    """
    notes: list[Unreadable] = []
    current, traced = _current()
    abstract = jax.sharding.get_abstract_mesh()
    return MeshContext(
        legacy=_legacy(notes),
        current=_adopted(current),
        abstract=_adopted(abstract),
        traced=traced,
        notes=tuple(notes),
        rules=logical_rules(),
    )


def logical_rules() -> Any:
    """The rules of flax's `nn.logical_axis_rules` in this thread; `()` for none.

    >>> logical_rules()
    ()
    """
    # There are none where nobody has imported flax.
    get = getattr(sys.modules.get("flax.core.spmd"), "get_logical_axis_rules", tuple)
    return get() or ()


@contextlib.contextmanager
def in_rules(recorded: MeshContext | None) -> Iterator[None]:
    """Traces with the logical axis rules that were in force where a program was made.

    Those of this call count where there are any.

    Args:
        recorded: the context that the program was made in; None for none.
    """
    enter = getattr(sys.modules.get("flax.core.spmd"), "logical_axis_rules", None)
    entered: Any = contextlib.nullcontext()
    if enter is not None and recorded is not None and recorded.rules:
        if not logical_rules():
            entered = enter(recorded.rules)
    with entered:
        yield


def _adopted(mesh: Mesh | AbstractMesh | None) -> MeshSpec | None:
    if mesh is None or mesh.empty:
        return None
    return adopt_mesh(mesh)


def _current() -> tuple[Mesh | None, bool]:
    """The mesh of `set_mesh`, and whether a function is being traced here."""
    try:
        return jax.sharding.get_mesh(), False
    except ValueError:  # raised while a function is being traced
        pass
    return concrete_mesh(), True


def _legacy(notes: list[Unreadable]) -> tuple[MeshSpec, ...]:
    entered = entered_meshes()
    if entered is None:
        notes.append(Unreadable("entered meshes", jax.__version__))
        return ()
    return tuple(adopt_mesh(mesh) for mesh in entered)


# No mesh at all: every operation then takes the mesh of its operands.
NO_MESH = AbstractMesh((), ())


@contextlib.contextmanager
def in_context(mesh: Mesh | AbstractMesh) -> Iterator[None]:
    """Traces and lowers with this mesh in context, in place of what `jax.set_mesh` set.

    >>> with in_context(AbstractMesh((4,), ("data",))):
    ...     jax.sharding.get_abstract_mesh().axis_names
    ('data',)
    """
    # Functions may name mesh axes without a mesh: with_sharding_constraint(x,
    # P("data")).
    if isinstance(mesh, Mesh):
        with jax.set_mesh(mesh):
            yield
    else:
        # A mesh that was set before lowers for its own devices, and refuses one of
        # another size.
        with jax.set_mesh(None), jax.sharding.use_abstract_mesh(mesh):
            yield


def context_of(recorded: MeshContext | None) -> MeshContext:
    """The context to trace in: that of this call, or what was in force when the program
    was made.

    Args:
        recorded: the context that the program was made in; None for none.
    """
    here = mesh_context()
    if recorded is None or here.in_force != "none":
        return here
    return recorded


def is_set(context: MeshContext) -> bool:
    """Whether `jax.set_mesh` or `use_abstract_mesh` has set a mesh.

    >>> is_set(MeshContext())
    False
    """
    return context.in_force in ("set_mesh", "abstract mesh")


def users_mesh(context: MeshContext) -> AbstractMesh | None:
    """The mesh that the user's calls have in context, as jax compares it: with its kind
    of device.

    Args:
        context: the user's context, of this call or of where the program was made.
    """
    here = jax.sharding.get_abstract_mesh()
    if not here.empty:
        return here
    # The context of where the program was made, which may be left by now.
    made = context.current or context.abstract
    if made is None:
        return None
    try:
        return to_jax(made).abstract_mesh
    except ShardvizError:  # another process has its devices
        return None


@contextlib.contextmanager
def as_in(
    context: MeshContext, mesh: Mesh | AbstractMesh, own: MeshSpec
) -> Iterator[None]:
    """Traces and lowers as in the user's context, on the mesh of a program.

    Args:
        context: the user's context.
        mesh: the jax mesh that the program is traced on; it takes the place of the
            user's.
        own: the mesh of the program.
    """
    if is_set(context):
        with in_context(mesh):
            yield
    elif context.in_force == "none" or _is_entered(context, own):
        yield
    else:
        devices = mesh
        if not isinstance(devices, Mesh):  # only a mesh of devices can be entered
            devices = mesh_of_names(own)
        with contextlib.ExitStack() as entered:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # the user wrote it
                entered.enter_context(devices)
            yield


def _is_entered(context: MeshContext, own: MeshSpec) -> bool:
    """Whether this thread is inside `with mesh:` of a mesh with the axes of the
    program's.
    """
    innermost = context.legacy[-1]
    return _axes(innermost) == _axes(own) and _legacy([])[-1:] == (innermost,)


def _axes(mesh: MeshSpec) -> tuple[Any, ...]:
    return mesh.axis_names, mesh.axis_sizes


_ENTERED_BY = {
    "with mesh": "`with mesh:`",
    "abstract mesh": "jax.sharding.use_abstract_mesh",
}


def other_mesh_note(context: MeshContext, own: MeshSpec) -> tuple[str, ...]:
    """A note where a mesh is in force with other axes than the program's.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> other_mesh_note(MeshContext(current=make_mesh(x=2)), make_mesh(data=4))
    ('jax.set_mesh has the mesh x=2 here; the program is traced with its own, data=4, in...
    """
    there = context.mesh
    if there is None:
        return ()
    first, second = str(there), str(own)
    if _axes(there) == _axes(own):
        if there.axis_types == own.axis_types:
            return ()
        first = f"{there} with {there.axis_types[0]} axes"
        second = f"with {own.axis_types[0]} axes"
    by = _ENTERED_BY.get(context.in_force, "jax.set_mesh")
    return (str(Note("other mesh", (by, first, second))),)


_WANTS_MESH = re.compile(
    r"non-empty mesh|mesh cannot be empty|in mesh: \(\)|mesh context|context mesh|set_mesh",
    re.IGNORECASE,
)


def wants_mesh(error: BaseException) -> bool:
    """Whether a function was refused because no mesh is in context, by jax or by a
    library.

    >>> wants_mesh(ValueError("The context mesh cannot be empty. Use `jax.set_mesh(mesh)`"))
    True
    """
    return not isinstance(error, ShardvizError) and bool(_WANTS_MESH.search(str(error)))


_STAGES = ("trace", "lower", "compile")


@dataclass(frozen=True)
class MeshCall:
    """What JAX did when a function was called with arrays on a mesh.

    Attributes:
        mesh: the mesh.
        counts: `"trace"`, `"lower"` and `"compile"` to how often JAX did it; 0 is a
            cache hit.
        error: what JAX raised, in a sentence; empty where it ran.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> MeshCall(make_mesh(x=2), {"trace": 0, "lower": 0, "compile": 1}).hits
    ('trace', 'lower')
    """

    mesh: MeshSpec
    counts: dict[str, int]
    error: str = ""

    @property
    def hits(self) -> tuple[str, ...]:
        """The stages whose result JAX still had; none where it raised."""
        if self.error:
            return ()
        return tuple(s for s in _STAGES if not self.counts[s])

    @property
    def misses(self) -> tuple[str, ...]:
        """The stages that JAX went through again."""
        return tuple(s for s in _STAGES if self.counts[s])


@dataclass(frozen=True)
class MeshComparison:
    """One function on two meshes, one after the other. Made by `compare_meshes`.

    Attributes:
        first: the call on the first mesh.
        again: the call on the first mesh once more.
        second: the call on the second mesh.

    >>> import jax.numpy as jnp
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> mesh = make_mesh("x=1", device_ids=[0])
    >>> compare_meshes(mesh, mesh, jnp.sin, jax.ShapeDtypeStruct((8,), "float32")).second.hits
    ('trace', 'lower', 'compile')
    """

    first: MeshCall
    again: MeshCall
    second: MeshCall

    def explain(self) -> str:
        """What JAX did again for the second mesh, in sentences."""
        if self.second.error:
            return (
                f"The second mesh was refused: {self.second.error} A function that names devices"
                " runs on those alone; name an AbstractMesh in it and let the arguments bring the"
                " devices."
            )
        if not self.second.misses:
            return "Nothing was done again for the second mesh: it has the devices of the first."
        done = " and ".join(_DONE[s] for s in self.second.misses)
        again = f"For the second mesh it was {done} again"
        if not self.second.hits:
            return f"{again}."
        kept = " and ".join(_DONE[s] for s in self.second.hits)
        return f"{again}, not {kept}."

    def _text_(self) -> str:
        return self.explain()


_DONE = {"trace": "traced", "lower": "lowered", "compile": "compiled"}


def compare_meshes(
    first: Any, second: Any, fn: Callable[..., Any], *arrays: Any, specs: Any = None
) -> MeshComparison:
    """Calls a function twice with arrays on one mesh, then on another, and counts JAX's
    events.

    Args:
        first, second: MeshSpecs with device ids, or jax's own meshes.
        fn: the function; jitted here unless it is already. It may run three times.
        *arrays: arrays, or shapes and types, for which zeros are made.
        specs: one PartitionSpec for all arrays, as text or a Spec; None replicates
            them.

    Raises:
        ShardvizError: for what is no function, no mesh, or an array that cannot be
            placed.
    """
    if not callable(fn):
        raise ProgramError(
            f"Two meshes are compared by calling a function; got {shown(fn)}."
        )
    one, other = _mesh(first), _mesh(second)
    check_axis_names((*one.axis_names, *other.axis_names))
    spec = specs or Spec()
    if isinstance(specs, str):
        spec = Spec.parse(specs)
    jitted = fn
    if not hasattr(fn, "lower"):
        # A wrapper of its own, so that no earlier call of the function counts as a hit.
        jitted = jax.jit(lambda *args: fn(*args))
    here, there = _placed(one, spec, arrays), _placed(other, spec, arrays)
    return MeshComparison(
        first=_counted_call(jitted, one, here),
        again=_counted_call(jitted, one, here),
        second=_counted_call(jitted, other, there),
    )


def _counted_call(jitted: Any, mesh: MeshSpec, values: list[Any]) -> MeshCall:
    error = ""
    with jax_cache_events() as events:
        try:
            jax.block_until_ready(jitted(*values))
        except Exception as raised:  # noqa: BLE001  whatever the function or JAX raises is shown
            error = failure("run", raised).message
    # Other threads trace and compile, too: a plan in the background, for one.
    own = [e.kind for e in events.events if e.thread == threading.current_thread().name]
    return MeshCall(mesh, {stage: own.count(stage) for stage in _STAGES}, error)


def _mesh(mesh: Any) -> MeshSpec:
    adopted = mesh
    if isinstance(mesh, jax.sharding.Mesh):
        adopted = adopt_mesh(mesh)
    if not isinstance(adopted, MeshSpec) or not adopted.concrete:
        raise ShardvizError(
            "Comparing meshes runs a function on their devices, so each must name them; got"
            f" {shown(mesh)}. Give a jax Mesh, or sv.mesh('x=2', device_ids=[0, 1])."
        )
    return adopted


def _placed(mesh: MeshSpec, spec: Spec, arrays: tuple[Any, ...]) -> list[Any]:
    sharding = jax.sharding.NamedSharding(to_jax(mesh), spec.to_jax())
    values = []
    for array in arrays:
        if isinstance(array, jax.ShapeDtypeStruct):
            array = jax.numpy.zeros(array.shape, array.dtype)
        try:
            values.append(jax.device_put(array, sharding))
        except ValueError as error:
            raise ShardvizError(
                f"{shown(array)} cannot be placed as {spec} on {mesh}: {str(error).splitlines()[0]}"
            ) from error
    return values
