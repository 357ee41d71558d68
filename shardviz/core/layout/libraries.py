"""What flax, haliax, penzai, Keras, orbax and jax keep beside an array, and in a model.

Everything is read by attributes. A library is known by the module of an object's class,
so nothing is imported that the user has not imported, and none of them need be
installed. They are in one file because each takes a few lines, and all answer the same
three questions: `without_metadata`, what is in this box; `model_arrays`, which arrays
does this model hold; `named_sharding`, which mesh axes does this sharding name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from shardviz.core.errors import LayoutError
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec


class LeafMetadata(NamedTuple):
    """An array and what a library keeps beside it in a box (`Partitioned`, `Variable`,
    ...).

    Attributes:
        value: the array.
        axes: one name per dimension, or a Spec where a sharding names mesh axes, or
            None.
        logical: whether the names are for rules alone, never mesh axes
            (`LogicallyPartitioned`).
        mesh: the mesh that the library keeps beside the names, in its own type; or
            None.
        path: what the library calls the array, or None.
        rules: pairs of names and mesh axes that the library keeps beside the names
            (nnx).
        defaults: whether the library's own reading leaves arrays without names unsplit,
            which flax's `get_partition_spec` does.
    """

    value: Any
    axes: Any = None
    logical: bool = False
    mesh: Any = None
    path: str | None = None
    rules: Any = ()
    defaults: bool = False


def attribute(value: Any, name: str) -> Any:
    """An attribute of a foreign object; None where it is not there."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001  a foreign property may raise anything; then it is not there
        return None


@lru_cache(maxsize=4096)
def library_of(kind: type) -> str:
    """The package that a class, or the first of its bases that is in a known one, comes
    from.

    >>> library_of(int), library_of(type("Weight", (), {"__module__": "haliax.core"}))
    ('', 'haliax')
    """
    for base in kind.__mro__:
        package = (base.__module__ or "").partition(".")[0]
        if package in _LIBRARIES:
            return package
    return ""


_LIBRARIES = ("equinox", "flax", "haliax", "keras", "optax", "orbax", "penzai")


def without_metadata(value: Any) -> LeafMetadata | None:
    """The array in a library's box, and what the box says of it; None where `value` is
    no box.

    A box is linen's `Partitioned` or `LogicallyPartitioned`, an nnx `Variable`, a
    `NamedArray` of haliax or penzai, a penzai parameter, or a Keras variable.

    >>> class Axis:
    ...     name = "embed"
    >>> class NamedArray:
    ...     __module__ = "haliax.core"
    ...     array, axes = "an array", (Axis,)
    >>> without_metadata(NamedArray()).axes, without_metadata("an array")
    (('embed',), None)
    """
    reader = _BOXES.get(library_of(type(value)))
    return None if reader is None else reader(value)


def _flax_box(value: Any) -> LeafMetadata | None:
    is_variable, is_box = _flax_kind(type(value))
    if is_variable:
        found: Any = value.get_metadata()
        kept = (found.get(k) for k in ("out_sharding", "sharding_names", "sharding"))
        names = next((k for k in kept if k), None)
        read = attribute(value, "get_value")
        array = read() if callable(read) else value.value
        own = names_mesh(names)
        mesh = found.get("mesh") if own is None else own
        rules = found.get("sharding_rules") or ()
        return LeafMetadata(
            array, names_of(names), mesh=mesh, rules=rules, defaults=True
        )
    names = attribute(value, "names") if is_box else None
    if names is not None:
        logical, mesh = hasattr(value, "rules"), attribute(value, "mesh")
        rules = (attribute(value, "rules") or ()) if logical else ()
        read = names_of(names) if isinstance(names, (tuple, list)) else names
        return LeafMetadata(value.value, read, logical, mesh, None, rules, True)
    return None


def quick_key(value: Any) -> Any:
    """All that is read of an array, or of an array in a box of linen, as a key that can
    be hashed.

    Reading an array takes ten times as long, and large models have many arrays and few
    kinds. None for all else, and for arrays of unusual parts.
    """
    kind = type(value)
    known = _quick_kind(kind)
    if not known:
        return None
    try:
        names = mesh = rules = None
        if known == 2:
            names, mesh, rules = value.names, value.mesh, getattr(value, "rules", None)
            value = value.value
            if _quick_kind(type(value)) != 1:
                return None
        sharding = getattr(value, "sharding", None)
        key = (
            names,
            value.shape,
            value.dtype,
            kind,
            type(value),
            sharding,
            mesh,
            rules,
        )
        hash(key)
    except Exception:  # noqa: BLE001  a foreign property may raise anything; it is read with care
        return None
    return key


