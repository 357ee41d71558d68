"""The signature of a call: all that decides what is compiled for it, its surroundings included.

jax keys its own caches on its trace context, which is private. It is read here and nowhere else;
where a version of jax has none there, the public settings that are known to matter replace it, and
a call inside another transformation is then recognised by its tracers only.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding, SingleDeviceSharding

from shardviz.core.format import shown

#: the class of concrete arrays; None where this version of jax hides it
ArrayImpl: Any = None
#: whether no transformation is under way, said in the quickest way; True is always right
at_top: Callable[[], bool] = bool
_trace_context_names: Callable[[], Any] = tuple
try:
    import jax._src.config as _config
    from jax._src.array import ArrayImpl as _ArrayImpl
    from jax._src.config import trace_context as _trace_context
    from jax._src.core import trace_ctx as _trace_ctx
    from jax._src.core import trace_state_clean as _trace_state_clean
    from jax._src.mesh import get_concrete_mesh as _get_concrete_mesh

    ArrayImpl = _ArrayImpl
    at_top = _trace_ctx.is_top_level
    _trace_context_names = getattr(_config, "trace_context_names", tuple)
    _PRIVATE = True
except (ImportError, AttributeError):  # pragma: no cover  this jax has moved them
    _PRIVATE = False

_PUBLIC: tuple[str, ...] = (
    "jax_enable_x64",
    "jax_default_device",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_threefry_partitionable",
    "jax_disable_jit",
)
_WORDS = {
    "jax_enable_x64": "x64 mode",
    "mesh_context_manager": "the mesh of `with mesh:`",
    "abstract_mesh_context_manager": "the mesh of jax.set_mesh",
    "concrete_mesh": "the devices of the mesh in force",
}


class Context:
    """One surrounding of calls; equal surroundings are one object, so that comparing is cheap.

    Attributes:
        settings: the names and values of all that surrounds the call.
    """

    __slots__ = ("settings",)

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def differences(self, before: Context) -> list[str]:
        """What is set otherwise than in `before`, in words: `x64 mode: off became on`."""
        new, old = self.settings, before.settings
        changed = [n for n in new if n in old and new[n] != old[n]]
        if "abstract_mesh_context_manager" in changed and "concrete_mesh" in changed:
            changed.remove("concrete_mesh")  # another mesh has other devices or the same: no news
        return [f"{_name(n)}: {_text(n, old[n])} became {_text(n, new[n])}" for n in changed]


class Contexts:
    """The surroundings met so far."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Context] = {}
        self._last: tuple[Any, Any, Any] = (None, None, None)  # one tuple: other threads read it

    def current(self) -> Context:
        """The Context of this call."""
        if not _PRIVATE:
            return self._intern((_public(), _public_mesh()))
        now, mesh = _trace_context(), _get_concrete_mesh()
        settings, devices, context = self._last
        if settings == now and devices is mesh:
            return context
        context = self._intern((now, mesh))
        self._last = (now, mesh, context)
        return context

    def _intern(self, key: tuple[Any, Any]) -> Context:
        found = self._known.get(key)
        if found is None:
            names = _names()
            values: dict[str, Any] = dict(zip(_PUBLIC, _public(), strict=True))
            if len(names) == len(key[0]):
                values.update(zip(names, key[0], strict=True))
            # Of two threads that come at once one wins, and both get what it put there.
            made = Context({**values, "concrete_mesh": key[1]})
            found = self._known.setdefault(key, made)
        return found


def clean() -> bool:
    """Whether no transformation of jax is under way in this thread.

    >>> clean(), bool(jax.jit(lambda x: x * clean())(1))
    (True, False)
    """
    return not _PRIVATE or _trace_state_clean()


def why_not(config: Any = jax.config) -> str:
    """Why no call may take the fast path now, or an empty text.

    >>> why_not()
    ''
    """
    if not clean():
        return "called inside another transformation of jax"
    if config.jax_disable_jit:
        return "jax.disable_jit is on"
    if config.jax_debug_nans or config.jax_debug_infs:
        return "jax_debug_nans or jax_debug_infs is on"
    return ""


