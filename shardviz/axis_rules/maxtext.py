"""Reads MaxText files: the mesh in a configuration, and records of shardings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from shardviz.base.errors import MeshError
from shardviz.base.format import shown
from shardviz.base.mesh import MeshSpec, filled_sizes

# A jax key in a path: a dict key, a sequence index, or an attribute.
_KEY = re.compile(r"\['(.*)'\]|\[(\d+)\]|\.(.*)")


class RecordedArray(NamedTuple):
    """An array in a MaxText file of `named_shardings` or `logical_shardings`.

    Attributes:
        shape: the array's shape.
        entries: the entries of the array's PartitionSpec, or its logical names.
        mesh: the mesh of the sharding; None for logical names.

    >>> read_record({"partition_spec": ["embed", None], "shape": [8, 4]}).entries
    ('embed', None)
    """

    shape: tuple[int, ...]
    entries: tuple[Any, ...]
    mesh: MeshSpec | None


def read_record(value: Mapping[Any, Any]) -> RecordedArray | None:
    """Reads the record of one array; returns None for any other mapping."""
    if not {"partition_spec", "shape"} <= value.keys():
        return None
    if not value.keys() <= {"partition_spec", "shape", "mesh"}:
        return None
    shape, spec = value["shape"], value["partition_spec"]
    if not isinstance(shape, list) or not isinstance(spec, list):
        return None
    entries = []
    for entry in spec:
        entries.append(tuple(entry) if isinstance(entry, list) else entry)
    mesh = None
    mesh_record = value.get("mesh")
    if isinstance(mesh_record, Mapping) and isinstance(
        mesh_record.get("shape"), Mapping
    ):
        sizes = mesh_record["shape"]
        names = tuple(mesh_record.get("axis_names") or sizes)
        mesh = MeshSpec(names, tuple(sizes.get(name, 1) for name in names))
    return RecordedArray(tuple(shape), tuple(entries), mesh)


def plain_path(path: str) -> str:
    """Converts an array's path in a MaxText file to shardviz's form of tree paths.

    >>> plain_path("['model']/['layers']/[0]/['kernel']/.value")
    'model/layers/0/kernel'
    """
    keys = []
    for part in path.split("/"):
        match = _KEY.fullmatch(part)
        keys.append(part if match is None else next(filter(None, match.groups()), part))
    # nnx stores an array in the attribute `value` of its Variable.
    if len(keys) > 1 and path.endswith("/.value"):
        keys.pop()
    return "/".join(keys)


def mesh_of_config(
    config: Mapping[Any, Any], count_devices: Callable[[], int]
) -> MeshSpec:
    """Returns the mesh of a configuration with `mesh_axes` and `ici_..._parallelism`.

    An axis' size is its size within a slice (`ici`) times its size across slices
    (`dcn`). A size of -1 means all remaining devices or slices.

    Args:
        config: the parsed configuration.
        count_devices: returns the total number of devices; called if a size is -1.

    Raises:
        MeshError: if the configuration has no mesh, or its sizes are invalid.

    >>> config = {"mesh_axes": ["data", "fsdp"], "ici_fsdp_parallelism": -1}
    >>> mesh_of_config(config, lambda: 16).shape
    {'data': 1, 'fsdp': 16}
    """
    axes = config.get("mesh_axes")
    if isinstance(axes, str):
        axes = [axes]
    if not isinstance(axes, Sequence) or not axes:
        raise MeshError(
            "A mesh is read from the mesh_axes of a configuration and a size for each,"
            " such as ici_fsdp_parallelism; there is no mesh_axes in it."
        )
    slices = config.get("compile_topology_num_slices", 1)
    # MaxText uses -1 or 0 if it doesn't compile for a topology.
    if not isinstance(slices, int) or slices < 1:
        slices = 1
    between = filled_sizes(_sizes(config, axes, "dcn"), lambda: slices)
    across = math.prod(between)
    inside = filled_sizes(
        _sizes(config, axes, "ici"), lambda: max(1, count_devices() // across)
    )
    sizes = tuple(a * b for a, b in zip(between, inside, strict=True))
    return MeshSpec(tuple(axes), sizes)


def _sizes(config: Mapping[Any, Any], axes: Sequence[Any], kind: str) -> list[int]:
    sizes = []
    for axis in axes:
        key = f"{kind}_{axis}_parallelism"
        size = config.get(key, 1)
        if not isinstance(size, int) or isinstance(size, bool):
            raise MeshError(f"{key} is a whole number; got {shown(size)}.")
        sizes.append(size)
    return sizes
