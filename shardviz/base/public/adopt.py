"""Converts what callers pass (JAX objects, text, tuples) to shardviz values."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from shardviz.axis_rules.libraries import (
    library_of,
    mesh_of,
    without_metadata,
)
from shardviz.axis_rules.maxtext import mesh_of_config
from shardviz.axis_rules.requests import request
from shardviz.axis_rules.rule_tables import read_yaml
from shardviz.axis_rules.rules import Dialect, Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import LayoutError, MeshError, SpecError, needed_by
from shardviz.base.format import shown
from shardviz.base.layout import Layout, lay_out
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.parse import MAX_TEXT, limited, read_text_file
from shardviz.base.partition_spec import MAX_RANK, Spec
from shardviz.hardware.topology import Topology
from shardviz.legacy.partitions import Parts, parts_layout
from shardviz.legacy.sharding_spec import ShardingSpec, sharding_spec_layout
from shardviz.legacy.typed import is_sharding_spec, parse_sharding_spec

T = TypeVar("T")


def adopt(thing: Any) -> Any:
    """jax's own objects as ours; everything else as it is."""
    if is_jax(thing):
        return bridge().adopt(thing)
    return thing


def optional(read: Callable[[Any], T], thing: Any) -> T | None:
    """What `read` makes of an argument; None where the argument was left out."""
    if thing is None:
        return None
    return read(thing)


def is_jax(thing: Any) -> bool:
    """Whether `thing` is one of jax's own objects."""
    # By the module of its class, so that jax need not be installed.
    return type(thing).__module__.partition(".")[0] in ("jax", "jaxlib")


def as_mesh(
    thing: Any, count_devices: Callable[[], int] | None = None, **options: Any
) -> MeshSpec:
    """A MeshSpec from anything that `sv.mesh` takes.

    Args:
        thing: a mesh, text, a mapping, pairs, or the path of a MaxText configuration.
        count_devices: how many devices there are, for a size of -1; by default as many
            as are attached.
        options: more of what `make_mesh` takes.
    """
    count_devices = count_devices or _attached_devices
    if (mesh := foreign_mesh(thing)) is not None:
        return mesh
    is_text = isinstance(thing, str) and thing.lower().endswith((".yaml", ".yml"))
    if is_text or isinstance(thing, os.PathLike):
        path = Path(thing)
        try:
            config = dict(read_yaml(read_text_file(path, MAX_TEXT)))
        except (ValueError, TypeError) as error:
            raise MeshError(
                f"{shown(str(path))} is no configuration: {error}"
            ) from None
        return mesh_of_config(config, count_devices)
    return make_mesh(thing, count_devices=count_devices, **options)


def _attached_devices() -> int:
    """How many devices jax has, which starts it."""
    with needed_by("A size of -1"):
        from shardviz.programs.backend.devices import attached_devices
    return len(attached_devices(None))


def foreign_mesh(thing: Any) -> MeshSpec | None:
    """A MeshSpec as it is, and that of a mesh of jax or Keras; None for all else."""
    if isinstance(thing, MeshSpec):
        return thing
    if is_jax(thing):
        return bridge().adopt_mesh(thing)
    if library_of(type(thing)) == "keras":
        return mesh_of(thing)
    return None


def mesh_in_context() -> MeshSpec | None:
    """The mesh in context, as of `jax.set_mesh`, with its devices if it has any."""
    # A mesh is in context only if the user has imported jax.
    if "jax" not in sys.modules:
        return None
    with needed_by("The mesh in context"):
        from shardviz.programs.backend.mesh_context import mesh_context
    context = mesh_context()
    if context.current is not None and not context.overlaid:
        return context.current
    return context.mesh


def children_of(container: Any) -> list[tuple[str, Any]] | None:
    """The parts of a container that is registered with jax; None for all else."""
    # Whoever registered it has imported jax.
    if "jax" not in sys.modules:
        return None
    return bridge().tree_children(container)


def as_topology(thing: Topology | str) -> Topology:
    """A topology, parsed if it is text such as `"tpu:v5e:4x4"`."""
    return thing if isinstance(thing, Topology) else Topology.parse(thing)


def as_spec(thing: Any) -> Spec:
    """A Spec from text, jax's own, a tuple, or a Spec.

    Raises:
        SpecError: for anything else.
    """
    if isinstance(thing, Spec):
        return thing
    if isinstance(thing, str):
        return Spec.parse(thing)
    if is_jax(thing):
        adopted = bridge().adopt(thing)
        if isinstance(adopted, Spec):
            return adopted
    if isinstance(thing, (tuple, list)):
        return Spec.of(*limited(thing, MAX_RANK, "The entries of a spec", SpecError))
    raise SpecError(
        f"A spec is text such as P('x', None), or jax's own; got {shown(thing)}."
    )


def as_legacy(thing: Any) -> ShardingSpec | Parts | None:
    """A ShardingSpec or Parts as it is, the text of a ShardingSpec parsed; None for all
    else.
    """
    if isinstance(thing, str) and is_sharding_spec(thing):
        return parse_sharding_spec(thing)
    if isinstance(thing, (ShardingSpec, Parts)):
        return thing
    return None


def bridge() -> ModuleType:
    """The module that converts jax's own objects; imported when one is first met."""
    with needed_by("jax's own objects"):
        from shardviz.programs.backend import bridge
    return bridge


def layout_of(
    thing: Any, spec: Any, mesh: Any, rules: Any, dtype: Any, dialect: Any
) -> Layout:
    """A Layout from any of the forms that `sv.layout` takes.

    Raises:
        ShardvizError: where something is missing or does not work out.
    """
    # A box of flax or another library, maybe in one more box.
    while (box := without_metadata(thing)) is not None:
        thing = box.value
    if spec is None and is_jax(thing):
        return bridge().adopt_layout(thing)
    shape = getattr(thing, "shape", thing)
    if dtype is None:
        dtype = getattr(thing, "dtype", None) or "float32"
    if is_jax(spec) and hasattr(spec, "shard_shape"):
        return bridge().sharding_layout(shape, dtype, spec)
    # A ShardingSpec and integer partitions say how to split, on any devices.
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
            f"A layout needs a mesh; got none beside {shown(thing)}. Give one as the"
            " third argument, such as sv.mesh(data=4, model=2)."
        )
    grid = as_mesh(mesh)
    if isinstance(thing, ArraySpec):
        if spec is not None:
            thing = thing.replace(spec=as_spec(spec))
        table = optional(Rules.of, rules)
        row = request(thing, grid, table, Dialect.of(dialect, paths=False))
        if row.layout is None:
            raise LayoutError(f"{thing.name}: {row.problem}")
        # It knows which rules split it, so that its picture can say so.
        return replace(row.layout, request=row)
    if spec is None:
        raise LayoutError(
            "A layout of a bare shape needs a PartitionSpec; got none. Write"
            ' "None, \'model\'" or "" to split no dimension.'
        )
    return lay_out(shape, as_spec(spec), grid, dtype)
