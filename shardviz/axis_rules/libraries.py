"""Reads metadata that flax, haliax, penzai, Keras, orbax and jax store with arrays.

Libraries are recognised by the module of an object's class, and objects are read
through their attributes. This file therefore imports no library, and none needs to be
installed. `without_metadata` reads the array in a metadata wrapper, `model_arrays` the
arrays of a model, and `named_sharding` the mesh axes of a sharding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from shardviz.base.errors import LayoutError
from shardviz.base.mesh import DeviceKind, MeshSpec
from shardviz.base.partition_spec import Spec


class LeafMetadata(NamedTuple):
    """An array and the metadata of its wrapper (`Partitioned`, `Variable`, ...).

    Attributes:
        value: the array.
        axes: one name per dimension; or a Spec, if a sharding names mesh axes; or None.
        logical: True if the names refer to rules only, never to mesh axes
            (`LogicallyPartitioned`).
        mesh: the mesh that the library stores with the names, as an object of the
            library; or None.
        path: the library's name for the array, or None.
        rules: (name, mesh axes) pairs that the library stores with the names (nnx).
        defaults: True if the library leaves arrays without names unsplit, as flax's
            `get_partition_spec` does.
        few_names: `"live"` or `"abstract"` if the wrapper is an nnx Variable with fewer
            names than dimensions, else `""`. This happens if `nnx.vmap` or `nnx.scan`
            stacks layers: the names belong to one layer's dimensions, but flax assigns
            them to the first dimensions of the stack.
    """

    value: Any
    axes: Any = None
    logical: bool = False
    mesh: Any = None
    path: str | None = None
    rules: Any = ()
    defaults: bool = False
    few_names: str = ""


def attribute(value: object, name: str) -> Any:
    """Returns an attribute of a foreign object; None if it is missing or raises."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001  a foreign property can raise anything
        return None


@lru_cache(maxsize=4096)
def library_of(kind: type) -> str:
    """Returns the supported library of a class or one of its bases, or `""`.

    >>> library_of(int), library_of(type("Weight", (), {"__module__": "haliax.core"}))
    ('', 'haliax')
    """
    for base in kind.__mro__:
        package = (base.__module__ or "").partition(".")[0]
        if package in _LIBRARIES:
            return package
    return ""


_LIBRARIES = ("equinox", "flax", "haliax", "keras", "optax", "orbax", "penzai")


def without_metadata(value: object) -> LeafMetadata | None:
    """Unwraps an array and its metadata; returns None if `value` is not a wrapper.

    A wrapper is a linen `Partitioned` or `LogicallyPartitioned`, an nnx `Variable`, a
    haliax or penzai `NamedArray`, a penzai parameter, or a Keras variable.

    >>> class Axis:
    ...     name = "embed"
    >>> class NamedArray:
    ...     __module__ = "haliax.core"
    ...     array, axes = "an array", (Axis,)
    >>> without_metadata(NamedArray()).axes, without_metadata("an array")
    (('embed',), None)
    """
    reader = _BOXES.get(library_of(type(value)))
    if reader is None:
        return None
    return reader(value)


def _flax_box(value: Any) -> LeafMetadata | None:
    # An nnx Variable.
    if callable(attribute(type(value), "get_metadata")):
        metadata: Any = value.get_metadata()
        # Flax has renamed this key twice; try the newest name first.
        names = metadata.get("out_sharding") or metadata.get("sharding_names")
        names = names or metadata.get("sharding") or None
        # Newer versions have `get_value` instead of `value`.
        read = attribute(value, "get_value")
        array = read() if callable(read) else value.value
        mesh = metadata.get("mesh")
        if (sharding := named_sharding(names)) is not None:
            mesh = sharding[1]
        rules = metadata.get("sharding_rules") or ()
        few_names, axes = "", names_of(names)
        if isinstance(axes, tuple) and any(axes):
            if len(axes) < len(attribute(array, "shape") or ()):
                is_live = attribute(array, "addressable_shards") is not None
                few_names = "live" if is_live else "abstract"
        return LeafMetadata(array, axes, False, mesh, None, rules, True, few_names)
    names = attribute(value, "names")
    if names is None or attribute(type(value), "unbox") is None:
        return None
    # A linen wrapper. With a `rules` attribute, its names refer to rules.
    logical, mesh = hasattr(value, "rules"), attribute(value, "mesh")
    rules = attribute(value, "rules") or ()
    if isinstance(names, (tuple, list)):
        names = names_of(names)
    return LeafMetadata(value.value, names, logical, mesh, None, rules, True)


