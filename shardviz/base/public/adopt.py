"""Converts arguments of public functions (jax objects, text) to shardviz values."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from shardviz.axis_rules.dialects import Dialect
from shardviz.axis_rules.libraries import (
    library_of,
    mesh_of,
    without_metadata,
)
from shardviz.axis_rules.maxtext import mesh_of_config
from shardviz.axis_rules.requests import request
from shardviz.axis_rules.rule_tables import dialect_of, read_yaml
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec, array_dtype
from shardviz.base.errors import LayoutError, MeshError, SpecError, needed_by
from shardviz.base.format import shown
from shardviz.base.layout import Layout, lay_out
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.parse import MAX_TEXT, limited, read_text_file
from shardviz.base.partition_spec import MAX_RANK, Spec
from shardviz.base.typing import (
    ArrayLike,
    DialectLike,
    DtypeLike,
    MeshLike,
    PyTree,
    RulesLike,
    ShapeLike,
    ShardingLike,
    SpecLike,
)
from shardviz.hardware.topology import Topology
from shardviz.legacy.partitions import Parts, parts_layout
from shardviz.legacy.sharding_spec import ShardingSpec, sharding_spec_layout
from shardviz.legacy.typed import is_sharding_spec, parse_sharding_spec

if TYPE_CHECKING:
    import jax

T = TypeVar("T")


def adopt(value: object) -> Any:
    """Converts a jax object to a shardviz value; returns other objects unchanged."""
    if is_jax(value):
        return bridge().adopt(value)
    return value


def optional(read: Callable[[Any], T], argument: object) -> T | None:
    """Applies `read` to an argument unless it was omitted (None)."""
    if argument is None:
        return None
    return read(argument)


def is_jax(value: object) -> bool:
    """True if jax or jaxlib defines the class of a value."""
    # Looks at the module name, so jax need not be imported.
    return type(value).__module__.partition(".")[0] in ("jax", "jaxlib")


def is_jax_function(value: object) -> bool:
    """True for a function that jax returned, except a Mesh, which is callable too."""
    return is_jax(value) and callable(value) and not hasattr(value, "axis_names")


def is_compiled(value: object) -> TypeGuard[jax.stages.Compiled]:
    """True for a `jax.stages.Compiled`."""
    return is_jax(value) and type(value).__name__ == "Compiled"


def is_lowered(value: object) -> TypeGuard[jax.stages.Lowered]:
    """True for a `jax.stages.Lowered`."""
    return is_jax(value) and type(value).__name__ == "Lowered"


def as_mesh(
    axes: MeshLike | None,
    count_devices: Callable[[], int] | None = None,
    **options: Any,
) -> MeshSpec:
    """Reads a mesh from any form that `sv.mesh` accepts.

    Args:
        axes: a mesh, text, a mapping, pairs, or the path of a MaxText configuration.
        count_devices: returns the number of devices, for an axis of size -1; by
            default, the number of attached devices.
        options: further arguments of `make_mesh`.
    """
    count_devices = count_devices or _count_attached_devices
    if (mesh := foreign_mesh(axes)) is not None:
        return mesh
    is_file = isinstance(axes, str) and axes.lower().endswith((".yaml", ".yml"))
    if is_file or isinstance(axes, os.PathLike):
        path = Path(str(axes))
        try:
            config = dict(read_yaml(read_text_file(path, MAX_TEXT)))
        except (ValueError, TypeError) as error:
            raise MeshError(
                f"{shown(str(path))} is not a configuration: {error}"
            ) from None
        return mesh_of_config(config, count_devices)
    return make_mesh(axes, count_devices=count_devices, **options)


def _count_attached_devices() -> int:
    """The number of attached devices. Starts jax's backend."""
    with needed_by("A size of -1"):
        from shardviz.programs.backend.devices import attached_devices
    return len(attached_devices(None))


def foreign_mesh(mesh: object) -> MeshSpec | None:
    """Converts a jax or Keras mesh to a MeshSpec; None for other kinds of objects."""
    if isinstance(mesh, MeshSpec):
        return mesh
    if is_jax(mesh):
        return bridge().adopt_mesh(mesh)
    if library_of(type(mesh)) == "keras":
        return mesh_of(mesh)
    return None


def mesh_in_context() -> MeshSpec | None:
    """The mesh in context, such as from `jax.set_mesh`, with devices if it has any."""
    # If jax is not imported, no mesh can be in context.
    if "jax" not in sys.modules:
        return None
    with needed_by("The mesh in context"):
        from shardviz.programs.backend.mesh_context import mesh_context
    context = mesh_context()
    if context.current is not None and not context.overlaid:
        return context.current
    return context.mesh


def children_of(container: PyTree) -> list[tuple[str, Any]] | None:
    """The children of a pytree node that is registered with jax; None otherwise."""
    # A class can be registered only if jax is imported.
    if "jax" not in sys.modules:
        return None
    return bridge().tree_children(container)


