"""Matches the collectives of two programs, or of two compiler stages of one program.

Names of collectives do not survive the compiler, so all code that compares collectives
uses this module:

- `Traffic` defines when two collectives count as the same: equal kind, mesh axes, bytes
  and trip count. Source lines don't count, because code moves. Locks compare `Traffic`.
- `value_key` returns the key by which the collectives of two plans are paired.
- `match` follows collectives from one stage of the compiler to the next.
- `comes_from` decides whether a collective can inherit the operand and the cause of a
  collective in an earlier stage.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from shardviz.base.axis_parts import parent_axis
from shardviz.base.cause import UNKNOWN
from shardviz.base.collective import Collective, Member
from shardviz.base.pairing import pair

Key = Callable[[Collective], Hashable]

_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\]")
# The bits per element in a dtype's name: 16 in bf16, 8 in f8e4m3.
_WIDTH = re.compile(r"\d+")

# The sort key of a missing position, which comes after all others.
_LAST = 1 << 62


class Traffic(NamedTuple):
    """The properties that are equal if two collectives count as the same.

    Attributes:
        kind: the kind of collective, such as `all-gather`.
        mesh_axes: the mesh axes that the collective runs over.
        bytes_per_device: bytes on each device in one execution.
        trips: the number of executions; None if unknown.

    >>> Traffic("all-gather", ("data",), 64, 1).mesh_axes
    ('data',)
    """

    kind: str
    mesh_axes: tuple[str, ...]
    bytes_per_device: int
    trips: int | None


def traffic_of(c: Collective) -> Traffic:
    """Returns the Traffic of a collective.

    >>> traffic_of(Collective("all-reduce", ("data",), 64, op="jit(f)/dot_general"))[:3]
    ('all-reduce', ('data',), 64)
    """
    return Traffic(c.kind, c.mesh_axes, c.bytes_per_device, c.trips)


def value_key(c: Collective, value: str) -> Hashable:
    """Returns the key by which collectives of two plans are paired, without the size.

    Args:
        c: the collective.
        value: the name that the collective's value has in the second plan.

    >>> value_key(Collective("all-reduce", ("data",), 64, "jit(f)/dot_general"), "dot")
    ('all-reduce', ('data',), 'jit(f)/dot_general', 'dot')
    """
    return c.kind, c.mesh_axes, c.op, value


# --- two stages of the compiler -------------------------------------------------------


class Match(NamedTuple):
    """Collectives of two stages that belong together.

    Attributes:
        kind: how the collectives changed, one of `comparison.CHANGES`.
        before, after: positions of the collectives in each stage's sequence.
    """

    kind: str
    before: tuple[int, ...]
    after: tuple[int, ...]


def match(
    before: Sequence[Collective], after: Sequence[Collective], planned: bool = False
) -> list[Match]:
    """Follows the collectives of one stage to the next.

    The first rounds require equal traffic, operation and source line. Later rounds
    require less. Every round removes the collectives that it matched.

    The last round balances the remaining collectives. Compilers combine collectives,
    move them out of loops, peel iterations and rename them. But the number of elements
    that each kind of collective sends over each axis stays the same. A collective is
    therefore `removed` only if no other match gained elements of that kind over its
    axes.

    Args:
        before, after: the collectives of two stages.
        planned: whether `before` is an estimate, which may be wrong.

    Returns:
        Each collective in exactly one Match, in the order of `before`, then of `after`.

    >>> c = Collective("all-reduce", ("data",), 64, op="jit(f)/dot_general")
    >>> match([c], [c])
    [Match(kind='kept', before=(0,), after=(0,))]
    """
    matcher = _Matcher(before, after)
    matcher.split_between_slices()
    for key in (_everything, _op_and_line, _source_line):
        matcher.pair(key, _is_same, "kept")
    matcher.pair(_source_line, _is_hoisted, "hoisted")
    matcher.combine()
    for key in (_op_and_line, _source_line):
        matcher.pair(key, _is_converted, "changed")
    matcher.pair(_no_origin, _is_same, "kept")
    for key in (_op_and_line, _source_line):
        matcher.join(key, across_axes=planned)
    matches = matcher.balanced(planned)
    return sorted(matches, key=lambda m: ((*m.before, _LAST)[0], (*m.after, _LAST)[0]))


def becomes_async(old: Sequence[Collective], new: Sequence[Collective]) -> bool:
    """True if other work can run during the new collectives, but not the old ones."""
    return any(c.is_async for c in new) and not any(c.is_async for c in old)


# Keys for the origin of a collective, from strict to loose; None if unknown.
def _everything(c: Collective) -> Hashable:
    return c.op, c.source, c.trips, c.operand, c.members


def _op_and_line(c: Collective) -> Hashable:
    return (c.op, c.source) if c.op or c.source else None


def _source_line(c: Collective) -> Hashable:
    return c.source or None


def _no_origin(c: Collective) -> Hashable:
    return ""


# Predicates: whether two collectives may be paired.
def _is_same(old: Collective, new: Collective) -> bool:
    """True if both have equal traffic; an unknown trip count equals any other."""
    before, after = traffic_of(old), traffic_of(new)
    if None in (before.trips, after.trips):
        before, after = before._replace(trips=None), after._replace(trips=None)
    same_loop = old.in_loop == new.in_loop
    return before == after and same_loop and _array_count(old) == _array_count(new)


def _array_count(c: Collective) -> int:
    """The number of arrays that a collective moves; 1 if its shape is unknown."""
    if c.definition.tuple_is_one_array:
        return 1
    return max(1, len(_arrays(c.shape)))


def _is_hoisted(old: Collective, new: Collective) -> bool:
    """True if a collective moved out of a loop, sized for one or for all iterations."""
    if not old.in_loop or new.in_loop:
        return False
    if (old.kind, old.mesh_axes) != (new.kind, new.mesh_axes):
        return False
    # XLA can gather the weights of all iterations before the loop.
    size = old.bytes_per_device
    return new.bytes_per_device in (size, size * old.execution_count)


def _is_converted(old: Collective, new: Collective) -> bool:
    """True if the dtype changed, or if an all-reduce became a reduce-scatter."""
    if (old.mesh_axes, old.in_loop) != (new.mesh_axes, new.in_loop):
        return False
    if _keeps_part_of_sum(old, new):
        return old.bytes_per_device == new.bytes_per_device
    return old.kind == new.kind and elements(old) == elements(new) > 0


def _keeps_part_of_sum(old: Collective, new: Collective) -> bool:
    """True if an all-reduce became a reduce-scatter."""
    sums = old.definition.sums and new.definition.sums
    return sums and old.definition.equal_results and not new.definition.equal_results


def _may_join(old: Collective, combined: Collective) -> bool:
    """True if the compiler may have merged a collective into a combined one."""
    if old.mesh_axes != combined.mesh_axes:
        return False
    if _keeps_part_of_sum(old, combined):
        return old.in_loop == combined.in_loop
    return old.kind == combined.kind and (old.in_loop or not combined.in_loop)


def elements(c: Collective | Member) -> int:
    """The elements of the result on each device; 0 if the shape is unknown."""
    return sum(math.prod(dims) for _, dims in _arrays(c.shape))


def amount(c: Collective | Member) -> int:
    """The number of elements of the result, or its bytes if the shape is unknown.

    Elements are preferred, because a compiler may send them in another type.
    """
    return elements(c) or c.bytes_per_device


@lru_cache(maxsize=1024)
def _arrays(shape: str) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Bits per element and dimensions of each array in a shape that XLA printed."""
    arrays = []
    for dtype, dims in _ARRAY.findall(shape):
        width = _WIDTH.search(dtype)
        sizes = [int(d.removeprefix("<=")) for d in dims.split(",") if d]
        arrays.append((int(width[0]) if width else 8, tuple(sizes)))
    return tuple(arrays)