@lru_cache(maxsize=4096)
def _quick_kind(kind: type) -> int:
    """1 for arrays of jax and numpy and their shapes, 2 for boxes of linen, 0 for all
    else.
    """
    package = (kind.__module__ or "").partition(".")[0]
    if package in ("jax", "jaxlib", "numpy"):
        return int(hasattr(kind, "shape") and hasattr(kind, "dtype"))
    return (
        2
        if package == "flax" and _flax_kind(kind)[1] and not _flax_kind(kind)[0]
        else 0
    )


@lru_cache(maxsize=4096)
def _flax_kind(kind: type) -> tuple[bool, bool]:
    """Whether a class is that of an nnx variable, and whether it is a box of linen."""
    return callable(attribute(kind, "get_metadata")), attribute(
        kind, "unbox"
    ) is not None


def _haliax_box(value: Any) -> LeafMetadata | None:
    axes = attribute(value, "axes")
    if not isinstance(axes, tuple) or not hasattr(value, "array"):
        return None
    return LeafMetadata(value.array, tuple(a.name for a in axes), logical=True)


def _penzai_box(value: Any) -> LeafMetadata | None:
    array = attribute(value, "data_array")
    if array is None:  # a Parameter is a variable that jax does not look into
        held = (
            hasattr(value, "label")
            and hasattr(value, "metadata")
            and hasattr(value, "value")
        )
        return LeafMetadata(value.value, path=str(value.label)) if held else None
    named = attribute(value, "named_axes")
    if named is not None:  # the dimensions without a name come first
        rest = (None,) * (len(array.shape) - len(named))
        return LeafMetadata(array, (*rest, *map(_text, named)), logical=True)
    at = {axis: name for name, axis in value.data_axis_for_name.items()}
    names = (_text(at.get(axis)) for axis in range(len(array.shape)))
    return LeafMetadata(array, tuple(names), logical=True)


def _text(name: Any) -> str | None:
    return name if name is None or isinstance(name, str) else str(name)


def _keras_box(value: Any) -> LeafMetadata | None:
    if not (
        hasattr(value, "path")
        and hasattr(value, "trainable")
        and hasattr(value, "assign")
    ):
        return None
    # Before it is initialised, `value.value` would make the array, with the user's
    # random seed.
    array = (
        attribute(value, "_value")
        if hasattr(value, "_value")
        else attribute(value, "value")
    )
    layout = attribute(value, "_layout")
    found = None if layout is None else named_sharding(layout)
    spec, mesh = (None, None) if found is None else found
    return LeafMetadata(
        Shaped.of(value) if array is None else array, spec, False, mesh, value.path
    )


class Shaped(NamedTuple):
    """A shape and a dtype, for an array that is not made yet."""

    shape: Any
    dtype: Any

    @classmethod
    def of(cls, value: Any) -> Shaped:
        """The shape and dtype of anything that has them."""
        return cls(tuple(value.shape), value.dtype)


_BOXES: dict[str, Callable[[Any], LeafMetadata | None]] = {
    "flax": _flax_box,
    "haliax": _haliax_box,
    "penzai": _penzai_box,
    "keras": _keras_box,
}


def model_arrays(value: Any) -> Any:
    """A tree of the arrays that a model or a checkpoint's metadata holds; None where it
    is neither.

    Of an nnx module or optimizer its state, of a linen module that is bound its
    variables, of a Keras model, layer or optimizer its variables, of orbax's metadata
    the tree.

    Raises:
        LayoutError: for a model that holds no arrays yet, and what to give instead.
    """
    reader = _MODELS.get(library_of(type(value)))
    return None if reader is None else reader(value)


