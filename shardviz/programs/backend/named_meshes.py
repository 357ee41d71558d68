"""Compares meshes named in a program with the mesh that it is traced on.

An abstract mesh has no device order, so jax accepts programs on an abstract mesh that it
refuses on real devices. These checks catch such programs early.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from jax.sharding import AbstractMesh, Mesh

from shardviz.base.backend import jax_compat
from shardviz.base.errors import ProgramError
from shardviz.base.format import joined, plural
from shardviz.base.mesh import MeshSpec
from shardviz.base.mesh_context import MeshContext
from shardviz.programs.backend.failures import source_of
from shardviz.programs.backend.jaxprs import (
    device_meshes_in,
    mesh_of_value,
    users_line,
)

if TYPE_CHECKING:
    from jax.extend.core import JaxprEqn

    from shardviz.programs.backend.jaxpr_names import AnyJaxpr

T = TypeVar("T")


def refuse_other_device_order(
    jaxpr: AnyJaxpr, mesh: MeshSpec, traced_on: Mesh | AbstractMesh
) -> None:
    """Raises if a program names devices, or an order, that differ from its mesh.

    Args:
        jaxpr: the traced program.
        mesh: the program's mesh.
        traced_on: the jax mesh of the trace. If it has devices, as a mesh of described
            hardware has, their order counts.

    Raises:
        ProgramError: with both lists of devices, and the line that names the second.
    """
    for named, equation in device_meshes_in(jaxpr):
        # Computed only if the program names a mesh, because meshes may be large.
        expected = mesh.device_ids.ravel().tolist()
        if isinstance(traced_on, Mesh):
            expected = [device.id for device in traced_on.devices.flat]
        devices = [device.id for device in named.devices.flat]
        if devices == expected:
            continue
        in_program = joined(map(str, expected), "and", 16)
        in_function = joined(map(str, devices), "and", 16)
        operation = naming_operation(equation)

        def noun(ids: list[int]) -> str:
            return "device" if len(ids) == 1 else "devices"

        if sorted(devices) == sorted(expected):
            raise ProgramError(
                f"Two meshes hold the same {plural(len(expected), 'device')} in another"
                f" order. The program's mesh: {in_program}; {operation}: {in_function}. A"
                " program runs on one order of devices: make both meshes from one array of"
                " devices, or move the array first with jax.device_put."
            )
        # Without devices, the ids of a mesh are arbitrary.
        if mesh.concrete:
            raise ProgramError(
                f"The program's mesh has {noun(expected)} {in_program}, and {operation}"
                f" names {noun(devices)} {in_function}. jax refuses such a call. Make both"
                " meshes from the same devices, or move the arrays with jax.device_put."
            )


def refuse_other_devices(context: MeshContext, mesh: MeshSpec) -> None:
    """Raises if a program's arrays are not on the devices of the mesh in context.

    Raises:
        ProgramError: with both lists of devices.
    """
    current = context.current
    if current is None or not (current.concrete and mesh.concrete):
        return
    on, in_context = (m.device_ids.ravel().tolist() for m in (mesh, current))
    if on != in_context:
        raise ProgramError(
            f"The arrays are on a mesh of the devices {joined(map(str, on), 'and', 16)},"
            f" and the mesh of jax.set_mesh, ({current}), has the devices"
            f" {joined(map(str, in_context), 'and', 16)}. jax refuses such a call. Set the"
            " arrays' own mesh, or move the arrays with jax.device_put."
        )


def naming_operation(equation: JaxprEqn) -> str:
    """Returns the name of an equation's primitive, with its source line if known.

    >>> import jax
    >>> naming_operation(jax.make_jaxpr(jax.numpy.sin)(1.0).eqns[0])
    'sin'
    """
    line = users_line(equation)
    return equation.primitive.name + (f" ({line})" if line else "")


@dataclass
class MeshConflict:
    """A mesh named in a program that jax refuses because of the mesh in context.

    Attributes:
        context: the mesh in context.
        named: the mesh that the program names; None if jax refused no mesh.
        source: the user's source line that names that mesh.
    """

    context: AbstractMesh
    named: AbstractMesh | None = None
    source: str = ""


def noting_conflict(fn: Callable[..., T], conflict: MeshConflict) -> Callable[..., T]:
    """Wraps a function to record in `conflict` which of its meshes jax refuses."""

    @functools.wraps(fn)
    def noting(*args: object) -> T:
        try:
            return fn(*args)
        except ValueError as error:
            # Read here, because jax removes its own frames from the error afterwards.
            conflict.named = _named(error, conflict.context)
            conflict.source = source_of(error)
            raise

    return noting


def refuse_other_axes(conflict: MeshConflict, mesh: MeshSpec) -> None:
    """Raises if a program names a mesh whose axes differ from the program's mesh.

    Meshes with the same axes may differ in device kind. jax compares the device kind,
    but plans don't depend on it.

    Raises:
        ProgramError: names both meshes.
    """
    named = conflict.named
    if named is None or _axes(named) == _axes(conflict.context):
        return
    at = f" at {conflict.source}" if conflict.source else ""
    raise ProgramError(
        f"The function names a mesh of its own{at}, {mesh_sizes(named)}, and the"
        f" program's mesh is {mesh}. Their axes differ, in names, sizes or types. Give"
        " both the same mesh."
    )


def mesh_sizes(mesh: Mesh | AbstractMesh) -> str:
    """Formats the axes of a jax mesh: `data=4, model=2`; `""` for no axes."""
    sizes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    return ", ".join(f"{name}={size}" for name, size in sizes)


def _named(error: BaseException, context: AbstractMesh) -> AbstractMesh | None:
    """Finds the named mesh in the local variables of the jax function that raised."""
    frame = jax_compat.frame_refusing_mesh(error)
    if frame is None:
        return None
    for value in frame.f_locals.values():
        named = mesh_of_value(value)
        mesh = None if named is None else named.abstract_mesh
        if mesh is None or mesh.empty or mesh == context:
            continue
        # Skip the mesh inside a shard_map, whose axes are Manual: jax's error is about
        # the outer mesh.
        if all(axis_type.name != "Manual" for axis_type in mesh.axis_types):
            return mesh
    return None


def _axes(mesh: AbstractMesh) -> tuple[object, ...]:
    return tuple(mesh.axis_names), tuple(mesh.axis_sizes), tuple(mesh.axis_types)
