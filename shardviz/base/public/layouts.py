"""Public functions for meshes, arrays and layouts: `sv.mesh`, `sv.array`, `sv.layout`, `sv.to_jax`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardviz.base.array_spec import ArraySpec, read_shape
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec
from shardviz.base.public.adopt import (
    as_mesh,
    as_spec,
    bridge,
    layout_of,
    optional,
)

if TYPE_CHECKING:
    pass


def mesh(
    axes: Any = None,
    *,
    axis_types: Any = None,
    device_ids: Any = None,
    processes: Any = None,
    **sizes: int,
) -> MeshSpec:
    """A mesh: named axes over devices, with or without the devices.

    Args:
        axes: text such as `"data=4, model=2"`, a mapping, pairs, a jax `Mesh` or
            `AbstractMesh`, a Keras `DeviceMesh`, or the path of a MaxText configuration
            with `mesh_axes`. One size may be -1, for the devices that are left: of
            `device_ids`, else of those attached.
        axis_types: `"Auto"`, `"Explicit"` or `"Manual"`, one for all or one per axis.
        device_ids: the ids in mesh order; 0, 1, 2, … by default.
        processes: how many hosts share the devices, or the process of each device.
        **sizes: the axes as keywords, in place of `axes`.

    Raises:
        ShardvizError: for axes, types, ids or processes that make no mesh.

    >>> mesh(data=4, model=2).size
    8
    """
    options: dict[str, Any] = {"axis_types": axis_types, "device_ids": device_ids}
    options |= {"processes": processes, **sizes}
    return as_mesh(axes, **options)


def array(
    name: str, shape: Any, logical: Any = None, dtype: Any = "float32", spec: Any = None
) -> ArraySpec:
    """An array that need not exist.

    Args:
        name: what to call it.
        shape: its global shape, in elements.
        logical: one logical axis name for each dimension, as text or a sequence.
        dtype: its element type.
        spec: a PartitionSpec that wins over any rules.

    Raises:
        ShardvizError: for a shape, dtype, names or spec that no array has.

    >>> array("w", (512, 2048), "embed mlp", dtype="bfloat16").short
    'bf16[512, 2048]'
    """
    own_spec = optional(as_spec, spec)
    return ArraySpec(name, read_shape(shape), logical, dtype, own_spec)


def layout(
    thing: Any,
    spec: Any = None,
    mesh: Any = None,
    *,
    rules: Any = None,
    dtype: Any = None,
    dialect: Any = "linen",
) -> Layout:
    """Which part of an array each device holds.

    Args:
        thing: a shape, an ArraySpec, a jax `ShapeDtypeStruct` with a sharding, or a
            live array, also in a box of flax.
        spec: a PartitionSpec as text or jax's own, any jax `Sharding`, a ShardingSpec
            or Parts.
        mesh: the mesh, where `spec` has none.
        rules: axis rules, for an ArraySpec with logical names.
        dtype: the element type, where `thing` has none; float32 by default.
        dialect: who reads the rules.

    Raises:
        ShardvizError: where the array cannot be laid out so, with what would work.

    >>> from shardviz.base.mesh import make_mesh
    >>> layout((512, 2048), "None, model", make_mesh(data=4, model=2)).shard_shape
    (512, 1024)
    """
    return layout_of(thing, spec, mesh, rules, dtype, dialect)


def to_jax(thing: Any) -> Any:
    """jax's own object for a value: a Mesh, PartitionSpec, NamedSharding,
    ShapeDtypeStruct.

    Args:
        thing: a MeshSpec, Spec, Layout, ArraySpec, Resolution, Rules or Program.

    Raises:
        ShardvizError: where there is none.

    >>> to_jax(layout((8,), "data", "data=4")).spec
    P('data',)
    """
    return bridge().to_jax(thing)