@lru_cache(maxsize=4096)
def _is_plain_array(kind: type) -> bool:
    """Whether `kind` is an array class of jax or numpy."""
    if (kind.__module__ or "").partition(".")[0] not in ("jax", "jaxlib", "numpy"):
        return False
    return hasattr(kind, "shape") and hasattr(kind, "dtype")


def quick_key(value: Any) -> Hashable:
    """Returns a cache key for reading a plain array or one in a linen wrapper.

    The key contains everything that is read from an array, but takes a tenth of the
    time. Large models have many arrays but few different keys. Returns None for other
    objects and for unhashable keys.
    """
    box: Any = ()
    kind = type(value)
    if library_of(kind) == "flax":
        # These are dataclass fields, so getattr raises only AttributeError.
        names = getattr(value, "names", None)
        if names is None:
            return None
        rules = getattr(value, "rules", None)
        box = kind, names, getattr(value, "mesh", None), rules
        value = attribute(value, "value")
        kind = type(value)
    if not _is_plain_array(kind):
        return None
    key = (kind, value.shape, value.dtype, attribute(value, "sharding"), box)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _haliax_box(value: Any) -> LeafMetadata | None:
    axes = attribute(value, "axes")
    if not isinstance(axes, tuple) or not hasattr(value, "array"):
        return None
    return LeafMetadata(value.array, tuple(a.name for a in axes), logical=True)


def _penzai_box(value: Any) -> LeafMetadata | None:
    array = attribute(value, "data_array")
    # A penzai Parameter is a leaf for jax.
    if array is None:
        if not (hasattr(value, "label") and hasattr(value, "metadata")):
            return None
        return LeafMetadata(value.value, path=str(value.label))
    names: list[Any] = [None] * len(array.shape)
    for number, name in enumerate(attribute(value, "named_axes") or ()):
        # Unnamed dimensions come before named ones.
        names[number - len(value.named_axes)] = str(name)
    for name, axis in (attribute(value, "data_axis_for_name") or {}).items():
        names[axis] = str(name)
    return LeafMetadata(array, tuple(names), logical=True)


def _keras_box(value: Any) -> LeafMetadata | None:
    if not (hasattr(value, "path") and hasattr(value, "assign")):
        return None
    # For an uninitialised variable, `value.value` would create the array and use the
    # user's random seed.
    lazily = "_value" if hasattr(value, "_value") else "value"
    array = attribute(value, lazily)
    if array is None:
        array = SimpleNamespace(shape=tuple(value.shape), dtype=value.dtype)
    spec, mesh = named_sharding(attribute(value, "_layout")) or (None, None)
    return LeafMetadata(array, spec, False, mesh, value.path)


_BOXES: dict[str, Callable[[Any], LeafMetadata | None]] = {
    "flax": _flax_box,
    "haliax": _haliax_box,
    "penzai": _penzai_box,
    "keras": _keras_box,
}


def model_arrays(value: object) -> Any:
    """Returns the arrays in a model or in checkpoint metadata as a tree, or None.

    The tree is the state of an nnx module or optimizer; the variables of a bound linen
    module or of a Keras model, layer or optimizer; or the tree in orbax metadata.
    """
    reader = _MODELS.get(library_of(type(value)))
    if reader is None:
        return None
    return reader(value)


def _flax_model(value: Any) -> Any:
    homes = {c.__module__ or "" for c in type(value).__mro__}
    if "flax.linen.module" in homes:
        bound = attribute(value, "scope") is not None
        if not bound or attribute(value, "variables") is None:
            raise LayoutError(
                f"{type(value).__name__} is a module, not its parameters. Give what"
                " jax.eval_shape(model.init, …) returns."
            )
        return value.variables
    nnx = sys.modules.get("flax.nnx")
    if nnx is None or not homes & _NNX_OBJECTS:
        return None
    return nnx.state(value)


