"""The signature of a call: all that decides what is compiled for it.

Besides the arguments these are jax's settings and the meshes around the call.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding, SingleDeviceSharding

from shardviz.core.backend.jax_compat import (
    concrete_mesh,
    is_tracing,
    trace_setting_names,
    trace_settings,
)
from shardviz.core.format import shown
from shardviz.core.program.cached import Difference

# Where jax hides the settings that it compiles anew for, these count.
_PUBLIC = (
    "jax_enable_x64",
    "jax_default_device",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_threefry_partitionable",
)


class Uncached(Exception):
    """A call that goes to plain jax.jit; the argument is one of `FALLBACKS`."""


def refuse_uncached(config: Any = jax.config) -> None:
    """Refuses calls that must not run an executable here and now.

    Raises:
        Uncached: with the reason.
    """
    if is_tracing():
        raise Uncached("transformation")
    if config.jax_disable_jit:
        raise Uncached("disable_jit")
    if config.jax_debug_nans or config.jax_debug_infs:
        raise Uncached("debug_nans")


class SplitCall(NamedTuple):
    """The arguments of one call, the static ones apart.

    Attributes:
        args, kwargs: what an executable takes.
        names: what the function calls each of `args`.
        statics: name and value of each static argument, by name.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: Sequence[str]
    statics: tuple[tuple[str, Any], ...]


