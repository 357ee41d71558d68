"""Why a call was compiled anew: what its signature has that the nearest earlier one had not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardviz.core.errors import listed, shown
from shardviz.core.program.calls.signature import LeafSignature, Signature, sharding_text


def differences(new: Signature, old: Signature) -> tuple[str, ...]:
    """What differs between two signatures, a sentence each; nothing where they are one.

    >>> import numpy as np
    >>> from shardviz.core.program.calls.context import Contexts
    >>> from shardviz.core.program.calls.signature import Parameters, signature_of
    >>> parameters, here = Parameters(lambda x: x, None, None), Contexts().current()
    >>> calls = [parameters.split((np.zeros(n),), {}) for n in (8, 16)]
    >>> old, new = (signature_of(call, here, parameters) for call in calls)
    >>> differences(new, old)
    ('argument x: shape [8] became [16]',)
    """
    return (*_tree(new, old), *_leaves(new, old), *_statics(new, old), *_context(new, old))


def nearest(new: Signature, known: Sequence[Signature]) -> tuple[int, tuple[str, ...]] | None:
    """Which of the known signatures differs least, the latest of equals, and in what."""
    found = [(differences(new, old), -index) for index, old in enumerate(known)]
    if not found:
        return None
    words, index = min(found, key=lambda pair: (len(pair[0]), pair[1]))
    return -index, words


def _tree(new: Signature, old: Signature) -> Iterator[str]:
    if new.tree == old.tree:
        return
    now, before = ([leaf.name for leaf in s.leaves] for s in (new, old))
    come = [n for n in now if n not in before]
    gone = [n for n in before if n not in now]
    if come:
        yield f"tree: came {listed(come)}"
    if gone:
        yield f"tree: went {listed(gone)}"
    if not come and not gone:
        yield f"tree: {shown(old.tree, 200)} became {shown(new.tree, 200)}"


def _leaves(new: Signature, old: Signature) -> Iterator[str]:
    before = {leaf.name: leaf for leaf in old.leaves}
    for leaf in new.leaves:
        if leaf.name in before:
            for words in _leaf(leaf, before[leaf.name]):
                yield f"argument {leaf.name}: {words}"


def _leaf(new: LeafSignature, old: LeafSignature) -> Iterator[str]:
    a, b = new.aval, old.aval
    if a.shape != b.shape:
        yield f"shape {list(b.shape)} became {list(a.shape)}"
    if a.dtype != b.dtype:
        yield f"dtype {b.dtype} became {a.dtype}"
    if a.weak_type != b.weak_type:
        yield f"weak type {b.weak_type} became {a.weak_type}"
    if new.sharding != old.sharding:
        yield _sharding(new.sharding, old.sharding)
    elif a != b and (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type):
        yield f"type {shown(b, 120)} became {shown(a, 120)}"


def _sharding(new: Any, old: Any) -> str:
    if old is None:
        return f"sharding: uncommitted became {sharding_text(new)}"
    if new is None:
        return f"sharding: {sharding_text(old)} became uncommitted"
    texts = [sharding_text(old), sharding_text(new)]
    if texts[0] == texts[1]:
        texts = [f"{t} {_devices(s)}" for t, s in zip(texts, (old, new), strict=True)]
    if texts[0] == texts[1]:
        texts = [shown(old, 200), shown(new, 200)]
    return f"sharding {texts[0]} became {texts[1]}"


def _devices(sharding: Any) -> str:
    devices = getattr(getattr(sharding, "mesh", None), "devices", None)
    ids = sharding.device_set if devices is None else devices.flat
    return f"on devices {[d.id for d in ids]}"


def _statics(new: Signature, old: Signature) -> Iterator[str]:
    now, before = dict(new.statics), dict(old.statics)
    for name in dict.fromkeys([*before, *now]):
        if name not in now:
            yield f"static argument {name}: {shown(before[name])} became not given"
        elif name not in before:
            yield f"static argument {name}: not given became {shown(now[name])}"
        elif not _same(now[name], before[name]):
            yield f"static argument {name}: {_values(before[name], now[name])}"


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _values(old: Any, new: Any) -> str:
    if shown(old) == shown(new):
        return f"{shown(old)} became another {type(new).__name__} that reads the same"
    return f"{shown(old)} became {shown(new)}"


def _context(new: Signature, old: Signature) -> Iterator[str]:
    if new.context is old.context:
        return
    words = new.context.differences(old.context)
    yield from words or ["another setting of jax, which this version of it does not name"]