def _public() -> tuple[Any, ...]:
    return tuple(getattr(jax.config, name, None) for name in _PUBLIC)


def _public_mesh() -> Any:
    try:
        return jax.sharding.get_mesh()
    except ValueError:  # it refuses where jax is tracing
        return jax.sharding.get_abstract_mesh()


def _names() -> tuple[str, ...]:
    try:
        return tuple(_trace_context_names()) if _PRIVATE else ()
    except NotImplementedError:
        return ()  # an older jaxlib does not give them


def _name(setting: str) -> str:
    return _WORDS.get(setting, setting.removeprefix("jax_").replace("_", " "))


def _text(setting: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if setting == "concrete_mesh":
        devices = getattr(value, "devices", None)
        return "none" if devices is None or not devices.size else str([d.id for d in devices.flat])
    if isinstance(value, tuple):  # a stack of meshes
        return ", ".join(map(mesh_text, value)) or "none"
    return mesh_text(value) if hasattr(value, "axis_names") else str(value).lower()


def mesh_text(mesh: Any) -> str:
    """A jax mesh in a word: its axes and their sizes.

    >>> mesh_text(jax.sharding.AbstractMesh((4, 2), ("data", "model")))
    'data=4, model=2'
    """
    if not getattr(mesh, "axis_names", ()):
        return "none"
    sizes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    return ", ".join(f"{name}={size}" for name, size in sizes)


class NoFastPath(Exception):
    """A call that cannot be looked up, and why."""


@dataclass(frozen=True)
class LeafSignature:
    """One array among the arguments of a call.

    Attributes:
        name: its path in the arguments, such as `params['w']`.
        aval: jax's own type of it: shape, dtype, weak type.
        sharding: its sharding where it is committed to one, or None where jax may place it.

    >>> import numpy as np
    >>> str(LeafSignature("x", jax.typeof(np.zeros((8, 4), np.float32)), None))
    'x: float32[8, 4]'
    """

    name: str
    aval: Any
    sharding: Any

    def __str__(self) -> str:
        weak = "weak " if self.aval.weak_type else ""
        placed = "" if self.sharding is None else f" {sharding_text(self.sharding)}"
        return f"{self.name}: {weak}{self.aval.dtype}{list(self.aval.shape)}{placed}"


@dataclass(frozen=True)
class Signature:
    """What a call is looked up by, with what describes it in words.

    Attributes:
        tree: jax's tree definition of the arguments, static ones left out.
        leaves: their arrays.
        statics: the static arguments, by name.
        context: the settings and meshes around the call.
    """

    tree: Any
    leaves: tuple[LeafSignature, ...]
    statics: tuple[tuple[str, Any], ...]
    context: Context

    def __str__(self) -> str:
        static = [f"{name}={shown(value)}" for name, value in self.statics]
        return f"({', '.join([*map(str, self.leaves), *static])})"


class SplitCall(NamedTuple):
    """The arguments of one call, the static ones apart.

    Attributes:
        args, kwargs: what an executable takes.
        positions: the original position of each of `args`.
        statics: name and value of each static argument, by name.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    positions: Sequence[int]
    statics: tuple[tuple[str, Any], ...]


class Parameters:
    """The parameters of a function, and which are static; as `jax.jit` reads its options.

    Where only one of `static_argnums` and `static_argnames` is given, the other follows from the
    function's signature.

    Attributes:
        names: its positional parameters.
        rest: what it calls those beyond them, or an empty text.
        nums, words: the positions and the names that are static.
        any_static: whether there are any.
    """

    def __init__(self, fn: Callable[..., Any], argnums: Any, argnames: Any) -> None:
        self.names, self.rest = _positional(fn)
        self.nums = _all_of(argnums, int)
        self.words = _all_of(argnames, str)
        if argnums is None:
            self.nums = tuple(i for i, n in enumerate(self.names) if n in self.words)
        if argnames is None:
            self.words = tuple(self.name(i) for i in self.nums if -1 < i < len(self.names))
        self.any_static = bool(self.nums or self.words)

    def name(self, position: int) -> str:
        """What the argument at a position is called."""
        if position < len(self.names):
            return self.names[position]
        return f"{self.rest or 'args'}[{position - len(self.names)}]"

    def split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SplitCall:
        """Sets the static arguments of a call apart."""
        if not self.any_static:
            return SplitCall(args, kwargs, range(len(args)), ())
        static = {n + len(args) if n < 0 else n for n in self.nums}
        kept = [i for i in range(len(args)) if i not in static]
        statics = {self.name(i): args[i] for i in sorted(static) if i < len(args)}
        statics.update((k, v) for k, v in kwargs.items() if k in self.words)
        return SplitCall(
            tuple(args[i] for i in kept),
            {k: v for k, v in kwargs.items() if k not in self.words},
            kept,
            tuple(sorted(statics.items())),
        )


def signature_key(call: SplitCall, context: Context) -> Hashable:
    """What a call is kept under: equal keys, one executable. Holds no ids of objects.

    Raises:
        NoFastPath: for static values without a hash, tracers and leaves that are no arrays.
    """
    statics = tuple((name, type(value), value) for name, value in call.statics)
    for name, _, value in statics:
        try:
            hash(value)
        except TypeError:
            raise NoFastPath(f"static argument {name} is not hashable") from None
    leaves, tree = _flatten((call.args, call.kwargs))
    keys = [part for leaf in leaves for part in _leaf_key(leaf)]
    flat = len(leaves) == len(call.args) and all(map(operator.is_, leaves, call.args))
    # Without a tree: the key that `CachedFunction` makes in its fast path.
    if flat and not call.kwargs and not statics:
        return (context, *keys)
    return (context, tree, statics, *keys)


def signature_of(call: SplitCall, context: Context, parameters: Parameters) -> Signature:
    """The signature of a call that `signature_key` took."""
    names = map(parameters.name, call.positions)
    named = [*zip(names, call.args, strict=True), *sorted(call.kwargs.items())]
    leaves = [
        LeafSignature(name + jax.tree_util.keystr(path), *_leaf_key(leaf))
        for name, value in named
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]
    ]
    tree = jax.tree.structure((call.args, call.kwargs))
    return Signature(tree, tuple(leaves), call.statics, context)


def sharding_text(sharding: Any) -> str:
    """A sharding in a few words.

    >>> mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"))
    >>> sharding_text(NamedSharding(mesh, jax.P("data")))
    "P('data',) over data=4, model=2"
    """
    memory = getattr(sharding, "memory_kind", None)
    where = f" in {memory}" if memory not in (None, "device") else ""
    if isinstance(sharding, NamedSharding):
        spec = str(sharding.spec).removeprefix("PartitionSpec")
        return f"P{spec.removeprefix('P')} over {mesh_text(sharding.mesh)}{where}"
    if isinstance(sharding, SingleDeviceSharding):
        (device,) = sharding.device_set
        return f"on {device}{where}"
    return str(sharding)


def _flatten(tree: Any) -> tuple[list[Any], Any]:
    try:
        return jax.tree.flatten(tree)
    except (TypeError, ValueError) as error:  # such as a dict whose keys do not sort
        raise NoFastPath("arguments that jax cannot flatten") from error


def _leaf_key(leaf: Any) -> tuple[Any, Any]:
    if type(leaf) is ArrayImpl:
        return leaf.aval, leaf.sharding if leaf.committed else None
    if isinstance(leaf, Tracer):
        raise NoFastPath("called inside another transformation of jax")
    if isinstance(leaf, jax.Array):
        return jax.typeof(leaf), leaf.sharding if leaf.committed else None
    try:
        aval = jax.typeof(leaf)
    except TypeError:
        raise NoFastPath(f"an argument that is no array: {type(leaf).__name__}") from None
    if isinstance(leaf, jax.Ref):
        raise NoFastPath(f"an argument that is no array: {type(leaf).__name__}")
    return aval, None


def _positional(fn: Callable[..., Any]) -> tuple[tuple[str, ...], str]:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return (), ""  # built in, or made in a way that hides it
    rest = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in kinds), rest[0] if rest else ""


def _all_of(given: Any, kind: type) -> tuple[Any, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, kind) else tuple(given)
