"""Finds the signature of a call from the few features in which signatures differ.

Comparing all leaves of a large tree would take longer than jax takes to call the
executable. A call that does not compile has one of the signatures seen so far, and
these signatures differ in few features: one leaf, one setting.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import jax
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from shardviz.base.typing import PyTree
from shardviz.runs.backend.signature import Signature, leaf_key, surroundings

_MISSING = object()
Row = TypeVar("Row")


class Arguments(NamedTuple):
    """The arguments of a call, by name.

    Attributes:
        names: the parameter names of the positional arguments.
        args, kwargs: all arguments, including static ones.
    """

    names: Sequence[str]
    args: tuple[PyTree, ...]
    kwargs: Mapping[str, PyTree]

    def named(self, name: str) -> Any:
        """Returns an argument; a marker if the call does not pass it."""
        if name in self.kwargs:
            return self.kwargs[name]
        if name in self.names:
            return self.args[self.names.index(name)]
        return _MISSING


@dataclass(frozen=True)
class _Leaf:
    """The type and sharding of the leaf at one path."""

    path: str
    name: str
    keys: tuple[Any, ...]

    def of_signature(self, signature: Signature) -> Hashable:
        return signature.leaves.get(self.path, _MISSING)

    def of_call(self, call: Arguments) -> Hashable:
        value = call.named(self.name)
        for key in self.keys:
            try:
                value = _child(value, key)
            except (LookupError, AttributeError):
                return _MISSING
        if jax.tree_util.all_leaves((value,)):
            return leaf_key(value)
        return _MISSING


@dataclass(frozen=True)
class _Static:
    """The value of a static argument."""

    name: str

    def of_signature(self, signature: Signature) -> Hashable:
        return _typed(signature.statics.get(self.name, _MISSING))

    def of_call(self, call: Arguments) -> Hashable:
        return _typed(call.named(self.name))


@dataclass(frozen=True)
class _Surroundings:
    """The settings and meshes around the call."""

    def of_signature(self, signature: Signature) -> Hashable:
        return tuple(signature.settings.values())

    def of_call(self, call: Arguments) -> Hashable:
        return surroundings()


_Feature: TypeAlias = _Leaf | _Static | _Surroundings


class UnknownKey(Exception):
    """A node of a tree whose children cannot be looked up by their keys."""


def _child(value: Any, key: object) -> Any:
    """Returns the child of a node as jax's key names it.

    Raises:
        LookupError: if the node is of another kind or lacks the key.
        AttributeError: if the node lacks the attribute.
        UnknownKey: for a node of a class that defines its own keys.
    """
    is_sequence, is_dict = type(value) in (tuple, list), isinstance(value, dict)
    match key:
        case DictKey(key=name) if is_dict:
            return value[name]
        case SequenceKey(idx=index) if is_sequence:
            return value[index]
        case GetAttrKey(name=attribute) if not is_sequence and not is_dict:
            return getattr(value, attribute)
    if is_sequence or is_dict or jax.tree_util.all_leaves((value,)):
        raise LookupError
    raise UnknownKey


def _typed(value: object) -> Hashable:
    return type(value), value


class Attribution(Generic[Row]):
    """Maps calls to the rows of their signatures by the features that tell them apart.

    Args:
        rows: each signature with its row.

    Raises:
        UnknownKey: if only the tree structures differ, or a tree has custom nodes. Then
            calls must be compared in full.
    """

    def __init__(self, rows: Sequence[tuple[Signature, Row]]) -> None:
        self._features: list[_Feature] = []
        self._rows: dict[tuple[Hashable, ...], Row] = {}
        groups: dict[tuple[Hashable, ...], list[tuple[Signature, Row]]] = {(): [*rows]}
        while (pair := _pair(groups)) is not None:
            self._features.append(_difference(*pair))
            groups = {}
            for signature, row in rows:
                key = tuple(f.of_signature(signature) for f in self._features)
                groups.setdefault(key, []).append((signature, row))
        self._rows = {key: group[0][1] for key, group in groups.items()}

    def row_of(self, call: Arguments) -> Row | None:
        """Returns the row of a call that did not compile; None if no row matches."""
        try:
            return self._rows.get(tuple([f.of_call(call) for f in self._features]))
        except (UnknownKey, TypeError):
            return None


def _pair(
    groups: Mapping[tuple[Hashable, ...], Sequence[tuple[Signature, object]]],
) -> tuple[Signature, Signature] | None:
    """Finds two signatures of one group that have different rows."""
    for (first, row), *others in groups.values():
        for second, other_row in others:
            if other_row is not row:
                return first, second
    return None


def _difference(first: Signature, second: Signature) -> _Feature:
    """Finds a feature in which two signatures differ."""
    for name in {**first.statics, **second.statics}:
        feature = _Static(name)
        if feature.of_signature(first) != feature.of_signature(second):
            return feature
    for path, (name, keys) in {**first.paths, **second.paths}.items():
        feature = _Leaf(path, name, keys)
        if feature.of_signature(first) != feature.of_signature(second):
            return feature
    if first.settings != second.settings:
        return _Surroundings()
    raise UnknownKey
