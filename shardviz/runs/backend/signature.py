"""The signature of a call: everything that decides which executable the call needs.

A signature contains the types and shardings of the arguments, the static arguments,
jax's settings and the meshes in context.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.sharding import (
    AbstractMesh,
    Mesh,
    NamedSharding,
    Sharding,
    SingleDeviceSharding,
)

from shardviz.base.backend.jax_compat import (
    ARRAY_CLASS,
    JitSettings,
    concrete_mesh,
    trace_setting_names,
    trace_settings,
)
from shardviz.base.format import clause, shown, shown_apart
from shardviz.base.pairing import pair_names
from shardviz.base.typing import PyTree
from shardviz.programs.backend.named_meshes import mesh_sizes
from shardviz.runs.recompiles import (
    ArrayAdded,
    ArrayChanged,
    ArrayRemoved,
    Difference,
    PassingChanged,
    SettingChanged,
    StaticChanged,
    TreeChanged,
)

# An array's type and sharding, which is None for uncommitted arrays. Anything else, which
# functions such as `nnx.jit` take, has its class and, if it is hashable, itself.
LeafKey: TypeAlias = tuple[Any, Any]


class SplitCall(NamedTuple):
    """The arguments of one call, with the static ones separated.

    Attributes:
        args, kwargs: the dynamic arguments, which the executable takes.
        names: the parameter name of each of `args`.
        statics: the static arguments by name, sorted by name.
        static_numbers: whether Python numbers in the other arguments are static, too,
            as in `eqx.filter_jit`.
        static_keywords: the names of the static arguments that are passed by name.
            jax compiles `f(3)` and `f(n=3)` separately.
    """

    args: tuple[PyTree, ...]
    kwargs: dict[str, PyTree]
    names: tuple[str, ...]
    statics: dict[str, object]
    static_numbers: bool = False
    static_keywords: frozenset[str] = frozenset()


def split_call(
    names: Sequence[str],
    args: tuple[PyTree, ...],
    kwargs: Mapping[str, PyTree],
    jit: JitSettings,
    static_numbers: bool = False,
) -> SplitCall:
    """Separates the static arguments of a call from the dynamic ones.

    Args:
        names: the parameter names of the positional arguments.
        args, kwargs: all arguments of the call.
        jit: the options of `jax.jit`.
        static_numbers: as in SplitCall.

    >>> split_call(("x", "n"), (1.0, 3), {}, JitSettings(static=(1,))).statics
    {'n': 3}
    """
    if not jit.static and not jit.static_names:
        return SplitCall(args, dict(kwargs), tuple(names), {}, static_numbers)
    statics: dict[str, object] = {}
    dynamic_kwargs: dict[str, PyTree] = {}
    dynamic_args, dynamic_names = [], []
    for number, (name, value) in enumerate(zip(names, args, strict=True)):
        # A negative position counts from the end of the arguments passed.
        if number in jit.static or number - len(args) in jit.static:
            statics[name] = value
        else:
            dynamic_args.append(value)
            dynamic_names.append(name)
    for name, value in kwargs.items():
        if name in jit.static_names:
            statics[name] = value
        else:
            dynamic_kwargs[name] = value
    return SplitCall(
        tuple(dynamic_args),
        dynamic_kwargs,
        tuple(dynamic_names),
        {name: statics[name] for name in sorted(statics)},
        static_numbers,
        frozenset(statics).intersection(kwargs),
    )


def call_key(call: SplitCall) -> Hashable | None:
    """Returns a key that is equal for two calls if jax compiles once for both.

    The key holds no arrays. None if jax rejects the call, as it does with an unhashable
    static argument.
    """
    # 1 and True are equal, but jax compiles separately for each.
    statics = tuple((name, type(v), v) for name, v in call.statics.items())
    try:
        leaves, tree = jax.tree.flatten((call.args, call.kwargs))
        keys = tuple(leaf_key(leaf, call.static_numbers) for leaf in leaves)
        key = (surroundings(), tree, statics, call.static_keywords, keys)
        hash(key)
    except (TypeError, ValueError):  # such as for a dict with unsortable keys
        return None
    return key


def surroundings() -> tuple[object, ...]:
    """The settings and meshes around a call that are part of jax's cache keys."""
    return (*(trace_settings() or ()), concrete_mesh())