def as_topology(thing: Topology | str) -> Topology:
    """Returns a Topology, parsing text such as `"tpu:v5e:4x4"`."""
    return thing if isinstance(thing, Topology) else Topology.parse(thing)


def as_spec(spec: SpecLike | ShardingLike) -> Spec:
    """Reads a Spec from text, a jax PartitionSpec, a tuple, or a Spec.

    Raises:
        SpecError: for anything else.
    """
    if isinstance(spec, Spec):
        return spec
    if isinstance(spec, str):
        return Spec.parse(spec)
    if is_jax(spec):
        adopted = bridge().adopt(spec)
        if isinstance(adopted, Spec):
            return adopted
    if isinstance(spec, (tuple, list)):
        return Spec.of(*limited(spec, MAX_RANK, "The entries of a spec", SpecError))
    raise SpecError(
        f"A spec is text such as P('x', None), or jax's own; got {shown(spec)}."
    )


def as_legacy(spec: object) -> ShardingSpec | Parts | None:
    """Returns a legacy ShardingSpec or Parts, parsing text; None for anything else."""
    if isinstance(spec, str) and is_sharding_spec(spec):
        return parse_sharding_spec(spec)
    if isinstance(spec, (ShardingSpec, Parts)):
        return spec
    return None


def bridge() -> ModuleType:
    """Imports and returns the module that converts jax objects."""
    with needed_by("jax's own objects"):
        from shardviz.programs.backend import bridge
    return bridge


def _layout_call(mesh: MeshSpec) -> str:
    """The call that splits the first dimension over a mesh's first axis."""
    return f"sv.layout(x, P({mesh.axis_names[0]!r}), mesh)"


def layout_of(
    array: ShapeLike | ArrayLike,
    spec: ShardingLike | None,
    mesh: MeshLike | None,
    rules: RulesLike | None,
    dtype: DtypeLike | None,
    dialect: DialectLike | None,
) -> Layout:
    """Computes a Layout from any form that `sv.layout` accepts.

    Raises:
        ShardvizError: if an argument is missing or the array cannot be laid out.
    """
    # Parameter boxes of flax and other libraries can be nested.
    while (box := without_metadata(array)) is not None:
        array = box.value
    if isinstance(array, Spec) or (is_jax(array) and not hasattr(array, "shape")):
        raise LayoutError(
            f"The first argument is an array or its shape; got {shown(array)}. Write"
            " sv.layout(x, spec, mesh), or sv.layout(x, sharding)."
        )
    if isinstance(spec, MeshSpec) or (is_jax(spec) and hasattr(spec, "axis_names")):
        misplaced: Any = spec
        raise LayoutError(
            f"A spec comes before the mesh; got the mesh {as_mesh(misplaced)} there."
            f" Write {_layout_call(as_mesh(misplaced))}, or P() for a copy on every"
            " device."
        )
    if spec is None and is_jax(array):
        placed = bridge().adopt_layout(array)
        if mesh is not None and as_mesh(mesh).shape != placed.mesh.shape:
            raise LayoutError(
                f"A mesh needs a spec; got {as_mesh(mesh)} for an array that is placed"
                f" on {placed.mesh}. Write {_layout_call(as_mesh(mesh))}, or P() for a"
                " copy on every device."
            )
        return placed
    shape: Any = getattr(array, "shape", array)
    if dtype is None:
        has_dtype = getattr(array, "dtype", None) is not None
        dtype = array_dtype(array) if has_dtype else "float32"
    if is_jax(spec) and hasattr(spec, "shard_shape"):
        return bridge().sharding_layout(shape, dtype, spec)
    # A ShardingSpec or integer partitions need no mesh, only device ids.
    legacy = as_legacy(spec)
    if legacy is not None:
        ids = None
        if mesh is not None:
            ids = as_mesh(mesh).device_ids
        if isinstance(legacy, Parts):
            return parts_layout(shape, legacy, ids, dtype)
        return sharding_spec_layout(legacy, shape, dtype, ids)
    if mesh is None:
        raise LayoutError(
            f"A layout needs a mesh; got none with {shown(array)}. Give one as the"
            " third argument, such as sv.mesh(data=4, model=2)."
        )
    grid = as_mesh(mesh)
    if isinstance(array, ArraySpec):
        if spec is not None:
            array = array.replace(spec=as_spec(spec))
        table = optional(Rules.of, rules)
        reader = Dialect.of(dialect_of(table, dialect), paths=False)
        row = request(array, grid, table, reader)
        if row.layout is None:
            raise LayoutError(f"{array.name}: {row.problem}")
        # The request lets the layout's picture show the rules for each dimension.
        return replace(row.layout, request=row)
    if spec is None:
        raise LayoutError(
            "A layout of a bare shape needs a PartitionSpec; got none. Write"
            ' "None, \'model\'" or "" to split no dimension.'
        )
    return lay_out(shape, as_spec(spec), grid, dtype)
