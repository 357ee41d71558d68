"""The signature of a call: all that decides what is compiled for it.

Besides the arguments these are jax's settings and the meshes around the call.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding, SingleDeviceSharding

from shardviz.base.backend.jax_compat import (
    JitSettings,
    concrete_mesh,
    is_tracing,
    trace_setting_names,
    trace_settings,
)
from shardviz.base.format import shown
from shardviz.base.pairing import pair_names
from shardviz.programs.backend.named_meshes import mesh_sizes
from shardviz.runs.cached import Difference


class Uncached(Exception):
    """A call that goes to plain jax.jit; the argument is why, as in `fallbacks`."""


class SplitCall(NamedTuple):
    """The arguments of one call, the static ones apart.

    Attributes:
        args, kwargs: what an executable takes.
        names: what the function calls each of `args`.
        statics: the static arguments by name, in the order of their names.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...]
    statics: dict[str, Any]


def split_call(
    names: Sequence[str], args: tuple, kwargs: Mapping[str, Any], jit: JitSettings
) -> SplitCall:
    """Sets the static arguments of a call apart.

    Args:
        names: what the function calls its positional arguments.
        args, kwargs: the arguments.
        jit: what `jax.jit` was given.

    >>> split_call(("x", "n"), (1.0, 3), {}, JitSettings(static=(1,))).statics
    {'n': 3}
    """
    if not jit.static and not jit.static_names:
        return SplitCall(args, dict(kwargs), tuple(names), {})
    statics, others = {}, {}
    kept_args, kept_names = [], []
    for number, (name, value) in enumerate(zip(names, args, strict=True)):
        # A negative position counts from the end of what was given.
        if number in jit.static or number - len(args) in jit.static:
            statics[name] = value
        else:
            kept_args.append(value)
            kept_names.append(name)
    for name, value in kwargs.items():
        kind = statics if name in jit.static_names else others
        kind[name] = value
    statics = {name: statics[name] for name in sorted(statics)}
    return SplitCall(tuple(kept_args), others, tuple(kept_names), statics)


def call_key(call: SplitCall) -> Hashable:
    """What a call is kept under: equal keys, one executable. Holds no arrays.

    Raises:
        Uncached: where jax transforms a function, searches for NaNs or does not compile
            at all; where this jax hides its settings; for what is no array, and for
            static arguments without a hash.
    """
    if is_tracing():
        raise Uncached("transformation")
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        raise Uncached("disable_jit")
    if jax.config.jax_debug_nans or jax.config.jax_debug_infs:  # type: ignore[attr-defined]
        raise Uncached("debug_nans")
    settings = trace_settings()
    if settings is None:
        raise Uncached("settings")
    # 1 and True are equal, and jax compiles for each.
    statics = tuple((name, type(v), v) for name, v in call.statics.items())
    try:
        hash(statics)
    except TypeError:
        raise Uncached("static") from None
    try:
        leaves, tree = jax.tree.flatten((call.args, call.kwargs))
    except (TypeError, ValueError) as error:  # such as a dict whose keys do not sort
        raise Uncached("tree") from error
    return settings, concrete_mesh(), tree, statics, tuple(map(_array_key, leaves))


def _array_key(leaf: Any) -> tuple[Any, Any]:
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
class Signature:
    """What a call is kept under, described.

    Attributes:
        tree: jax's tree definition of the arguments, static ones left out.
        arrays: the type and the sharding of each array, by its path in the arguments,
            such as `params['w']`; the sharding is None where jax may place it.
        statics: the static arguments, by name.
        settings: jax's settings around the call and the mesh in force, by name.
    """

    tree: Any
    arrays: dict[str, tuple[Any, Any]]
    statics: dict[str, Any]
    settings: dict[str, Any]

    def __str__(self) -> str:
        parts = []
        for name, (aval, sharding) in self.arrays.items():
            weak = "weak " if aval.weak_type else ""
            place = "" if sharding is None else f" {sharding_text(sharding)}"
            parts.append(f"{name}: {weak}{aval.dtype}{list(aval.shape)}{place}")
        parts += [f"{name}={shown(value)}" for name, value in self.statics.items()]
        return f"({', '.join(parts)})"