_NNX_OBJECTS = {"flax.nnx.module", "flax.nnx.pytreelib", "flax.nnx.object"}


def _keras_model(value: object) -> Any:
    variables = attribute(value, "variables")
    if not isinstance(variables, list):
        return None
    if not variables:
        raise LayoutError(
            f"{type(value).__name__} has no variables yet. Build it first: model.build(shape), or"
            " call it once."
        )
    return variables


def partners_by_name(paths: Mapping[int, str]) -> dict[int, str]:
    """Pairs a Keras optimizer's variables with their parameters.

    Such a variable's path starts with the optimizer's name, followed by the parameter's
    path with `_` instead of `/`.

    Args:
        paths: position -> path of each Keras variable.

    Returns:
        Position of the optimizer's variable -> path of its parameter.

    >>> partners_by_name({0: "dense/kernel", 3: "adam/dense_kernel_momentum", 4: "adam/iteration"})
    {3: 'dense/kernel'}
    """
    flat = {path.replace("/", "_"): path for path in paths.values() if "/" in path}
    partners = {}
    for index, path in paths.items():
        name = path.partition("/")[2]
        while "_" in name:
            name = name.rpartition("_")[0]
            if flat.get(name, path) != path:
                partners[index] = flat[name]
                break
    return partners


def _orbax_tree(value: object) -> Any:
    # This is the metadata of a string, not of an array.
    if attribute(value, "directory") is not None:
        return ()
    for name in ("item_metadata", "tree"):
        inner = attribute(value, name)
        if inner is not None:
            return inner
    return None


_MODELS: dict[str, Callable[[Any], Any]] = {
    "flax": _flax_model,
    "keras": _keras_model,
    "orbax": _orbax_tree,
}


def names_of(sharding: Any) -> Any:
    """Returns one name per dimension; a Spec if a sharding names mesh axes; or None."""
    if sharding is None or isinstance(sharding, (str, Spec)):
        return sharding
    if not isinstance(sharding, (tuple, list)):
        if (pair := named_sharding(sharding)) is not None:
            return pair[0]
        if not is_partition_spec(sharding):
            return None
    entries = tuple(getattr(sharding, "partitions", sharding))
    # A rule is for a single name, so several entries for one dimension are mesh axes.
    if any(isinstance(e, (tuple, list)) for e in entries):
        return spec_of(sharding)
    return entries


def named_sharding(sharding: object) -> tuple[Spec, Any] | None:
    """Returns the Spec and the mesh of a sharding that names mesh axes, or None.

    Accepts a jax `NamedSharding` (also in a `Format`), an orbax
    `NamedShardingMetadata`, and a Keras `TensorLayout`. The mesh is the library's own
    object; see `mesh_of`.
    """
    sharding = _out_of_format(sharding)
    library = library_of(type(sharding))
    if library == "orbax":
        spec, mesh = attribute(sharding, "partition_spec"), sharding
    elif library == "keras":
        spec, mesh = attribute(sharding, "axes"), attribute(sharding, "device_mesh")
    else:
        spec, mesh = attribute(sharding, "spec"), attribute(sharding, "mesh")
        if not attribute(mesh, "axis_names"):
            return None
    if spec is None:
        return None
    if is_partition_spec(spec):
        return _known_spec(spec), mesh
    # Orbax and Keras specs can be lists, which are not hashable.
    return spec_of(spec), mesh


def _out_of_format(sharding: object) -> object:
    """Returns the sharding in a jax Format, or the argument itself."""
    inner = attribute(sharding, "sharding")
    if inner is None:
        return sharding
    return inner


