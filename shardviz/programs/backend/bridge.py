"""Converts jax's objects to ours, and back.

`adopt` converts a Mesh, AbstractMesh, PartitionSpec, NamedSharding, ShapeDtypeStruct or
Array; `to_jax` converts our values to jax objects. Neither function starts a backend,
except for a mesh with device ids from a real Mesh, whose devices must be looked up.

jaxlib cannot compile for all mesh axis names, so unsupported names are refused here.
Tracing, lowering and planning work with any name. The compiler writes meshes as text
attributes and parses them again. In jaxlib 0.10, non-ASCII letters and most backslashes
crash the process. In 0.12, a single quote or a backslash loses the shardings over that
axis, and both together crash the process. shardviz cannot rename the axes, because the
function may name them itself (`jax.lax.psum(x, "é")`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
)
from jaxlib.mlir.dialects import sdy
from jaxlib.version import __version__ as jaxlib_version

from shardviz.axis_rules import libraries
from shardviz.axis_rules.requests import Request
from shardviz.axis_rules.resolution import Resolution
from shardviz.axis_rules.rules import PathRules, Rules
from shardviz.base.array_spec import ArraySpec, array_dtype, dtype_name, read_shape
from shardviz.base.backend.jax_compat import large_sharding
from shardviz.base.errors import LayoutError, ProgramError, ShardvizError, TargetError
from shardviz.base.format import listed, plural, shown
from shardviz.base.layout import Layout, lay_out, layout_from_indices
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec, SpecOnMesh, memory_of
from shardviz.programs.backend.devices import mesh_of
from shardviz.programs.program import Program

# Measured on jaxlib 0.10.2 and 0.12.0.1, each name in a separate process. For 0.11,
# which was not measured, both limitations are assumed.
_VERSION = tuple(int(n) for n in re.findall(r"\d+", jaxlib_version)[:2])
_NOT_CARRIED = r"\\"
if _VERSION < (0, 12):
    _NOT_CARRIED += r"|[^\x00-\x7f]"
if _VERSION > (0, 10):
    _NOT_CARRIED += "|'"
_KEYS = {"fry": "threefry2x32", "rbg": "rbg", "urbg": "unsafe_rbg"}


def adopt(value: Any) -> Any:
    """Converts a jax object to ours.

    A Mesh or AbstractMesh becomes a MeshSpec, a PartitionSpec becomes a Spec, and a
    NamedSharding becomes a SpecOnMesh. An array or ShapeDtypeStruct becomes a Layout,
    or an ArraySpec if it has no sharding.

    Raises:
        ShardvizError: for other values, and for objects without a counterpart.

    >>> adopt(PartitionSpec("x", None, ("y", "z"))).dims
    (('x',), (), ('y', 'z'))
    """
    if isinstance(value, (Mesh, AbstractMesh)):
        return adopt_mesh(value)
    if isinstance(value, PartitionSpec):
        return libraries.spec_of(value)
    if isinstance(value, NamedSharding):
        return SpecOnMesh(libraries.spec_of(value.spec), adopt_mesh(value.mesh))
    if isinstance(value, (jax.Array, jax.ShapeDtypeStruct, np.ndarray)):
        if getattr(value, "sharding", None) is not None:
            return adopt_layout(value)
        return adopt_array("array", value)
    if isinstance(value, Sharding):
        raise ShardvizError(
            "A sharding without a PartitionSpec needs a shape; got"
            f" {shown(value)}. Write sv.layout(shape, sharding)."
        )
    raise ShardvizError(
        "From jax come meshes, PartitionSpecs, NamedShardings, ShapeDtypeStructs and"
        f" arrays; got {shown(value)}."
    )


def adopt_mesh(mesh: Mesh | AbstractMesh) -> MeshSpec:
    """Converts a jax mesh to a MeshSpec; a concrete one keeps device ids and processes.

    Raises:
        ShardvizError: if the mesh has no axes, or axis names that aren't text.

    >>> adopt_mesh(AbstractMesh((4, 2), ("data", "model"))).shape
    {'data': 4, 'model': 2}
    """
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        raise ShardvizError(
            f"A mesh is text such as 'data=4, model=2', or a jax Mesh; got {shown(mesh)}."
        )
    adopted = libraries.mesh_of(mesh)
    if adopted is None:
        raise ShardvizError(
            "The mesh is empty: it has no axes. Make one as sv.mesh(data=4)."
        )
    return adopted


def adopt_array(name: str, value: Any) -> ArraySpec:
    """Converts an array or ShapeDtypeStruct to an ArraySpec, including its spec.

    Raises:
        ShardvizError: if ArraySpec doesn't support the dtype.

    >>> adopt_array("x", np.zeros((8, 4), np.float32)).short
    'f32[8, 4]'
    """
    sharding = getattr(value, "sharding", None)
    spec = (
        libraries.spec_of(sharding.spec)
        if isinstance(sharding, NamedSharding)
        else None
    )
    kind = libraries.foreign_memory(sharding)
    weak = bool(getattr(value, "weak_type", False))
    shape = read_shape(value.shape)
    # numpy arrays are on no device, so jax is free to place them.
    free = len(shape) > 0 and not getattr(value, "committed", sharding is not None)
    dtype = dtype_name(array_dtype(value))
    return ArraySpec(name, shape, None, dtype, spec, kind, weak, free)


def tree_children(value: Any) -> list[tuple[str, Any]] | None:
    """Returns the children of a pytree node, each with its name; None for a leaf.

    >>> tree_children({"w": 1, "b": (2, 3)}), tree_children(1)
    ([('b', (2, 3)), ('w', 1)], None)

    Raises:
        LayoutError: if jax cannot flatten the node.
    """
    if jax.tree_util.all_leaves([value]):
        return None
    children = []
    try:
        named = jax.tree_util.tree_leaves_with_path(
            value, is_leaf=lambda node: node is not value
        )
    except ValueError as error:
        raise LayoutError(
            f"jax cannot read {shown(value)} as a tree: {error} jax sorts the keys of a"
            " dict, so give it keys that sort, such as text."
        ) from None
    for path, child in named:
        children.append((jax.tree_util.keystr(path, simple=True, separator="/"), child))
    return children


def adopt_layout(value: Any) -> Layout:
    """Returns the Layout of a live array, or of a ShapeDtypeStruct with a sharding.

    Raises:
        LayoutError: if it has no sharding, or its shards differ in shape.
    """
    sharding = getattr(value, "sharding", None)
    if sharding is None:
        raise LayoutError(
            f"A layout needs a sharding; {shown(value)} has none. Give a PartitionSpec"
            " and a mesh with it."
        )
    return sharding_layout(value.shape, value.dtype, sharding)


def sharding_layout(shape: Any, dtype: Any, sharding: Sharding) -> Layout:
    """Returns the Layout of an array with any kind of jax sharding.

    Raises:
        LayoutError: if a dimension isn't divisible, or shards differ in shape.

    >>> mesh = AbstractMesh((4, 2), ("data", "model"))
    >>> sharding_layout((8, 4), "int8", NamedSharding(mesh, PartitionSpec("data"))).shard_shape
    (2, 4)
    """
    memory = libraries.foreign_memory(sharding)
    if isinstance(sharding, NamedSharding):
        spec = libraries.spec_of(sharding.spec)
        layout = lay_out(shape, spec, adopt_mesh(sharding.mesh), dtype)
        return layout if memory is None else replace(layout, memory_kind=memory)
    try:
        boxes = sharding.devices_indices_map(tuple(shape))
    except ValueError as error:
        raise LayoutError(
            f"jax cannot lay out {shown(shape)} this way: {error}"
        ) from error
    # A sharding without a mesh only provides shard indices.
    indices = {device.id: box or () for device, box in boxes.items()}
    processes = [device.process_index for device in boxes]
    mesh = make_mesh(
        {"device": len(indices)}, device_ids=list(indices), processes=processes
    )
    layout = layout_from_indices(shape, dtype, indices, mesh)
    return replace(layout, memory_kind=memory)


def to_jax(value: Any) -> Any:
    """Converts one of our values to a jax object.

    A MeshSpec becomes an AbstractMesh, or a Mesh of attached devices if its ids came
    from devices. A Program becomes its function under `jax.jit` with its shardings; it
    can be lowered directly, and runs inside `jax.set_mesh` of a concrete mesh. Rules
    become a tuple of pairs for flax.

    Raises:
        ShardvizError: if jax has no counterpart.

    >>> to_jax(ArraySpec("w", (512, 2048), None, "bfloat16"))
    ShapeDtypeStruct(shape=(512, 2048), dtype=bfloat16)
    """
    for kind, convert in _CONVERT.items():
        if isinstance(value, kind):
            return convert(value)
    raise ShardvizError(
        f"jax has no equivalent of {shown(value)}. It has one for"
        f" {listed([k.__name__ for k in _CONVERT])}."
    )


def jax_dtype(name: str) -> Any:
    """Returns jax's dtype of this name.

    Raises:
        ProgramError: for 64-bit types if jax is set to 32 bits.

    >>> jax_dtype("bfloat16"), jax_dtype("key<fry>")
    (dtype(bfloat16), key<fry>)
    """
    if name.startswith("key<"):
        return _key_dtype(name)
    dtype = jax.numpy.dtype(name)
    # jax would narrow the type silently.
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ProgramError(
            f"jax is set to 32 bits and would turn {name} into"
            f" {jax.dtypes.canonicalize_dtype(dtype)}. Choose that, or begin with"
            " jax.config.update('jax_enable_x64', True)."
        )
    return dtype


def key_implementation(name: str) -> str:
    """Returns the implementation name of a key type, as in `jax.random.key(impl=...)`.

    Raises:
        ProgramError: if the key type is unknown.

    >>> key_implementation("key<fry>")
    'threefry2x32'
    """
    tag = name[4:-1]
    if tag not in _KEYS:
        raise ProgramError(
            f"No random keys are called {shown(name)}. Known: {listed(_KEYS)}."
        )
    return _KEYS[tag]


@lru_cache(maxsize=8)
def _key_dtype(name: str) -> Any:
    return jax.eval_shape(
        lambda: jax.random.key(0, impl=key_implementation(name))
    ).dtype


def abstract_mesh(mesh: MeshSpec) -> AbstractMesh:
    """Returns the AbstractMesh with the axes of a mesh, without devices.

    >>> from shardviz.base.mesh import make_mesh
    >>> abstract_mesh(make_mesh(data=1024, model=8)).axis_sizes
    (1024, 8)
    """
    types = tuple(AxisType[t] for t in mesh.axis_types)
    devices: dict[str, Any] = {}
    if mesh.device_kind is not None:
        # Only meshes of jax 0.12 have a kind, so this jax has the class.
        make = vars(jax.sharding)["AbstractDevice"]
        devices["abstract_device"] = make(*mesh.device_kind)
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=types, **devices)


_MANY = 1 << 12  # devices


def named_sharding(
    mesh: Mesh | AbstractMesh, spec: Spec, memory: str | None = None
) -> Any:
    """Returns a NamedSharding; for many devices, one that jax compares quickly.

    >>> mesh = AbstractMesh((1 << 20,), ("data",))
    >>> named_sharding(mesh, Spec.parse("data")) == NamedSharding(mesh, PartitionSpec("data"))
    True
    """
    # For few devices, jax's own class prints and compares as users expect.
    if isinstance(mesh, AbstractMesh) and mesh.size > _MANY:
        return large_sharding(mesh, spec.to_jax(), memory)
    return NamedSharding(mesh, spec.to_jax(), memory_kind=memory)


def _mesh_to_jax(mesh: MeshSpec) -> Mesh | AbstractMesh:
    if not mesh.concrete:
        return abstract_mesh(mesh)
    device_ids = [int(i) for i in mesh.device_ids.flat]
    for platform in (None, "cpu"):  # the default platform first
        try:
            attached = {d.id: d for d in jax.devices(platform)}
        except RuntimeError:
            continue
        if all(i in attached for i in device_ids):
            return mesh_of([attached[i] for i in device_ids], mesh)
    raise TargetError(
        f"The mesh holds devices {listed(device_ids)}, which are not attached here; jax has"
        f" {plural(jax.device_count(), 'device')}. Use a mesh without device ids for an"
        " AbstractMesh."
    )


def _array_to_jax(
    array: ArraySpec, sharding: NamedSharding | None = None
) -> jax.ShapeDtypeStruct:
    dtype, weak = jax_dtype(array.dtype), array.weak_type
    return jax.ShapeDtypeStruct(array.shape, dtype, sharding=sharding, weak_type=weak)


def _layout_to_jax(layout: Layout) -> NamedSharding:
    # Shard indices don't determine which axis splits a dimension.
    if layout.spec is None:
        raise LayoutError(
            "This layout was made of shard indices and has no PartitionSpec, so it has no"
            " NamedSharding. Lay the array out with a spec."
        )
    mesh, spec = _mesh_to_jax(layout.mesh), layout.spec.to_jax()
    return NamedSharding(mesh, spec, memory_kind=layout.memory_kind)


def _request_to_jax(request: Request) -> jax.ShapeDtypeStruct:
    if request.layout is None:
        raise LayoutError(f"{request.array.name}: {request.problem}")
    sharding = _layout_to_jax(request.layout)
    if request.array.memory_kind is not None:
        sharding = sharding.with_memory_kind(request.array.memory_kind)
    return _array_to_jax(request.array, sharding)


def _program_to_jax(program: Program) -> Any:
    shardings = [_request_to_jax(r).sharding for r in program.requests]
    tree = program.tree
    in_shardings = tuple(shardings) if tree is None else tree.unflatten(shardings)
    extra: dict[str, Any] = {}
    if program.out_specs is not None:
        mesh = _mesh_to_jax(program.mesh)
        extra["out_shardings"] = jax.tree.map(
            lambda spec: spec and named_sharding(mesh, spec, memory_of(spec)),
            program.out_specs,
            is_leaf=lambda leaf: leaf is None or isinstance(leaf, Spec),
        )
    donate = program.options.get("donate", ())
    return jax.jit(
        program.fn, in_shardings=in_shardings, donate_argnums=donate, **extra
    )


_CONVERT: dict[type, Any] = {
    MeshSpec: _mesh_to_jax,
    Spec: lambda spec: spec.to_jax(),
    Resolution: lambda resolution: resolution.partition_spec,
    Layout: _layout_to_jax,
    ArraySpec: _array_to_jax,
    Request: _request_to_jax,
    PathRules: lambda rules: rules.pairs(),
    Rules: lambda rules: rules.pairs(),
    Program: _program_to_jax,
}


def check_axis_names(names: Iterable[str]) -> None:
    """Refuses mesh axis names that this jaxlib version cannot compile.

    Raises:
        ProgramError: with the first such name.

    >>> check_axis_names(["data", "model"])
    """
    for name in names:
        if re.search(_NOT_CARRIED, name):
            raise ProgramError(
                f"jaxlib {jaxlib_version} cannot compile for a mesh axis named"
                f" {shown(name)}: it ends the process, or loses the sharding. Layouts,"
                " rules and plans accept such a name; to compile or run, name the axis"
                " in ASCII letters and digits."
            )


def check_lowered_names(lowered: Any) -> None:
    """Applies `check_axis_names` to all meshes of a lowered program.

    >>> import jax
    >>> check_lowered_names(jax.jit(abs).lower(1.0))
    """
    # A function may name meshes itself, so check all meshes in the module.
    check_axis_names(_axis_names(lowered.compiler_ir("stablehlo")))


def _axis_names(module: Any) -> Iterator[str]:
    for operation in module.body.operations if module is not None else ():
        if operation.operation.name == "sdy.mesh":
            for axis in sdy.MeshAttr(operation.attributes["mesh"]).axes:
                yield sdy.MeshAxisAttr(axis).name
