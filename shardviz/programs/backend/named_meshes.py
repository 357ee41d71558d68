"""Compares the meshes that a program names with the mesh that it is traced on.

On an abstract mesh there is no order of devices, so jax accepts programs there that it
refuses on real devices. These checks find such programs first.
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


def refuse_other_device_order(jaxpr: AnyJaxpr, mesh: MeshSpec) -> None:
    """Refuses a program that names other devices than its mesh, or names them in
    another order.

    Raises:
        ProgramError: with both lists of devices, and the source line of the second.
    """
    for named, equation in device_meshes_in(jaxpr):
        # Inside the loop, since most programs name no mesh, and meshes may be large.
        expected = mesh.device_ids.ravel().tolist()
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
        # The ids of a mesh that was only described name no devices.
        if mesh.concrete:
            raise ProgramError(
                f"The program's mesh has {noun(expected)} {in_program}, and {operation}"
                f" names {noun(devices)} {in_function}. jax refuses such a call. Make both"
                " meshes from the same devices, or move the arrays with jax.device_put."
            )


def refuse_other_devices(context: MeshContext, mesh: MeshSpec) -> None:
    """Refuses a program whose arrays are on other devices than `jax.set_mesh` has set.

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
    """The operation that names a mesh, with its source line if jax recorded one.

    >>> import jax
    >>> naming_operation(jax.make_jaxpr(jax.numpy.sin)(1.0).eqns[0])
    'sin'
    """
    line = users_line(equation)
    return equation.primitive.name + (f" ({line})" if line else "")


@dataclass
class MeshConflict:
    """A mesh that a program names and that jax refuses because of the mesh in context.

    Attributes:
        context: the mesh in context.
        named: the mesh that the program names; None if jax refused none.
        source: the line of the user's code that names it.
    """

    context: AbstractMesh
    named: AbstractMesh | None = None
    source: str = ""


def noting_conflict(fn: Callable[..., T], conflict: MeshConflict) -> Callable[..., T]:
    """The same function; records in `conflict` which of its meshes jax refuses."""

    @functools.wraps(fn)
    def noting(*args: object) -> T:
        try:
            return fn(*args)
        except ValueError as error:
            # jax removes its own frames from the error before the caller sees it.
            conflict.named = _named(error, conflict.context)
            conflict.source = source_of(error)
            raise

    return noting


def refuse_other_axes(conflict: MeshConflict, mesh: MeshSpec) -> None:
    """Refuses a program that names a mesh with other axes than its own.

    Two meshes with the same axes may differ in the kind of device. jax compares it, and
    a plan does not depend on it.

    Raises:
        ProgramError: naming both meshes.
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
    """The axes of a jax mesh with their sizes: `data=4, model=2`; `""` for none."""
    sizes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    return ", ".join(f"{name}={size}" for name, size in sizes)


def _named(error: BaseException, context: AbstractMesh) -> AbstractMesh | None:
    """The other mesh among the variables of the jax function that raised the error."""
    frame = jax_compat.frame_refusing_mesh(error)
    if frame is None:
        return None
    for value in frame.f_locals.values():
        named = mesh_of_value(value)
        mesh = None if named is None else named.abstract_mesh
        if mesh is None or mesh.empty or mesh == context:
            continue
        # Inside a shard_map its axes are Manual; jax compares the mesh outside.
        if all(axis_type.name != "Manual" for axis_type in mesh.axis_types):
            return mesh
    return None


def _axes(mesh: AbstractMesh) -> tuple[object, ...]:
    return tuple(mesh.axis_names), tuple(mesh.axis_sizes), tuple(mesh.axis_types)