def _flax_model(value: Any) -> Any:
    homes = {c.__module__ or "" for c in type(value).__mro__}
    if "flax.linen.module" in homes:
        variables = (
            attribute(value, "variables")
            if attribute(value, "scope") is not None
            else None
        )
        if variables is None:
            raise LayoutError(
                f"{type(value).__name__} is a module, not its parameters. Give what"
                " jax.eval_shape(model.init, …) returns."
            )
        return variables
    nnx = sys.modules.get("flax.nnx")
    return nnx.state(value) if nnx is not None and homes & _NNX_OBJECTS else None


_NNX_OBJECTS = {"flax.nnx.module", "flax.nnx.pytreelib", "flax.nnx.object"}


def _keras_model(value: Any) -> Any:
    variables = attribute(value, "variables")
    if not isinstance(variables, list):
        return None
    if not variables:
        raise LayoutError(
            f"{type(value).__name__} has no variables yet. Build it first: model.build(shape), or"
            " call it once."
        )
    return variables


def optimizer_partners(value: Any) -> list[str | None] | None:
    """For each variable of an optimizer of Keras the path of the model's variable that
    it is for.

    Keras keeps lists with one entry for each variable of the model, in their order.
    None where `value` is no optimizer of Keras.
    """
    models = attribute(value, "_trainable_variables")
    if library_of(type(value)) != "keras" or not hasattr(value, "apply_gradients"):
        return None
    models = list(models or ())
    found: dict[int, str] = {}
    for kept in vars(value).values():
        if not isinstance(kept, (list, tuple)) or len(kept) != len(models):
            continue
        for variable, model in zip(kept, models, strict=True):
            found[id(variable)] = model.path
    return [found.get(id(variable)) for variable in value.variables]


def partners_by_name(paths: Mapping[int, str]) -> dict[int, str]:
    """Of variables of Keras those that an optimizer keeps, each to the path of its
    parameter.

    Keras calls them by the name of the optimizer, then the path of the parameter with
    `_` for `/`.

    Args:
        paths: what Keras calls each variable, by position.

    >>> partners_by_name({0: "dense/kernel", 3: "adam/dense_kernel_momentum", 4: "adam/iteration"})
    {3: 'dense/kernel'}
    """
    flat = {path.replace("/", "_"): path for path in paths.values() if "/" in path}
    found = {}
    for index, path in paths.items():
        own = path.partition("/")[2]
        while "_" in own:
            own = own.rpartition("_")[0]
            if flat.get(own, path) != path:
                found[index] = flat[own]
                break
    return found


def _orbax_tree(value: Any) -> Any:
    if attribute(value, "directory") is not None:  # of text, which is no array
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
    """Names, one per dimension, or a Spec where a sharding names mesh axes, or None."""
    if sharding is None or isinstance(sharding, (str, Spec)):
        return sharding
    if type(sharding) is tuple and all(n is None or type(n) is str for n in sharding):
        return sharding
    found = named_sharding(sharding)
    if found is not None:
        return found[0]
    entries = getattr(sharding, "partitions", sharding)
    if is_partition_spec(entries):  # of jax 0.10.1 and before, without that
        entries = tuple(entries)
    if not isinstance(entries, (tuple, list)):
        return None
    if any(isinstance(e, (tuple, list)) for e in entries):
        return spec_of(sharding)
    return tuple(entries)


def names_mesh(sharding: Any) -> Any:
    """The mesh of a sharding that names mesh axes, in its own type; else None."""
    found = (
        None if isinstance(sharding, (str, tuple, list)) else named_sharding(sharding)
    )
    return None if found is None else found[1]


def named_sharding(sharding: Any) -> tuple[Spec, Any] | None:
    """The Spec and the mesh of a sharding that names mesh axes, or None.

    It is jax's `NamedSharding` (also in a `Format`), orbax's `NamedShardingMetadata`,
    or Keras's `TensorLayout`. The mesh is of the library's own type; `mesh_of` reads
    it.
    """
    inner = attribute(sharding, "sharding")  # jax's Format
    sharding = sharding if inner is None else inner
    library = library_of(type(sharding))
    if library == "orbax":
        entries = attribute(sharding, "partition_spec")
        return None if entries is None else (spec_of(entries), sharding)
    if library == "keras":
        axes = attribute(sharding, "axes")
        return (
            None
            if axes is None
            else (spec_of(axes), attribute(sharding, "device_mesh"))
        )
    spec, mesh = attribute(sharding, "spec"), attribute(sharding, "mesh")
    if spec is None or not attribute(mesh, "axis_names"):
        return None
    return _known_spec(spec), mesh


