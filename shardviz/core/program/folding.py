"""Folds what the layers of a program have in common: `blocks_{0..31}/Mlp_0/Dense_0`, 32 times.

Names are alike that differ in numbers only. A pattern stands for every combination of its numbers,
each as often as the others, so that what is folded can be unfolded: names of which some
combinations are missing become several patterns.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shardviz.core.program.plan_values import PlannedOp
from shardviz.core.program.report import Collective

T = TypeVar("T")
_NUMBER = re.compile(r"(\d+)")
_NUMBERED_CALL = re.compile(r" \(\d+\)$")  # of a repeated call: `relu (2)`
_WRAPPED = re.compile(r"(\w+)\((.*)\)")
_WRAPPERS = frozenset(
    ("jit", "pjit", "jvp", "transpose", "vmap", "checkpoint", "remat", "linearize", "partial_eval",
     "custom_jvp", "custom_vjp", "shard_map")
)  # fmt: skip


@dataclass(frozen=True)
class Fold(Generic[T]):
    """Items whose names differ in numbers only, and in nothing else that counts.

    Attributes:
        parts: the name: at even places its words, at odd ones the numbers that stand there.
        times: how many items have each of the names.
        items: the items, in their order.

    >>> one, = fold(["blocks_0/Mlp_0", "blocks_1/Mlp_0"], str)
    >>> one.name, one.unfolded()
    ('blocks_{0..1}/Mlp_0', ['blocks_0/Mlp_0', 'blocks_1/Mlp_0'])
    """

    parts: tuple[tuple[str, ...], ...]
    times: int
    items: tuple[T, ...]

    @property
    def name(self) -> str:
        """The name, with the numbers that vary in braces."""
        return "".join(p[0] if len(p) == 1 else f"{{{_ranges(p)}}}" for p in self.parts)

    @property
    def count(self) -> str:
        """`"32 × "`, or `""` for one item."""
        return f"{len(self.items):,} × " if len(self.items) > 1 else ""

    def unfolded(self) -> list[str]:
        """The name of every item, in no order."""
        names = ["".join(parts) for parts in itertools.product(*self.parts)]
        return names * self.times


def _ranges(numbers: Sequence[str]) -> str:
    """`0..31` or `0..3,7`; numbers with leading zeros one by one."""
    if any(str(int(n)) != n for n in numbers):
        return ",".join(numbers)
    found: list[list[int]] = []
    for number in sorted(map(int, numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}..{b}" for a, b in found)


def fold(
    items: Iterable[T], name: Callable[[T], str], alike: Callable[[T], Hashable] | None = None
) -> list[Fold[T]]:
    """Folds items whose names differ in numbers only.

    Args:
        items: what has names.
        name: the name of an item, such as its path.
        alike: what has to be equal beside the words of the name.

    Returns:
        The folds, in the order of their first items. Every item is in one of them.

    >>> [f.name for f in fold(["a_0/x", "a_0/y", "a_1/x", "b"], str)]
    ['a_{0..1}/x', 'a_0/y', 'b']
    """
    groups: dict[Hashable, list[tuple[int, tuple[str, ...], T]]] = {}
    for position, item in enumerate(items):
        parts = tuple(_NUMBER.split(name(item)))
        key = (parts[::2], None if alike is None else alike(item))
        groups.setdefault(key, []).append((position, parts, item))
    found = [one for group in groups.values() for one in _products(group)]
    return [Fold(parts, times, tuple(i for _, _, i in some)) for parts, times, some in
            sorted(found, key=lambda one: one[2][0][0])]  # fmt: skip


def _products(group: list[tuple[int, tuple[str, ...], T]]) -> list[tuple[Any, int, Any]]:
    """A group in parts, each with every combination of its numbers equally often."""
    counts = Counter(parts for _, parts, _ in group)
    values = [list(dict.fromkeys(column)) for column in zip(*counts, strict=True)]
    combinations = 1
    for column in values:
        combinations *= len(column)
    if combinations == len(counts) and len(set(counts.values())) == 1:
        parts = tuple(tuple(_in_order(column)) for column in values)
        return [(parts, next(iter(counts.values())), group)]
    by: Callable[[tuple[str, ...]], Hashable]
    if combinations == len(counts):
        by = counts.__getitem__  # by how often the names are there
    else:
        # Apart at the last place with the fewest numbers, so that the layers stay together.
        varying = [n for n, column in enumerate(values) if len(column) > 1]
        place = min(varying, key=lambda n: (len(values[n]), -n))
        by = lambda parts: parts[place]  # noqa: E731
    groups: dict[Hashable, list[tuple[int, tuple[str, ...], T]]] = {}
    for one in group:
        groups.setdefault(by(one[1]), []).append(one)
    return [found for some in groups.values() for found in _products(some)]


def _in_order(column: list[str]) -> list[str]:
    return sorted(column, key=lambda v: (int(v), v)) if len(column) > 1 else column


def unwrapped(name: str) -> str:
    """One part of a scope without what jax did to it; `""` where nothing else is left.

    >>> unwrapped("transpose(jvp(mlp))"), unwrapped("jvp()"), unwrapped("jit(relu) (2)")
    ('mlp', '', 'relu (2)')
    """
    number = _NUMBERED_CALL.search(name)
    bare = _NUMBERED_CALL.sub("", name)
    while (found := _WRAPPED.fullmatch(bare)) and found[1] in _WRAPPERS:
        bare = found[2]
    return bare + (number[0] if number and bare else "")


def path_in_words(op: str) -> str:
    """What jax calls an operation, as the program named its parts: without the function itself.

    >>> path_in_words("jit(step)/transpose(jvp(blocks_3))/Mlp_0/dot_general")
    'blocks_3/Mlp_0/dot_general'
    """
    head, _, rest = op.partition("/")
    parts = (unwrapped(part) for part in (rest or head).split("/"))
    return "/".join(part for part in parts if part)


def fold_collectives(collectives: Iterable[Collective]) -> list[Fold[Collective]]:
    """Collectives of one kind, size and line that differ in the numbers of their scopes.

    Returns:
        The folds, those with the most bytes first.

    >>> some = [Collective("all-reduce", ("x",), 64, f"jit(f)/layer_{n}/dot") for n in range(3)]
    >>> [(one.count, one.name) for one in fold_collectives(some)]
    [('3 × ', 'layer_{0..2}/dot')]
    """
    folds = fold(collectives, lambda c: path_in_words(c.op), _sort_of)
    return sorted(folds, key=lambda one: -sum(c.bytes_in_all for c in one.items))


def _sort_of(c: Collective) -> Hashable:
    same = (c.kind, c.mesh_axes, c.bytes_per_device, c.shape, c.trips, c.source, c.phase)
    return (*same, c.is_async, c.rematerialises, len(c.members))


def fold_line(one: Fold[Collective]) -> str:
    """Alike collectives in one line: `32 × 512 MiB all-reduce over model · mlp.py:3 · mlp/dot`.

    >>> one, = fold_collectives([Collective("all-gather", ("x",), 64, f"f/h_{n}") for n in (0, 1)])
    >>> fold_line(one)
    '2 × 64 B all-gather over x · h_{0..1}'
    """
    first = one.items[0]
    over = f" over {' × '.join(first.mesh_axes)}" if first.mesh_axes else ""
    where = "".join(f" · {v}" for v in (first.source, name_of_fold(one)) if v)
    return f"{one.count}{first.amount} {first.kind}{over}{where}"


def name_of_fold(one: Fold[Collective]) -> str:
    """Their operation; of combined ones that of the largest member, and how many others.

    >>> one, = fold_collectives([Collective("all-gather", ("x",), 64, "jit(f)/layer_1/dot")])
    >>> name_of_fold(one)
    'jit(f)/layer_1/dot'
    """
    first = one.items[0]
    name = first.op
    if len(one.items) > 1:
        name = f"{one.name}{', backward' if first.phase == 'backward' else ''}"
    return f"{name} and {len(first.members) - 1:,} more" if first.members else name


def fold_values(ops: Iterable[PlannedOp]) -> list[Fold[PlannedOp]]:
    """The values of a plan: those of one operation, line, type and sharding in all layers as one.

    >>> ops = [PlannedOp(f"blocks[{n}].w", "argument", shape=(8,)) for n in range(32)]
    >>> [one.name for one in fold_values(ops)]
    ['blocks[{0..31}].w']
    """
    return fold(ops, _name_of_value, _sort_of_value)


def _name_of_value(op: PlannedOp) -> str:
    if op.kind != "op":
        return op.name
    *scope, last = path_in_words(op.op).split("/")
    # Where jax adds an operation for another, it has the other's name.
    return "/".join([*scope, last if last in op.name else op.opcode])


def _sort_of_value(op: PlannedOp) -> Hashable:
    same = (op.kind, op.opcode, op.shape, op.dtype, op.spec, op.source, op.backward, op.trips)
    return (*same, op.region, op.note)