def leaf_key(leaf: Any, static_numbers: bool = False) -> LeafKey:
    """The part of a call's key for one leaf of its arguments."""
    if static_numbers and type(leaf) in (bool, int, float, complex):
        return type(leaf), leaf
    if type(leaf) is ARRAY_CLASS or isinstance(leaf, jax.Array):
        # jax may move an uncommitted array, so its devices don't matter. A Ref has no
        # such attribute.
        return leaf.aval, leaf.sharding if getattr(leaf, "committed", False) else None
    try:
        return jax.typeof(leaf), None
    except TypeError:
        return type(leaf), leaf if isinstance(leaf, Hashable) else None


@dataclass(frozen=True)
class Signature:
    """The parts of a call's key, by name.

    Attributes:
        tree: `PyTreeDef` of the dynamic arguments.
        trees: name of a dynamic argument -> its `PyTreeDef`.
        keywords: the names of the dynamic arguments that are passed by keyword.
        leaves: path in the arguments, such as `params['w']` -> type and sharding.
        layouts: path -> memory layout, of arrays that have not been donated.
        paths: path in the arguments -> the argument's name and the keys below it.
        statics: name -> static argument.
        static_texts: name -> the static argument as it was in this call, as text: `3`,
            or `n=3` if it was passed by name.
        static_hashes: name -> hash of the static argument in this call.
        settings: name -> value of a jax setting or context mesh.
    """

    tree: Hashable
    trees: dict[str, Hashable]
    keywords: frozenset[str]
    leaves: dict[str, LeafKey]
    layouts: dict[str, object]
    paths: dict[str, tuple[str, tuple[Any, ...]]]
    statics: dict[str, object]
    static_texts: dict[str, str]
    static_hashes: dict[str, int]
    settings: dict[str, object]

    def __str__(self) -> str:
        parts = []
        for name, (aval, sharding) in self.leaves.items():
            if not isinstance(aval, ShapedArray):
                parts.append(f"{name}: {shown(_type_or_value((aval, sharding)))}")
                continue
            weak = "weak " if aval.weak_type else ""
            text = f"{name}: {weak}{aval.dtype}{list(aval.shape)}"
            if sharding is not None:
                text += f" {sharding_text(sharding)}"
            parts.append(text)
        parts += [f"{name}={shown(value)}" for name, value in self.statics.items()]
        return f"({', '.join(parts)})"


def signature_of(call: SplitCall) -> Signature:
    """Returns the signature of a call; `call_key` must have accepted the call."""
    named = [*zip(call.names, call.args, strict=True), *sorted(call.kwargs.items())]
    leaves, layouts, paths = {}, {}, {}
    for name, value in named:
        for keys, leaf in jax.tree_util.tree_leaves_with_path(value):
            path = name + jax.tree_util.keystr(keys)
            leaves[path] = leaf_key(leaf, call.static_numbers)
            paths[path] = name, keys
            # A donated array has lost its layout, and a key array has none.
            if isinstance(leaf, jax.Array) and not leaf.is_deleted():
                layouts[path] = getattr(getattr(leaf, "format", None), "layout", None)
    values, names = surroundings(), (*trace_setting_names(), "concrete_mesh")
    if len(names) != len(values):  # this version of jax has other settings
        names = (*map(str, range(len(values) - 1)), "concrete_mesh")
    settings = dict(zip(names, values, strict=True))
    tree = jax.tree.structure((call.args, call.kwargs))
    trees = {name: jax.tree.structure(value) for name, value in named}
    keywords = frozenset(call.kwargs)
    statics = call.statics
    texts = {name: shown(value) for name, value in statics.items()}
    texts |= {name: f"{name}={texts[name]}" for name in call.static_keywords}
    hashes = {name: hash(value) for name, value in statics.items()}
    return Signature(
        tree, trees, keywords, leaves, layouts, paths, statics, texts, hashes, settings
    )


def differences(new: Signature, old: Signature) -> tuple[Difference, ...]:
    """Compares a signature with an earlier one; `()` if they are equal.

    >>> import numpy as np
    >>> calls = [SplitCall((np.zeros(n),), {}, ("x",), {}) for n in (8, 16)]
    >>> differences(signature_of(calls[1]), signature_of(calls[0]))
    (ArrayChanged(name='x', aspect='shape', before='[8]', after='[16]'),)
    """
    names = pair_names(old.leaves, new.leaves)
    differing: list[Difference] = []
    differing += [ArrayAdded(name) for name in names.new]
    differing += [ArrayRemoved(name) for name in names.gone]
    passing = [*_passing_changes(old, new)]
    is_explained = bool(differing) or (bool(passing) and new.trees == old.trees)
    if new.tree != old.tree and not is_explained:
        differing.append(TreeChanged(*shown_apart(old.tree, new.tree, 200)))
    differing += passing
    for name, _ in names.paired:
        changes = [*_array_changes(name, old.leaves[name], new.leaves[name])]
        layouts = old.layouts.get(name), new.layouts.get(name)
        committed = _is_only_committed(old.leaves[name], new.leaves[name])
        # Other changes imply another memory layout.
        if (
            (committed or not changes)
            and None not in layouts
            and layouts[0] != layouts[1]
        ):
            texts = shown_apart(*layouts, 200)
            changes.append(ArrayChanged(name, "memory layout", *texts))
        differing += changes
    differing += _static_changes(old, new)
    differing += _setting_changes(old.settings, new.settings)
    return tuple(differing)