def foreign_memory(sharding: Any) -> str | None:
    """The memory kind of a jax sharding, where it is not the devices' own; else None.

    >>> from types import SimpleNamespace
    >>> foreign_memory(SimpleNamespace(memory_kind="pinned_host"))
    'pinned_host'
    """
    inner = attribute(sharding, "sharding")  # jax's Format
    sharding = sharding if inner is None else inner
    kind = attribute(sharding, "memory_kind")
    if kind is None or kind == "device":
        return None
    mesh = attribute(sharding, "mesh")
    if mesh is None:
        devices = iter(attribute(sharding, "device_set") or ())
    else:
        devices = getattr(
            attribute(mesh, "devices"), "flat", iter(())
        )  # AbstractMesh has none
    first = next(devices, None)
    return None if first is not None and first.default_memory().kind == kind else kind


@lru_cache(maxsize=1024)  # large models have many arrays and few specs
def _known_spec(spec: Any) -> Spec:
    return spec_of(spec)


def is_partition_spec(value: Any) -> bool:
    """Whether `value` is jax's PartitionSpec, by its class, as jax may be missing.

    >>> is_partition_spec((None, "model"))
    False
    """
    kind = type(value)
    home = (kind.__module__ or "").partition(".")[0]
    return home == "jax" and kind.__name__ in ("P", "PartitionSpec")  # jax renamed it


def spec_of(spec: Any) -> Spec:
    """The Spec of a PartitionSpec, or of entries as JSON has them.

    >>> str(spec_of([["data", "model"], None]))
    "P(('data', 'model'), None)"
    """
    # Iterating over a PartitionSpec raises where it has unreduced or reduced axes; jax
    # 0.10.1 has no other way, and does not raise.
    entries = getattr(spec, "partitions", spec)
    entries = (tuple(e) if isinstance(e, list) else e for e in entries)
    marks = {k: getattr(spec, k, ()) for k in ("unreduced", "reduced")}
    return Spec.of(*entries, **marks)


def mesh_of(mesh: Any) -> MeshSpec | None:
    """The MeshSpec of a mesh of jax, Keras (`DeviceMesh`) or orbax; None where it is
    none of these.

    The ids and processes of its devices come along where it has devices.
    """
    names = attribute(mesh, "axis_names")
    if not isinstance(names, (tuple, list)) or not names:
        return None
    types = attribute(mesh, "axis_types")
    types = tuple(t.name for t in types) if types else ()
    library = library_of(type(mesh))
    if library == "orbax":
        sizes, devices = (
            tuple(int(n) for n in mesh.shape),
            attribute(mesh, "device_mesh"),
        )
        found = [] if devices is None else list(_flat(devices.mesh))
        return _with_ids(names, sizes, types, [d.id for d in found])
    if library == "keras":
        # A device is text such as "cpu:3".
        ends = [str(d).rpartition(":")[2] for d in np.ravel(mesh.devices)]
        ids = [int(n) for n in ends] if all(n.isdigit() for n in ends) else []
        return _with_ids(names, tuple(mesh.shape), types, ids)
    devices = attribute(mesh, "devices")
    if not isinstance(devices, np.ndarray):
        sizes = attribute(mesh, "axis_sizes")
        return None if sizes is None else MeshSpec(tuple(names), tuple(sizes), types)
    hosts = [d.process_index for d in devices.flat]
    return _with_ids(names, devices.shape, types, [d.id for d in devices.flat], hosts)


def _with_ids(
    names: Any,
    sizes: tuple[int, ...],
    types: tuple[str, ...],
    ids: list[int],
    hosts: Any = None,
) -> MeshSpec:
    if not ids:
        return MeshSpec(tuple(names), sizes, types)
    at = np.array(ids, np.int64).reshape(sizes)
    held = (
        np.zeros_like(at) if hosts is None else np.array(hosts, np.int64).reshape(sizes)
    )
    return MeshSpec(tuple(names), sizes, types, at, held, True)


def _flat(nested: Any) -> Any:
    for inner in nested:
        if isinstance(inner, (list, tuple)):
            yield from _flat(inner)
        else:
            yield inner