def split_call(
    names: Sequence[str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    positions: Sequence[int] = (),
    words: Sequence[str] = (),
) -> SplitCall:
    """Sets the static arguments of a call apart.

    Args:
        names: what the function calls its positional arguments.
        args, kwargs: the arguments.
        positions, words: which are static, as `jax.jit` has them.

    >>> split_call(("x", "n"), (1.0, 3), {}, (1,)).statics
    (('n', 3),)
    """
    if not positions and not words:
        return SplitCall(args, kwargs, names, ())
    statics, others = {}, {}
    kept_args, kept_names = [], []
    for number, (name, value) in enumerate(zip(names, args, strict=True)):
        # A negative position counts from the end of what was given.
        if number in positions or number - len(args) in positions:
            statics[name] = value
        else:
            kept_args.append(value)
            kept_names.append(name)
    for name, value in kwargs.items():
        if name in words:
            statics[name] = value
        else:
            others[name] = value
    # By name alone: values need not have an order.
    by_name = tuple((name, statics[name]) for name in sorted(statics))
    return SplitCall(tuple(kept_args), others, tuple(kept_names), by_name)


def surroundings() -> tuple[Any, Any]:
    """The settings of jax around a call, and the mesh in force with its devices."""
    settings = trace_settings()
    if settings is not None:
        return settings, concrete_mesh()
    public = tuple(getattr(jax.config, name, None) for name in _PUBLIC)
    return public, jax.sharding.get_abstract_mesh()


def call_key(call: SplitCall) -> Hashable:
    """What a call is kept under: equal keys, one executable. Holds no arrays.

    Raises:
        Uncached: for tracers, for what is no array, and for statics without a hash.
    """
    statics = tuple((name, type(value), value) for name, value in call.statics)
    try:
        hash(statics)
    except TypeError:
        raise Uncached("static") from None
    try:
        leaves, tree = jax.tree.flatten((call.args, call.kwargs))
    except (TypeError, ValueError) as error:  # such as a dict whose keys do not sort
        raise Uncached("tree") from error
    return (surroundings(), tree, statics, tuple(map(_leaf_key, leaves)))


def _leaf_key(leaf: Any) -> tuple[Any, Any]:
    """The type of an array, and its sharding where it is committed to one."""
    if isinstance(leaf, Tracer):
        raise Uncached("transformation")
    if isinstance(leaf, jax.Array):
        # jax may move an array that is not committed; its place decides nothing.
        if not leaf.committed:
            return leaf.aval, None
        return leaf.aval, leaf.sharding
    # A Ref is changed in place, which an executable of values cannot do.
    if isinstance(leaf, jax.Ref):
        raise Uncached("not an array")
    try:
        return jax.typeof(leaf), None
    except TypeError:
        raise Uncached("not an array") from None


@dataclass(frozen=True)
class LeafSignature:
    """One array among the arguments of a call.

    Attributes:
        name: its path in the arguments, such as `params['w']`.
        aval: jax's own type of it: shape, dtype, weak type.
        sharding: its sharding where it is committed to one, or None where jax may place
            it.

    >>> import numpy as np
    >>> str(LeafSignature("x", jax.typeof(np.zeros((8, 4), np.float32)), None))
    'x: float32[8, 4]'
    """

    name: str
    aval: Any
    sharding: Any

    def __str__(self) -> str:
        array = f"{self.aval.dtype}{list(self.aval.shape)}"
        if self.aval.weak_type:
            array = f"weak {array}"
        if self.sharding is not None:
            array = f"{array} {sharding_text(self.sharding)}"
        return f"{self.name}: {array}"


@dataclass(frozen=True)
class Signature:
    """What a call is kept under, described.

    Attributes:
        tree: jax's tree definition of the arguments, static ones left out.
        leaves: their arrays.
        statics: the static arguments, by name.
        settings: jax's settings around the call and the mesh in force, by name.
    """

    tree: Any
    leaves: tuple[LeafSignature, ...]
    statics: tuple[tuple[str, Any], ...]
    settings: dict[str, Any]

    def __str__(self) -> str:
        static = [f"{name}={shown(value)}" for name, value in self.statics]
        return f"({', '.join([*map(str, self.leaves), *static])})"


def signature_of(call: SplitCall) -> Signature:
    """The signature of a call that `call_key` took."""
    named = [*zip(call.names, call.args, strict=True), *sorted(call.kwargs.items())]
    leaves = []
    for name, value in named:
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            path_text = jax.tree_util.keystr(path)
            leaves.append(LeafSignature(name + path_text, *_leaf_key(leaf)))
    values, mesh = surroundings()
    names = _PUBLIC
    if trace_settings() is not None:
        names = trace_setting_names()
    if len(names) != len(values):  # this jax does not name them
        names = tuple(map(str, range(len(values))))
    settings = {**dict(zip(names, values, strict=True)), "concrete_mesh": mesh}
    tree = jax.tree.structure((call.args, call.kwargs))
    return Signature(tree, tuple(leaves), call.statics, settings)


def differences(new: Signature, old: Signature) -> tuple[Difference, ...]:
    """What differs between two signatures; nothing where they are one.

    >>> import numpy as np
    >>> calls = [split_call(("x",), (np.zeros(n),), {}) for n in (8, 16)]
    >>> old, new = map(signature_of, calls)
    >>> differences(new, old)
    (Difference(code='shape', name='x', before='[8]', after='[16]'),)
    """
    return (
        *_of_trees(new, old),
        *_of_leaves(new, old),
        *_of_statics(new, old),
        *_of_settings(new, old),
    )


def nearest(
    new: Signature, known: Sequence[Signature]
) -> tuple[int, tuple[Difference, ...]] | None:
    """Which of the known signatures differs least, the latest of equals, and in what."""
    best = None
    for index, old in enumerate(known):
        differing = differences(new, old)
        if best is None or len(differing) <= len(best[1]):
            best = index, differing
    return best


def _of_trees(new: Signature, old: Signature) -> Iterator[Difference]:
    if new.tree == old.tree:
        return
    now, before = _by_name(new), _by_name(old)
    for name in now:
        if name not in before:
            yield Difference("added", name)
    for name in before:
        if name not in now:
            yield Difference("removed", name)
    if now.keys() == before.keys():
        yield Difference("tree", "", shown(old.tree, 200), shown(new.tree, 200))


def _of_leaves(new: Signature, old: Signature) -> Iterator[Difference]:
    now, before = _by_name(new), _by_name(old)
    for name, leaf in now.items():
        if name in before:
            yield from _of_leaf(leaf, before[name])


def _by_name(signature: Signature) -> dict[str, LeafSignature]:
    return {leaf.name: leaf for leaf in signature.leaves}


def _of_leaf(new: LeafSignature, old: LeafSignature) -> Iterator[Difference]:
    a, b, name = new.aval, old.aval, new.name
    if a.shape != b.shape:
        yield Difference("shape", name, str(list(b.shape)), str(list(a.shape)))
    if a.dtype != b.dtype:
        yield Difference("dtype", name, str(b.dtype), str(a.dtype))
    if a.weak_type != b.weak_type:
        yield Difference("weak type", name, str(b.weak_type), str(a.weak_type))
    same = (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
    if new.sharding != old.sharding:
        yield Difference("sharding", name, *_shardings(old.sharding, new.sharding))
    elif a != b and same:
        yield Difference("type", name, shown(b, 120), shown(a, 120))


def _shardings(old: Any, new: Any) -> tuple[str, str]:
    """Two shardings as text, with as much of each as tells them apart."""
    before, after = sharding_text(old), sharding_text(new)
    # Two meshes may have the same axes over other devices, or in another order.
    if before == after:
        before = f"{before} on devices {_device_ids(old)}"
        after = f"{after} on devices {_device_ids(new)}"
    if before == after:
        return shown(old, 200), shown(new, 200)
    return before, after


def _device_ids(sharding: Any) -> list[int]:
    devices = sharding.device_set
    if hasattr(sharding, "mesh"):  # in the order of the mesh, in which they may differ
        devices = sharding.mesh.devices.flat
    return [device.id for device in devices]


def _of_statics(new: Signature, old: Signature) -> Iterator[Difference]:
    now, before = dict(new.statics), dict(old.statics)
    for name in dict.fromkeys([*before, *now]):
        if name not in now:
            yield Difference("static", name, shown(before[name]))
        elif name not in before:
            yield Difference("static", name, "", shown(now[name]))
        else:
            a, b = now[name], before[name]
            # 1 and True are equal, and jax compiles for each.
            if type(a) is not type(b) or a != b:
                yield Difference("static", name, shown(b), shown(a))


def _of_settings(new: Signature, old: Signature) -> Iterator[Difference]:
    now, before = new.settings, old.settings
    changed = [n for n in now if n in before and now[n] != before[n]]
    if "abstract_mesh_context_manager" in changed and "concrete_mesh" in changed:
        # Another mesh brings devices of its own.
        changed.remove("concrete_mesh")
    for name in changed:
        texts = _setting_text(name, before[name]), _setting_text(name, now[name])
        if name.isdigit():  # only its position is known
            name = ""
        yield Difference("setting", name, *texts)


def _setting_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if name == "concrete_mesh":
        devices = getattr(value, "devices", None)
        if devices is None or not devices.size:
            return "none"
        return str([device.id for device in devices.flat])
    if isinstance(value, tuple):  # the meshes that were entered, outermost first
        return ", ".join(map(mesh_text, value)) or "none"
    if hasattr(value, "axis_names"):
        return mesh_text(value)
    return str(value).lower()


def mesh_text(mesh: Any) -> str:
    """The axes of a jax mesh and their sizes.

    >>> mesh_text(jax.sharding.AbstractMesh((4, 2), ("data", "model")))
    'data=4, model=2'
    """
    if not getattr(mesh, "axis_names", ()):
        return "none"
    sizes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    return ", ".join(f"{name}={size}" for name, size in sizes)


def sharding_text(sharding: Any) -> str:
    """A sharding as short text; None is an array that is not committed to one.

    >>> mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"))
    >>> sharding_text(NamedSharding(mesh, jax.P("data")))
    "P('data',) over data=4, model=2"
    """
    if sharding is None:
        return "uncommitted"
    memory = getattr(sharding, "memory_kind", None)
    where = ""
    if memory not in (None, "device"):
        where = f" in {memory}"
    if isinstance(sharding, NamedSharding):
        spec = str(sharding.spec).removeprefix("PartitionSpec").removeprefix("P")
        return f"P{spec} over {mesh_text(sharding.mesh)}{where}"
    if isinstance(sharding, SingleDeviceSharding):
        (device,) = sharding.device_set
        return f"on {device}{where}"
    return str(sharding)