def is_equivalent(new: Signature, old: Signature) -> bool:
    """Whether two signatures differ only in how their shardings are written."""
    others = ("tree", "statics", "settings")
    if any(getattr(new, name) != getattr(old, name) for name in others):
        return False
    for path, (aval, sharding) in new.leaves.items():
        earlier, earlier_sharding = old.leaves[path]
        if aval != earlier or (sharding is None) != (earlier_sharding is None):
            return False
        is_same = sharding == earlier_sharding
        if not is_same and not sharding.is_equivalent_to(earlier_sharding, aval.ndim):
            return False
    return True


def nearest(
    new: Signature, earlier: Sequence[Signature]
) -> tuple[int, tuple[Difference, ...]] | None:
    """Finds the earlier signature that differs least.

    On a tie, the dtypes decide, then the latest signature is the nearest.

    Returns:
        The index of that signature and the differences; None if `earlier` is empty.
    """
    best, least = None, (0, 0)
    for index, old in enumerate(earlier):
        differing = differences(new, old)
        distance = len(differing), _dtype_distance(new, old, differing)
        if best is None or distance <= least:
            best, least = (index, differing), distance
    return best


def _dtype_distance(
    new: Signature, old: Signature, differing: Sequence[Difference]
) -> int:
    """The differences in bytes per element, plus a large number for another kind."""
    distance = 0
    for difference in differing:
        if isinstance(difference, ArrayChanged) and difference.aspect == "dtype":
            name = difference.name
            before, after = old.leaves[name][0].dtype, new.leaves[name][0].dtype
            distance += abs(before.itemsize - after.itemsize)
            for kind in (jnp.integer, jnp.floating, jnp.complexfloating):
                if jnp.issubdtype(before, kind) != jnp.issubdtype(after, kind):
                    distance += 100
    return distance


def _is_only_committed(old: LeafKey, new: LeafKey) -> bool:
    """Whether an array is now committed, and each device still has all of it."""
    (before, uncommitted), (after, sharding) = old, new
    is_committed = uncommitted is None and isinstance(sharding, Sharding)
    return before == after and is_committed and sharding.is_fully_replicated


def _passing_changes(old: Signature, new: Signature) -> Iterator[Difference]:
    for by_keyword, before, after in ((True, old, new), (False, new, old)):
        # In the order in which one of the calls passes them by position.
        names = tuple(
            name
            for name in before.trees
            if name not in before.keywords and name in after.keywords
        )
        if names:
            yield PassingChanged(names, by_keyword)


def _array_changes(name: str, old: LeafKey, new: LeafKey) -> Iterator[Difference]:
    (before, old_sharding), (after, new_sharding) = old, new
    if not isinstance(before, ShapedArray) or not isinstance(after, ShapedArray):
        if old != new:
            texts = shown_apart(_type_or_value(old), _type_or_value(new))
            if isinstance(before, type) and isinstance(after, type):
                yield StaticChanged(name, *texts)
            else:
                yield ArrayChanged(name, "type", *texts)
        return
    is_unchanged = True
    if before.shape != after.shape:
        is_unchanged = False
        texts = str(list(before.shape)), str(list(after.shape))
        yield ArrayChanged(name, "shape", *texts)
    if before.dtype != after.dtype:
        is_unchanged = False
        yield ArrayChanged(name, "dtype", str(before.dtype), str(after.dtype))
    if before.weak_type != after.weak_type:
        is_unchanged = False
        texts = str(before.weak_type), str(after.weak_type)
        yield ArrayChanged(name, "weak type", *texts)
    if old_sharding != new_sharding:
        texts = sharding_text(old_sharding), sharding_text(new_sharding)
        # Meshes with equal axes can differ in the types of axes, or in their devices.
        for detailed in (_with_axis_types, _with_devices):
            if texts[0] == texts[1] and old_sharding and new_sharding:
                texts = detailed(old_sharding), detailed(new_sharding)
        yield ArrayChanged(name, "sharding", *texts)
    elif is_unchanged and before != after:
        yield ArrayChanged(name, "type", *shown_apart(before, after, 120))


