"""The signature of a call: everything about its arguments that decides what is compiled for it."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding, SingleDeviceSharding

from shardviz.core.errors import shown
from shardviz.core.program.calls.context import ArrayImpl, Context, mesh_text


class NoFastPath(Exception):
    """A call that cannot be looked up, and why."""


@dataclass(frozen=True)
class LeafSignature:
    """One array among the arguments of a call.

    Attributes:
        name: where it stands, such as `params['w']`.
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
    """What a call is looked up by, and what tells two calls apart in words.

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
        positions: where each of `args` stood.
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
    # Without a tree to tell apart: the key that `CachedFunction` makes in its fast path.
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
    place = f" in {memory}" if memory not in (None, "device") else ""
    if isinstance(sharding, NamedSharding):
        spec = str(sharding.spec).removeprefix("PartitionSpec")
        return f"P{spec.removeprefix('P')} over {mesh_text(sharding.mesh)}{place}"
    if isinstance(sharding, SingleDeviceSharding):
        (device,) = sharding.device_set
        return f"on {device}{place}"
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
