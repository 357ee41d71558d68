"""The public functions `sv.mesh`, `sv.array`, `sv.layout` and `sv.to_jax`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from shardviz.base.array_spec import ArraySpec, dtype_name, read_shape
from shardviz.base.errors import LayoutError, MeshError
from shardviz.base.format import shown
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec
from shardviz.base.public.adopt import (
    as_mesh,
    as_spec,
    bridge,
    layout_of,
    optional,
)
from shardviz.base.typing import (
    ArrayLike,
    AxisTypesLike,
    DialectLike,
    DtypeLike,
    MeshLike,
    NamesLike,
    RulesLike,
    ShapeLike,
    ShardingLike,
    SpecLike,
)


def mesh(
    axes: MeshLike | Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    *,
    axis_types: AxisTypesLike | None = None,
    device_ids: npt.ArrayLike | None = None,
    processes: npt.ArrayLike | None = None,
    **sizes: int,
) -> MeshSpec:
    """Creates a mesh of named axes over devices that need not exist.

    Args:
        axes: text such as `"data=4, model=2"`, a mapping of names to sizes, (name,
            size) pairs, a jax `Mesh` or `AbstractMesh`, a Keras `DeviceMesh`, or the
            path of a MaxText configuration with `mesh_axes`; or the sizes alone,
            followed by `names` as in `jax.make_mesh`. One size can be -1; it is then
            computed from the number of `device_ids`, or of attached devices if there
            are no `device_ids`.
        names: the names of the axes, if `axes` are sizes.
        axis_types: `"Auto"`, `"Explicit"` or `"Manual"`, one for all axes or one per
            axis.
        device_ids: the device ids in mesh order; by default 0, 1, 2, ...
        processes: the number of hosts, which share the devices evenly and in order; or
            the process index of each device, in mesh order.
        **sizes: the axes as keywords, instead of `axes`.

    Raises:
        ShardvizError: if the axes, types, ids or processes do not form a mesh.

    >>> import shardviz as sv
    >>> sv.mesh(data=4, model=2).size
    8
    """
    options: dict[str, Any] = {"axis_types": axis_types, "device_ids": device_ids}
    options |= {"processes": processes, **sizes}
    pairs: Any = axes
    if names is not None:
        pairs = _named_axes(axes, names)
    return as_mesh(pairs, **options)


def _named_axes(sizes: Any, names: Sequence[str]) -> list[tuple[str, int]]:
    """Pairs names with sizes, as `jax.make_mesh` takes them.

    Raises:
        MeshError: if these are not as many sizes as names.
    """
    both = isinstance(sizes, (tuple, list)) and isinstance(names, (tuple, list))
    if not both or len(sizes) != len(names):
        raise MeshError(
            "The sizes and names of a mesh must be two sequences of the same length,"
            f" such as sv.mesh((4, 2), ('data', 'model')); got {shown(sizes)} and"
            f" {shown(names)}."
        )
    return list(zip(names, sizes, strict=True))


def array(
    name: str | ShapeLike,
    shape: ShapeLike | NamesLike | None = None,
    logical: NamesLike | None = None,
    dtype: DtypeLike = "float32",
    spec: SpecLike | None = None,
) -> ArraySpec:
    """Describes an array, which need not exist.

    Args:
        name: the name to show. Calls can omit the name:
            `sv.array((512, 2048), "embed mlp")`.
        shape: the global shape, in elements.
        logical: one logical axis name per dimension, as text such as `"embed mlp"` or
            as a sequence.
        dtype: the element type.
        spec: a PartitionSpec, which overrides any rules.

    Raises:
        ShardvizError: if the shape, dtype, names or spec are invalid.

    >>> import shardviz as sv
    >>> sv.array("w", (512, 2048), "embed mlp", dtype="bfloat16").short
    'bf16[512, 2048]'
    """
    size: Any = shape
    # ArraySpec also parses text, but its fields are typed as already parsed.
    names: Any = logical
    if not isinstance(name, str):
        if logical is not None:
            raise LayoutError(
                "The name of an array comes first: sv.array('w', (512, 2048), 'embed"
                f" mlp'); got {shown(name)} there."
            )
        name, size, names = "array", name, shape
    return ArraySpec(
        name, read_shape(size), names, dtype_name(dtype), optional(as_spec, spec)
    )


def layout(
    array: ShapeLike | ArrayLike,
    spec: ShardingLike | None = None,
    mesh: MeshLike | None = None,
    *,
    rules: RulesLike | None = None,
    dtype: DtypeLike | None = None,
    dialect: DialectLike | None = None,
) -> Layout:
    """Computes which part of an array each device holds.

    Args:
        array: a shape, an ArraySpec, a jax `ShapeDtypeStruct` with a sharding, or a
            live array, possibly in a flax parameter box. As in jax, a numpy array of
            64 bits becomes one of 32 bits unless `jax_enable_x64` is on.
        spec: a PartitionSpec (text or jax object), a jax `Sharding`, or a ShardingSpec
            or Parts of `shardviz.legacy`.
        mesh: the mesh, if `spec` has none.
        rules: axis rules, for an ArraySpec with logical names.
        dtype: the element type, if `array` has none; float32 by default.
        dialect: the library whose semantics the rules follow; by default the one that
            `sv.rules` got, otherwise `"linen"`.

    Raises:
        ShardvizError: if the array cannot be laid out with this spec or these rules.
            The message suggests an alternative.

    >>> import shardviz as sv
    >>> sv.layout((512, 2048), "None, model", sv.mesh(data=4, model=2)).shard_shape
    (512, 1024)
    """
    return layout_of(array, spec, mesh, rules, dtype, dialect)


def to_jax(thing: object) -> Any:
    """Converts a value to the matching jax object, such as a Mesh or NamedSharding.

    Args:
        thing: a MeshSpec, Spec, Layout, ArraySpec, Resolution, Rules or Program.

    Raises:
        ShardvizError: if jax has no object for the value.

    >>> import shardviz as sv
    >>> sv.to_jax(sv.layout((8,), "data", "data=4")).spec
    P('data',)
    """
    return bridge().to_jax(thing)