def _type_or_value(key: LeafKey) -> object:
    """The type of an array; any other value unchanged, if the key contains it."""
    aval, value = key
    return value if isinstance(aval, type) and value is not None else aval


def _with_axis_types(sharding: Sharding) -> str:
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    return sharding_text(sharding) + clause(" ({})", mesh and _axis_types(mesh))


def _axis_types(mesh: Mesh | AbstractMesh) -> str:
    types = [axis_type.name for axis_type in mesh.axis_types]
    if len(set(types)) == 1:
        types = types[:1]
    return clause("{} axes", ", ".join(types))


def _with_devices(sharding: Sharding) -> str:
    devices = str([device.id for device in sharding.device_set])
    # A mesh also fixes the device order, which may be the only difference.
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
        devices = _device_ids(sharding.mesh)
    return f"{sharding_text(sharding)} on devices {devices}"


def _device_ids(mesh: Mesh | AbstractMesh) -> str:
    if isinstance(mesh, AbstractMesh):
        return ""
    return str([device.id for device in mesh.devices.flat])


def _static_changes(old: Signature, new: Signature) -> Iterator[Difference]:
    names = pair_names(old.statics, new.statics)
    for name, _ in names.paired:
        before, after = old.statics[name], new.statics[name]
        # 1 and True are equal, but jax compiles separately for each. Values whose hash
        # differs are never found in its caches.
        is_equal = type(before) is type(after) and before == after
        is_same_hash = old.static_hashes[name] == new.static_hashes[name]
        texts = old.static_texts[name], new.static_texts[name]
        if before is not after and not (is_equal and is_same_hash):
            yield StaticChanged(name, *shown_apart(before, after))
        # The caller has changed the object itself, or passes it by name.
        elif not is_same_hash or (texts[0] != texts[1] and is_equal):
            yield StaticChanged(name, *texts)
    for name in names.gone:
        yield StaticChanged(name, shown(old.statics[name]), None)
    for name in names.new:
        yield StaticChanged(name, None, shown(new.statics[name]))


def _setting_changes(
    old: Mapping[str, object], new: Mapping[str, object]
) -> Iterator[Difference]:
    names = pair_names(old, new)
    changed = [name for name, _ in names.paired if new[name] != old[name]]
    if "abstract_mesh_context_manager" in changed and "concrete_mesh" in changed:
        # Report a new mesh with new devices as one change, not two.
        changed.remove("concrete_mesh")
    for name in changed:
        before, after = _setting_texts(name, old[name], new[name])
        # A number is the position of a setting without a name in jax.
        yield SettingChanged("" if name.isdigit() else name, before, after)


def _setting_texts(name: str, old: object, new: object) -> tuple[str, str]:
    texts = _setting_text(name, old), _setting_text(name, new)
    for describe in (_axis_types, _device_ids):
        if texts[0] != texts[1]:
            break
        texts = _setting_text(name, old, describe), _setting_text(name, new, describe)
    return texts


def _setting_text(
    name: str,
    value: object,
    describe: Callable[[Mesh | AbstractMesh], str] = lambda mesh: "",
) -> str:
    """Formats the value of a setting, with a further description of each mesh."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if name == "concrete_mesh":
        if not isinstance(value, Mesh) or value.empty:
            return "none"
        return _device_ids(value)
    meshes = value if isinstance(value, tuple) else (value,)
    texts = []
    # Meshes entered by `with` are a tuple, outermost first.
    for mesh in meshes:
        if not isinstance(mesh, (Mesh, AbstractMesh)):
            return str(value).lower()
        texts.append(mesh_sizes(mesh) + clause(" ({})", describe(mesh)))
    return ", ".join(texts) or "none"


def sharding_text(sharding: Sharding | None) -> str:
    """Formats a sharding as short text; `sharding` is None for uncommitted arrays.

    >>> mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"))
    >>> sharding_text(NamedSharding(mesh, jax.P("data")))
    "P('data',) over data=4, model=2"
    """
    if sharding is None:
        return "uncommitted"
    memory = getattr(sharding, "memory_kind", None)
    in_memory = ""
    if memory not in (None, "device"):
        in_memory = f" in {memory}"
    if isinstance(sharding, NamedSharding):
        spec = str(sharding.spec).removeprefix("PartitionSpec").removeprefix("P")
        return f"P{spec} over {mesh_sizes(sharding.mesh)}{in_memory}"
    if isinstance(sharding, SingleDeviceSharding):
        (device,) = sharding.device_set
        return f"on {device}{in_memory}"
    return str(sharding)