def _elements_sent(c: Collective) -> int:
    """The number of elements in `bytes_per_device`; 0 if the shape is unknown.

    Differs from `elements` for a reduce-scatter: counts elements of the operand.
    """
    bits = sum(width * math.prod(dims) for width, dims in _arrays(c.shape))
    return c.bytes_per_device * 8 * elements(c) // max(1, bits)


def _parts(combined: Collective) -> list[tuple[int, Member | None]]:
    """The bytes of each array of a combined collective, and its Member if known."""
    if combined.members:
        return [(m.bytes_per_device, m) for m in combined.members]
    total = max(1, elements(combined))
    parts: list[tuple[int, Member | None]] = []
    for _, dims in _arrays(combined.shape):
        parts.append((combined.bytes_per_device * math.prod(dims) // total, None))
    return parts


def _differences(c: Collective, member: Member | None) -> int:
    """The number of differences (operand, origin) between a collective and a member."""
    if member is None:
        return 0
    other_origin = (c.op, c.source) != (member.op, member.source)
    return (c.operand != member.operand) + other_origin


def _families(c: Collective) -> set[tuple[str, str]]:
    """Keys for counting a collective's elements: `(family, axis)` per mesh axis."""
    family = "sum" if c.definition.sums else c.kind
    return {(family, axis) for axis in _full_axes(c)}


def _full_axes(c: Collective) -> set[str]:
    """A collective's mesh axes, with full axes for sub-axes; `{""}` if it has none."""
    return {*map(parent_axis, c.mesh_axes)} or {""}


def _added_together(c: Collective) -> Hashable:
    """A key that is equal for sums which are added together; None for the rest."""
    if not c.added_in:
        return None
    return c.added_in, c.kind, c.mesh_axes, c.shape, c.trips


class _Matcher:
    """The state of `match`: collectives not matched yet, and the matches so far."""

    def __init__(
        self, before: Sequence[Collective], after: Sequence[Collective]
    ) -> None:
        self.all_before, self.all_after = before, after
        self.before, self.after = dict(enumerate(before)), dict(enumerate(after))
        self.matches: list[Match] = []
        # If any shape is unknown, bytes are compared instead of elements.
        self.shapes_known = all(_elements_sent(c) for c in (*before, *after))

    def take(self, kind: str, before: Sequence[int], after: Sequence[int]) -> None:
        """Adds a match of collectives that are not matched yet."""
        for i in before:
            del self.before[i]
        for j in after:
            del self.after[j]
        m = Match(kind, tuple(before), tuple(after))
        if kind == "kept" and becomes_async(*self.collectives(m)):
            m = m._replace(kind="made asynchronous")
        self.matches.append(m)

    def pair(
        self, key: Key, fits: Callable[[Collective, Collective], bool], kind: str
    ) -> None:
        """Matches collectives in order, in pairs that have equal keys and satisfy `fits`."""
        pairing = pair(
            self.before,
            self.after,
            lambda i: key(self.all_before[i]),
            lambda j: key(self.all_after[j]),
            lambda i, j: fits(self.all_before[i], self.all_after[j]),
        )
        for i, j in pairing.paired:
            self.take(kind, [i], [j])

    def split_between_slices(self) -> None:
        """Matches a collective over TPU slices to its steps in and between slices."""
        for i, c in list(self.before.items()):
            steps, across = [], 0
            for j, step in self.after.items():
                if step.source in ("", c.source) and {*step.mesh_axes} <= {
                    *c.mesh_axes
                }:
                    steps.append(j)
                    across += step.between_slices
            # If several collectives share this source line, their later steps cannot be
            # told apart.
            same_line = [d for d in self.before.values() if d.source == c.source]
            # A single collective also has steps within slices. If all steps cross slices,
            # they belong to several collectives.
            if 0 < across < len(steps) and len(same_line) == 1:
                self.take("split", [i], steps)

    def combine(self) -> None:
        """Matches each combined collective to the earlier collectives of its arrays."""
        for j, combined in list(self.after.items()):
            free = []
            for i, c in self.before.items():
                if _may_join(c, combined):
                    free.append(i)
            chosen = []
            # Compare elements too, because the compiler may convert before sending.
            total, size = elements(combined), max(1, combined.bytes_per_device)
            for part, member in _parts(combined):
                candidates = []
                for i in free:
                    c = self.before[i]
                    same_size = c.bytes_per_device == part
                    if same_size or elements(c) == part * total // size:
                        candidates.append((not same_size, _differences(c, member), i))
                if candidates:
                    best = min(candidates)[-1]
                    free.remove(best)
                    chosen.append(best)
            if len(chosen) > 1:
                self.take("combined", sorted(chosen), [j])

    def join(self, key: Key, across_axes: bool) -> None:
        """Matches all remaining collectives that have the same key.

        A compiler may change kinds and sizes, but not axes.

        Args:
            key: returns the origin of a collective.
            across_axes: whether to match collectives without a common axis, as after a
                wrong estimate.
        """
        before, after = _grouped(self.before, key), _grouped(self.after, key)
        for origin, old in before.items():
            new = after.get(origin, [])
            groups = [Match("", tuple(old), tuple(new))]
            if not across_axes:
                sides: list[tuple[set[Hashable], Match]] = []
                for i in old:
                    axes: set[Hashable] = {*_full_axes(self.all_before[i])}
                    sides.append((axes, Match("", (i,), ())))
                for j in new:
                    axes = {*_full_axes(self.all_after[j])}
                    sides.append((axes, Match("", (), (j,))))
                groups = list(map(_joined, _connected(sides)))
            for m in groups:
                if m.before and m.after:
                    self.take(self._kind(m), m.before, m.after)

    def balanced(self, planned: bool) -> list[Match]:
        """All matches, after joining lost and gained elements over the same axes."""
        matches = list(self.matches)
        matches += [Match("removed", (i,), ()) for i in self.before]
        matches += [Match("added", (), (j,)) for j in self.after]
        # If sums are added together, XLA may keep only one of the collectives.
        lost = {_added_together(c) for c in self.before.values()} - {None}
        sides: list[tuple[set[Hashable], Match]] = []
        for m in matches:
            keys: set[Hashable] = {
                _added_together(self.all_before[i]) for i in m.before
            }
            keys &= lost
            # Look for lost elements only if another match may have them.
            for key, gain in self.change(m).items():
                if gain > 0 or (gain < 0 and self._loses(m, planned)):
                    keys.add(key)
            sides.append((keys, m))
        result: list[Match] = []
        for group in _connected(sides):
            joined = _joined(group)
            change = self.change(joined).values()
            losing = any(self._loses(m, planned) for m in group)
            # Elements that only a plan has may simply be an error of the plan.
            certain = losing and not (planned and min(change, default=0) < 0)
            if joined.after and len(group) > 1 and (certain or not any(change)):
                result.append(joined._replace(kind=self._kind(joined)))
            else:
                result += group
        return result

    def _loses(self, m: Match, planned: bool) -> bool:
        """True if elements that a match lost may be in another match."""
        if m.kind not in ("changed", "hoisted") or planned:
            return m.kind == "removed"
        old, new = self.collectives(m)
        kinds = {c.kind for c in old + new}
        return len(kinds) == 1 and min(self.change(m).values(), default=0) < 0

    def change(self, m: Match) -> dict[tuple[str, str], float]:
        """The elements that a match gains, by `(family, axis)`; negative for a loss."""
        old, new = self.collectives(m)
        # If all trip counts are unknown, assume that they are equal, and compare one
        # iteration. If only some are, the later stage may send any number of elements.
        all_unknown = {c.trips for c in old + new} == {None}
        change: dict[tuple[str, str], float] = defaultdict(int)
        for c in old:
            for key in _families(c):
                change[key] -= self._amount(c) * c.execution_count
        for c in new:
            executions: float = c.execution_count
            if c.trips is None and not all_unknown and c.bytes_per_device:
                executions = math.inf
            for key in _families(c):
                change[key] += self._amount(c) * executions
        return change

    def _amount(self, c: Collective) -> int:
        if self.shapes_known:
            return _elements_sent(c)
        return c.bytes_per_device

    def _kind(self, m: Match) -> str:
        """How the collectives of a match changed: combined, split, or otherwise."""
        old, new = self.collectives(m)
        # If sums are added together, one sum can replace them, so count them as one.
        once: dict[Hashable, int] = {}
        for i in m.before:
            once.setdefault(_added_together(self.all_before[i]) or i, i)
        change = self.change(m._replace(before=tuple(once.values())))
        families = {family for family, _ in change}
        if any(change.values()) or len(families) > 1 or len(old) == len(new) == 1:
            return "changed"
        if len(new) == 1:
            return "combined"
        if len(old) == 1:
            return "split"
        return "changed"

    def collectives(self, m: Match) -> tuple[list[Collective], list[Collective]]:
        """The collectives of a match in the earlier and in the later stage."""
        old = [self.all_before[i] for i in m.before]
        return old, [self.all_after[j] for j in m.after]


def _joined(matches: Sequence[Match]) -> Match:
    before, after = [], []
    for m in matches:
        before += m.before
        after += m.after
    return Match("", tuple(sorted(before)), tuple(sorted(after)))


def _connected(sides: Sequence[tuple[set[Hashable], Match]]) -> list[list[Match]]:
    """Groups matches connected by shared keys; a match without keys stays alone."""
    groups: list[tuple[set[Hashable], list[Match]]] = []
    alone: list[list[Match]] = []
    for keys, m in sides:
        if not keys:
            alone.append([m])
            continue
        joined_keys, matches, separate = set(keys), [m], []
        for group in groups:
            if group[0] & keys:
                joined_keys |= group[0]
                matches = group[1] + matches
            else:
                separate.append(group)
        groups = [*separate, (joined_keys, matches)]
    return [*alone, *(matches for _, matches in groups)]


def _grouped(items: Mapping[int, Collective], key: Key) -> dict[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for i, c in items.items():
        if key(c) is not None:
            groups[key(c)].append(i)
    return dict(groups)


# --- causes ---------------------------------------------------------------------------


def comes_from(new: Collective | Member, old: Collective) -> bool:
    """True if two matched collectives certainly have the same operand.

    Args:
        new: a collective of the later stage, or a member of a combined one.
        old: the collective of the earlier stage that `match` matched with `new`.
    """
    if old.operand in (None, UNKNOWN):
        return False
    # Operations and source lines must agree if both are known.
    ops = new.op == old.op or not (new.op and old.op)
    sources = new.source == old.source or not (new.source and old.source)
    if new.operand in (None, UNKNOWN):
        return ops and sources
    if new.operand == old.operand:
        return True
    # A compiler may rename an operation, but not an argument.
    both_arguments = new.operand.is_argument and old.operand.is_argument
    return ops and sources and not both_arguments