def signature_of(call: SplitCall) -> Signature:
    """The signature of a call that `call_key` took."""
    named = [*zip(call.names, call.args, strict=True), *sorted(call.kwargs.items())]
    arrays = {}
    for name, value in named:
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            arrays[name + jax.tree_util.keystr(path)] = _array_key(leaf)
    values, names = trace_settings() or (), trace_setting_names()
    if len(names) != len(values):  # this jax does not name them
        names = tuple(map(str, range(len(values))))
    settings = {
        **dict(zip(names, values, strict=True)),
        "concrete_mesh": concrete_mesh(),
    }
    tree = jax.tree.structure((call.args, call.kwargs))
    return Signature(tree, arrays, call.statics, settings)


def differences(new: Signature, old: Signature) -> tuple[Difference, ...]:
    """What differs between two signatures; nothing where they are one.

    >>> import numpy as np
    >>> calls = [SplitCall((np.zeros(n),), {}, ("x",), {}) for n in (8, 16)]
    >>> differences(signature_of(calls[1]), signature_of(calls[0]))
    (Difference(code='shape', name='x', before='[8]', after='[16]'),)
    """
    found = []
    names = pair_names(old.arrays, new.arrays)
    found += [Difference("added", name) for name in names.new]
    found += [Difference("removed", name) for name in names.gone]
    if not found and new.tree != old.tree:
        found.append(Difference("tree", "", shown(old.tree, 200), shown(new.tree, 200)))
    for name, _ in names.paired:
        found += _of_array(name, new.arrays[name], old.arrays[name])
    found += _of_statics(new.statics, old.statics)
    found += _of_settings(new.settings, old.settings)
    return tuple(found)


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


def _of_array(
    name: str, new: tuple[Any, Any], old: tuple[Any, Any]
) -> Iterator[Difference]:
    (a, sharding), (b, before) = new, old
    if a.shape != b.shape:
        yield Difference("shape", name, str(list(b.shape)), str(list(a.shape)))
    if a.dtype != b.dtype:
        yield Difference("dtype", name, str(b.dtype), str(a.dtype))
    if a.weak_type != b.weak_type:
        yield Difference("weak type", name, str(b.weak_type), str(a.weak_type))
    same = (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
    if sharding != before:
        texts = sharding_text(before), sharding_text(sharding)
        # Two meshes may have the same axes over other devices, or in another order.
        if texts[0] == texts[1]:
            texts = _with_devices(before), _with_devices(sharding)
        yield Difference("sharding", name, *texts)
    elif a != b and same:
        yield Difference("type", name, shown(b, 120), shown(a, 120))


def _with_devices(sharding: Any) -> str:
    devices = sharding.device_set
    if hasattr(sharding, "mesh"):  # in the order of the mesh, in which they may differ
        devices = sharding.mesh.devices.flat
    return f"{sharding_text(sharding)} on devices {[device.id for device in devices]}"


def _of_statics(now: dict[str, Any], before: dict[str, Any]) -> Iterator[Difference]:
    names = pair_names(before, now)
    for name, _ in names.paired:
        old, new = before[name], now[name]
        # 1 and True are equal, and jax compiles for each.
        if type(old) is not type(new) or old != new:
            yield Difference("static", name, shown(old), shown(new))
    for name in names.gone:
        yield Difference("static", name, before=shown(before[name]))
    for name in names.new:
        yield Difference("static", name, after=shown(now[name]))


def _of_settings(now: dict[str, Any], before: dict[str, Any]) -> Iterator[Difference]:
    names = pair_names(before, now)
    changed = [name for name, _ in names.paired if now[name] != before[name]]
    if "abstract_mesh_context_manager" in changed and "concrete_mesh" in changed:
        # Another mesh brings devices of its own.
        changed.remove("concrete_mesh")
    for name in changed:
        texts = _setting_text(name, before[name]), _setting_text(name, now[name])
        # A number is its position alone.
        yield Difference("setting", "" if name.isdigit() else name, *texts)


def _setting_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if name == "concrete_mesh":
        if value is None or value.empty:
            return "none"
        return str([device.id for device in value.devices.flat])
    if isinstance(value, tuple):  # the meshes that were entered, outermost first
        return ", ".join(map(mesh_sizes, value)) or "none"
    if hasattr(value, "axis_names"):
        return mesh_sizes(value) or "none"
    return str(value).lower()


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
        return f"P{spec} over {mesh_sizes(sharding.mesh)}{where}"
    if isinstance(sharding, SingleDeviceSharding):
        (device,) = sharding.device_set
        return f"on {device}{where}"
    return str(sharding)
