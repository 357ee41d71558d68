"""Reads the mesh in context from jax, and enters contexts for tracing."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from shardviz.base.backend.jax_compat import concrete_mesh, entered_meshes
from shardviz.base.errors import ShardvizError
from shardviz.base.mesh import MeshSpec
from shardviz.base.mesh_context import MeshContext
from shardviz.programs.backend.bridge import abstract_mesh, adopt_mesh, to_jax
from shardviz.programs.backend.devices import mesh_of_names
from shardviz.programs.notes import OtherMesh


def mesh_context() -> MeshContext:
    """Returns the current mesh context of this thread.

    >>> mesh_context().in_force
    'none'
    >>> import numpy as np
    >>> with jax.set_mesh(Mesh(np.array(jax.devices()[:1]), ("x",))):
    ...     str(mesh_context().current)
    'x=1'
    """
    traced, entered = False, entered_meshes()
    try:
        current = jax.sharding.get_mesh()
    except ValueError:  # jax raises this inside traced functions
        current, traced = concrete_mesh(), True
    return MeshContext(
        legacy=tuple(adopt_mesh(mesh) for mesh in entered or ()),
        current=_adopted(current),
        abstract=_adopted(jax.sharding.get_abstract_mesh()),
        traced=traced,
        readable=entered is not None,
        rules=logical_rules(),
    )


def logical_rules() -> Any:
    """Returns the rules of flax's `nn.logical_axis_rules` in this thread, or `()`.

    >>> logical_rules()
    ()
    """
    # Without flax, `get` returns an empty tuple.
    get = getattr(sys.modules.get("flax.core.spmd"), "get_logical_axis_rules", tuple)
    return get() or ()


@contextlib.contextmanager
def in_rules(recorded: MeshContext | None) -> Iterator[None]:
    """Traces with the logical axis rules that were in force when a program was built.

    Rules in force at the time of tracing take precedence.

    Args:
        recorded: the context in which the program was built, or None.
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


# With no mesh in context, every operation uses the mesh of its operands.
NO_MESH = AbstractMesh((), ())


@contextlib.contextmanager
def in_context(mesh: Mesh | AbstractMesh) -> Iterator[None]:
    """Traces and lowers with this mesh in context, in place of `jax.set_mesh`'s mesh.

    >>> with in_context(AbstractMesh((4,), ("data",))):
    ...     jax.sharding.get_abstract_mesh().axis_names
    ('data',)
    """
    # A function may use mesh axes without a mesh: with_sharding_constraint(x,
    # P("data")).
    if isinstance(mesh, Mesh):
        with jax.set_mesh(mesh):
            yield
    else:
        # If a mesh remained set, jax would lower for its devices, and refuse a mesh of
        # another size.
        with jax.set_mesh(None), jax.sharding.use_abstract_mesh(mesh):
            yield


def context_of(recorded: MeshContext | None) -> MeshContext:
    """Returns the context to trace in: the current one, or else the recorded one.

    Args:
        recorded: the context in which the program was built, or None.
    """
    current = mesh_context()
    if recorded is None or current.in_force != "none":
        return current
    return recorded


def is_set(context: MeshContext) -> bool:
    """True if `jax.set_mesh` or `use_abstract_mesh` has set a mesh.

    >>> is_set(MeshContext())
    False
    """
    return context.in_force in ("set_mesh", "abstract mesh")


def users_mesh(context: MeshContext) -> AbstractMesh | None:
    """Returns the mesh in context in the user's call, with its device kind.

    Args:
        context: the user's context: the current or the recorded one.
    """
    current = jax.sharding.get_abstract_mesh()
    if not current.empty:
        return current
    # The context in which the program was built. It may have ended since.
    recorded = context.current or context.abstract
    if recorded is None:
        return None
    try:
        return to_jax(recorded).abstract_mesh
    except ShardvizError:  # its devices belong to another process
        return None


@contextlib.contextmanager
def in_users_context(context: MeshContext) -> Iterator[None]:
    """Traces and lowers in the user's context, either the current or a recorded one.

    Args:
        context: the user's context, as returned by `context_of`.

    Raises:
        TargetError: if devices of the recorded context aren't attached here.
    """
    with contextlib.ExitStack() as entered, warnings.catch_warnings():
        # `with mesh:` is deprecated, but the user chose it.
        warnings.simplefilter("ignore", DeprecationWarning)
        if mesh_context().in_force == "none":
            if context.entered is not None:
                entered.enter_context(to_jax(context.entered))
            if context.current is not None:
                entered.enter_context(jax.set_mesh(to_jax(context.current)))
            if context.abstract is not None and (
                context.current is None or context.overlaid
            ):
                inner = abstract_mesh(context.abstract)
                entered.enter_context(jax.sharding.use_abstract_mesh(inner))
        yield


@contextlib.contextmanager
def as_in(
    context: MeshContext, mesh: Mesh | AbstractMesh, program_mesh: MeshSpec
) -> Iterator[None]:
    """Traces and lowers on a program's mesh, as in the user's context.

    Args:
        context: the user's context, in which no mesh is set.
        mesh: the jax mesh to trace on, in place of the user's.
        program_mesh: the program's mesh.
    """
    if context.entered is None or (
        # This thread is already inside `with mesh:`, with the program's axes.
        _axes(context.entered) == _axes(program_mesh)
        and mesh_context().entered == context.entered
    ):
        yield
    else:
        devices = mesh
        if not isinstance(devices, Mesh):  # an abstract mesh cannot be entered
            devices = mesh_of_names(program_mesh)
        with contextlib.ExitStack() as entered:
            with warnings.catch_warnings():
                # `with mesh:` is deprecated, but the user chose it.
                warnings.simplefilter("ignore", DeprecationWarning)
                entered.enter_context(devices)
            yield


def _axes(mesh: MeshSpec) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return mesh.axis_names, mesh.axis_sizes


_ENTERED_BY = {
    "with mesh": "`with mesh:`",
    "abstract mesh": "jax.sharding.use_abstract_mesh",
}


def other_mesh_note(context: MeshContext, program_mesh: MeshSpec) -> tuple[str, ...]:
    """Returns a note if the mesh in context has axes that differ from the program's.

    >>> from shardviz.base.mesh import make_mesh
    >>> other_mesh_note(MeshContext(current=make_mesh(x=2)), make_mesh(data=4))
    ('jax.set_mesh has set the mesh x=2 here, but the program is traced with its own mesh...
    """
    in_force = context.mesh
    if in_force is None:
        return ()
    first, second = str(in_force), str(program_mesh)
    if _axes(in_force) == _axes(program_mesh):
        if in_force.axis_types == program_mesh.axis_types:
            return ()
        first = f"{in_force} with {in_force.axis_types[0]} axes"
        second = f"with {program_mesh.axis_types[0]} axes"
    set_by = _ENTERED_BY.get(context.in_force, "jax.set_mesh")
    return (str(OtherMesh(set_by, first, second)),)