def foreign_memory(sharding: object) -> str | None:
    """Returns a jax sharding's memory kind, unless it is the devices' default.

    >>> from types import SimpleNamespace
    >>> foreign_memory(SimpleNamespace(memory_kind="pinned_host"))
    'pinned_host'
    """
    sharding = _out_of_format(sharding)
    kind = attribute(sharding, "memory_kind")
    if kind is None or kind == "device":
        return None
    # An AbstractMesh has no devices.
    mesh = attribute(sharding, "mesh")
    devices: Any = attribute(sharding, "device_set")
    if mesh is not None:
        devices = getattr(attribute(mesh, "devices"), "flat", None)
    # A sharding's devices are all of one kind, so checking the first is enough.
    for first in devices or ():
        if first.default_memory().kind == kind:
            return None
        break
    return kind


# Cached, because large models have many arrays but few specs.
@lru_cache(maxsize=1024)
def _known_spec(spec: object) -> Spec:
    return spec_of(spec)


def is_partition_spec(value: object) -> bool:
    """Whether `value` is a jax PartitionSpec; checked by name, without importing jax.

    >>> is_partition_spec((None, "model"))
    False
    """
    kind = type(value)
    home = (kind.__module__ or "").partition(".")[0]
    # In newer jax versions, the class is called P.
    return home == "jax" and kind.__name__ in ("P", "PartitionSpec")


def spec_of(spec: Any) -> Spec:
    """Converts a PartitionSpec, or a list of its entries as in JSON, to a Spec.

    >>> str(spec_of([["data", "model"], None]))
    "P(('data', 'model'), None)"
    """
    # Iterating over a PartitionSpec with unreduced or reduced axes raises, so use
    # `partitions`. jax 0.10.1 doesn't have it, but doesn't raise either.
    entries = getattr(spec, "partitions", spec)
    dims = []
    for entry in entries:
        if isinstance(entry, list):
            entry = tuple(entry)
        dims.append(entry)
    marks = {"unreduced": (), "reduced": (), "unreduced_kind": None}
    for mark, default in marks.items():
        marks[mark] = getattr(spec, mark, default)
    return Spec.of(*dims, **marks)


def mesh_of(mesh: Any) -> MeshSpec | None:
    """Converts a jax, Keras (`DeviceMesh`) or orbax mesh to a MeshSpec, or None.

    If the mesh has devices, the MeshSpec has their ids and processes.
    """
    if isinstance(mesh, MeshSpec):
        return mesh
    names = attribute(mesh, "axis_names")
    if not isinstance(names, (tuple, list)) or not names:
        return None
    types = tuple(t.name for t in attribute(mesh, "axis_types") or ())
    library = library_of(type(mesh))
    ids: list[int] = []
    hosts: list[int] = []
    if library == "orbax":
        sizes, devices = mesh.shape, attribute(mesh, "device_mesh")
        if devices is not None:
            ids = [device.id for device in _flat(devices.mesh)]
    elif library == "keras":
        sizes = mesh.shape
        # Devices are strings such as "cpu:3".
        ends = [str(d).rpartition(":")[2] for d in np.ravel(mesh.devices)]
        if all(n.isdigit() for n in ends):
            ids = [int(n) for n in ends]
    elif isinstance(devices := attribute(mesh, "devices"), np.ndarray):
        sizes, ids = devices.shape, [d.id for d in devices.flat]
        hosts = [d.process_index for d in devices.flat]
    else:
        sizes = attribute(mesh, "axis_sizes")
    if sizes is None:
        return None
    sizes = tuple(int(n) for n in sizes)
    if not ids:
        kind = attribute(mesh, "abstract_device")  # since jax 0.12
        if kind is not None:
            kind = DeviceKind(kind.device_kind, kind.num_cores, kind.platform)
        return MeshSpec(tuple(names), sizes, types, device_kind=kind)
    # Only jax records which process a device belongs to.
    processes = np.array(hosts or [0] * len(ids), np.int64).reshape(sizes)
    devices = np.array(ids, np.int64).reshape(sizes)
    return MeshSpec(tuple(names), sizes, types, devices, processes, True)


def _flat(nested: Any) -> Any:
    for inner in nested:
        if isinstance(inner, (list, tuple)):
            yield from _flat(inner)
        else:
            yield inner
