"""match(): which collectives of one stage became which of the next.

A collective has no name that survives the compiler. What survives is what it does and
where it comes from: kind, mesh axes, bytes, whether it is in a loop, the operation and
source line. The steps of `match` ask for all of it first and for less afterwards, and
each takes its matches out, so that every collective is matched once.

What then seems to be gone is balanced: compilers pack collectives into one message,
move them out of loops and peel iterations, under other names, but they communicate the
same numbers of a kind over an axis. So a collective is `removed` only where nothing
gained numbers of its kind over its axes.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

from shardviz.base.axis_parts import parent_axis
from shardviz.base.collective import Collective, Member
from shardviz.base.pairing import pair

_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\]")
_WIDTH = re.compile(r"\d+")  # bits of an element: bf16, f8e4m3
_SUMS = ("all-reduce", "reduce-scatter")
_LAST = 1 << 62  # what has no position on a side comes after all that have one
Key = Callable[[Collective], Hashable]


class Match(NamedTuple):
    """Collectives that belong together, by their positions on each side.

    Attributes:
        kind: what became of them, one of `comparison.CHANGES`.
        before, after: positions in the two sequences.
    """

    kind: str
    before: tuple[int, ...]
    after: tuple[int, ...]


def match(
    before: Sequence[Collective], after: Sequence[Collective], planned: bool = False
) -> list[Match]:
    """Every collective of both sides in one Match, in the order of `before`, then of
    `after`.

    Args:
        before, after: the collectives of two stages.
        planned: whether `before` is an estimate, which need not become anything.

    >>> one = Collective("all-reduce", ("data",), 64, op="jit(f)/dot_general")
    >>> match([one], [one])
    [Match(kind='kept', before=(0,), after=(0,))]
    """
    sides = _Sides(before, after)
    sides.split_between_slices()
    for key in (_all_known, _place, _source_line):
        sides.pair(key, _is_same, "kept")
    sides.pair(_source_line, _is_hoisted, "hoisted")
    sides.combine()
    for key in (_place, _source_line):
        sides.pair(key, _is_sent_otherwise, "changed")
    sides.pair(_anywhere, _is_same, "kept")
    for key in (_place, _source_line):
        sides.join(key, across_axes=planned)
    matches = sides.balanced(planned)
    return sorted(matches, key=lambda m: ((*m.before, _LAST)[0], (*m.after, _LAST)[0]))


# --- what two collectives have in common ----------------------------------------------


# Where a collective comes from, by less and less; None where that is not known.
def _source_line(c: Collective) -> Hashable:
    return c.source or None


def _place(c: Collective) -> Hashable:
    return (c.op, c.source) if c.op or c.source else None


def _all_known(c: Collective) -> Hashable:
    return c.op, c.source, c.trips, c.operand, c.members


def _anywhere(c: Collective) -> Hashable:
    return ""


def _is_same(old: Collective, new: Collective) -> bool:
    """Whether they do the same; of loops, as often as far as that is known."""
    same = _work(old) == _work(new) and old.in_loop == new.in_loop
    return same and (old.trips == new.trips or None in (old.trips, new.trips))


def _work(c: Collective) -> Hashable:
    arrays = max(1, len(_arrays(c.shape)))
    if c.kind == "all-to-all":
        arrays = 1  # XLA writes one array as a tuple of what goes to each device
    return c.kind, c.mesh_axes, c.bytes_per_device, arrays


def _is_hoisted(old: Collective, new: Collective) -> bool:
    """Whether one in a loop is outside of it, for one iteration or for all at once."""
    if not old.in_loop or new.in_loop:
        return False
    if (old.kind, old.mesh_axes) != (new.kind, new.mesh_axes):
        return False
    # Of scanned weights XLA gathers the whole stack before the loop.
    size = old.bytes_per_device
    return new.bytes_per_device in (size, size * old.execution_count)


def _is_sent_otherwise(old: Collective, new: Collective) -> bool:
    """Whether the same numbers are sent in another type, or the parts of a sum kept."""
    if (old.mesh_axes, old.in_loop) != (new.mesh_axes, new.in_loop):
        return False
    if (old.kind, new.kind) == ("all-reduce", "reduce-scatter"):
        return old.bytes_per_device == new.bytes_per_device
    return old.kind == new.kind and elements(old) == elements(new) > 0


def elements(c: Collective | Member) -> int:
    """How many numbers its result has on each device; 0 where its shape is unknown."""
    return sum(math.prod(dims) for _, dims in _arrays(c.shape))


@lru_cache(maxsize=1024)
def _arrays(shape: str) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Bits of an element and dimensions of each array of a shape as XLA prints it."""
    arrays = []
    for kind, dims in _ARRAY.findall(shape):
        width = _WIDTH.search(kind)
        sizes = [int(d.removeprefix("<=")) for d in dims.split(",") if d]
        arrays.append((int(width[0]) if width else 8, tuple(sizes)))
    return tuple(arrays)


def _numbers(c: Collective) -> int:
    """How many numbers its bytes are, in whatever type; 0 where its shape is unknown."""
    bits = sum(width * math.prod(dims) for width, dims in _arrays(c.shape))
    return c.bytes_per_device * 8 * elements(c) // max(1, bits)


def _parts(combined: Collective) -> list[tuple[int, Member | None]]:
    """The bytes of each array that a combined collective is about, and the array."""
    if combined.members:
        return [(m.bytes_per_device, m) for m in combined.members]
    total = max(1, elements(combined))
    parts: list[tuple[int, Member | None]] = []
    for _, dims in _arrays(combined.shape):
        parts.append((combined.bytes_per_device * math.prod(dims) // total, None))
    return parts


def _may_join(old: Collective, combined: Collective) -> bool:
    """Whether a collective may be part of a combined one."""
    if old.mesh_axes != combined.mesh_axes:
        return False
    if (old.kind, combined.kind) == ("all-reduce", "reduce-scatter"):
        return old.in_loop == combined.in_loop
    return old.kind == combined.kind and (old.in_loop or not combined.in_loop)


def _unlike(c: Collective, member: Member | None) -> int:
    """In how many ways a collective differs from a member that it may have become."""
    if member is None:
        return 0
    other_place = (c.op, c.source) != (member.op, member.source)
    return (c.operand != member.operand) + other_place


def becomes_async(old: Sequence[Collective], new: Sequence[Collective]) -> bool:
    """Whether other work can run meanwhile, and could not before."""
    return any(c.is_async for c in new) and not any(c.is_async for c in old)


def _families(c: Collective) -> set[tuple[str, str]]:
    """What its numbers are counted under: its family over each of its axes."""
    family = "sum" if c.kind in _SUMS else c.kind
    return {(family, axis) for axis in _whole_axes(c)}


def _whole_axes(c: Collective) -> set[str]:
    """Its mesh axes, also those of which it runs over a part; `{""}` if it has none."""
    return {*map(parent_axis, c.mesh_axes)} or {""}


def _added_together(c: Collective) -> Hashable:
    """What is the same of all sums that one addition takes; None for any other."""
    if not c.added_in:
        return None
    return c.added_in, c.kind, c.mesh_axes, c.shape, c.trips


# --- the steps ------------------------------------------------------------------------


class _Sides:
    """What is not matched yet, and what is."""

    def __init__(
        self, before: Sequence[Collective], after: Sequence[Collective]
    ) -> None:
        self.olds, self.news = before, after
        self.before, self.after = dict(enumerate(before)), dict(enumerate(after))
        self.found: list[Match] = []
        # Where one shape is unknown, bytes are compared.
        self.shapes_known = all(_numbers(c) for c in (*before, *after))

    def take(self, kind: str, before: Sequence[int], after: Sequence[int]) -> None:
        """Makes a match of some that are not matched yet."""
        for i in before:
            del self.before[i]
        for j in after:
            del self.after[j]
        m = Match(kind, tuple(before), tuple(after))
        if kind == "kept" and becomes_async(*self.collectives(m)):
            m = m._replace(kind="made asynchronous")
        self.found.append(m)

    def pair(
        self, key: Key, fits: Callable[[Collective, Collective], bool], kind: str
    ) -> None:
        """One with one, in order, where both have the same key and fit."""
        pairing = pair(
            self.before,
            self.after,
            lambda i: key(self.olds[i]),
            lambda j: key(self.news[j]),
            lambda i, j: fits(self.olds[i], self.news[j]),
        )
        for i, j in pairing.paired:
            self.take(kind, [i], [j])

    def split_between_slices(self) -> None:
        """What several slices do together became steps: some inside, some across."""
        for i, c in list(self.before.items()):
            steps, across = [], 0
            for j, d in self.after.items():
                if d.source in ("", c.source) and {*d.mesh_axes} <= {*c.mesh_axes}:
                    steps.append(j)
                    across += d.between_slices
            # Of several of one line nobody knows whose steps these are.
            alone = sum(o.source == c.source for o in self.before.values()) == 1
            # Where all of them go across, they are no steps of one.
            if 0 < across < len(steps) and alone:
                self.take("split", [i], steps)

    def combine(self) -> None:
        """For every array of a combined collective the one that was about it."""
        for j, combined in list(self.after.items()):
            free = []
            for i, c in self.before.items():
                if _may_join(c, combined):
                    free.append(i)
            chosen = []
            # The compiler may convert before it sends: 64 numbers are 64 numbers.
            total, size = elements(combined), max(1, combined.bytes_per_device)
            for part, member in _parts(combined):
                fits = []
                for i in free:
                    c = self.before[i]
                    same_size = c.bytes_per_device == part
                    if same_size or elements(c) == part * total // size:
                        fits.append((not same_size, _unlike(c, member), i))
                if fits:
                    best = min(fits)[-1]
                    free.remove(best)
                    chosen.append(best)
            if len(chosen) > 1:
                self.take("combined", sorted(chosen), [j])

    def join(self, key: Key, across_axes: bool) -> None:
        """What is left at one place on both sides: the one became the other.

        A compiler changes kinds and sizes, but not the axes.

        Args:
            key: the place.
            across_axes: also where no axis is on both sides, as of a wrong estimate.
        """
        before, after = _grouped(self.before, key), _grouped(self.after, key)
        for place, old in before.items():
            groups = [Match("", tuple(old), tuple(after.get(place, ())))]
            if not across_axes:
                sides = []
                for i in old:
                    axes = _whole_axes(self.olds[i])
                    sides.append((axes, Match("", (i,), ())))
                for j in after.get(place, ()):
                    axes = _whole_axes(self.news[j])
                    sides.append((axes, Match("", (), (j,))))
                groups = list(map(_joined, _connected(sides)))
            for m in groups:
                if m.before and m.after:
                    self.take(self._kind(m), m.before, m.after)

    def balanced(self, planned: bool) -> list[Match]:
        """All matches; what lost numbers joined with what gained them over its axes."""
        matches = list(self.found)
        matches += [Match("removed", (i,), ()) for i in self.before]
        matches += [Match("added", (), (j,)) for j in self.after]
        # Sums that are added up are done by one of them, where one is left.
        lost = {_added_together(c) for c in self.before.values()} - {None}
        sides = []
        for m in matches:
            keys: set[Hashable] = {_added_together(self.olds[i]) for i in m.before}
            keys &= lost
            # A loss is looked for elsewhere only where something may be elsewhere.
            for key, gain in self.change(m).items():
                if gain > 0 or (gain < 0 and self._loses(m, planned)):
                    keys.add(key)
            sides.append((keys, m))
        result = []
        for inside in _connected(sides):
            joined = _joined(inside)
            change = self.change(joined).values()
            losing = any(self._loses(m, planned) for m in inside)
            # An estimate need not become anything that is less.
            known = losing and not (planned and min(change, default=0) < 0)
            if joined.after and len(inside) > 1 and (known or not any(change)):
                result.append(joined._replace(kind=self._kind(joined)))
            else:
                result += inside
        return result

    def _loses(self, m: Match, planned: bool) -> bool:
        """Whether what it communicated may be in another match."""
        if m.kind not in ("changed", "hoisted") or planned:
            return m.kind == "removed"
        old, new = self.collectives(m)
        kinds = {c.kind for c in old + new}
        return len(kinds) == 1 and min(self.change(m).values(), default=0) < 0

    def change(self, m: Match) -> dict[tuple[str, str], float]:
        """What it gains of each family over each axis; negative for a loss."""
        # What runs equally often on both sides, though nobody knows how often, is
        # compared once; else what is there afterwards may be any number.
        old, new = self.collectives(m)
        alike = {c.trips for c in old + new} == {None}
        change: dict[tuple[str, str], float] = defaultdict(int)
        for c in old:
            for key in _families(c):
                change[key] -= self._amount(c) * c.execution_count
        for c in new:
            often: float = c.execution_count
            if c.trips is None and not alike and c.bytes_per_device:
                often = math.inf
            for key in _families(c):
                change[key] += self._amount(c) * often
        return change

    def _amount(self, c: Collective) -> int:
        if self.shapes_known:
            return _numbers(c)
        return c.bytes_per_device

    def _kind(self, m: Match) -> str:
        """What became of collectives that are known to belong together."""
        old, new = self.collectives(m)
        # Of sums that are added up, one does for all.
        once: dict[Hashable, int] = {}
        for i in m.before:
            once.setdefault(_added_together(self.olds[i]) or i, i)
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
        """The collectives of a match, of either stage."""
        return [self.olds[i] for i in m.before], [self.news[j] for j in m.after]


def _joined(matches: Sequence[Match]) -> Match:
    before, after = [], []
    for m in matches:
        before += m.before
        after += m.after
    return Match("", tuple(sorted(before)), tuple(sorted(after)))


def _connected(sides: Sequence[tuple[set[Hashable], Match]]) -> list[list[Match]]:
    """Matches in groups, whose sets of keys are connected; those without keys alone."""
    groups: list[tuple[set[Hashable], list[Match]]] = []
    alone = []
    for keys, m in sides:
        if not keys:
            alone.append([m])
            continue
        together, matches, others = set(keys), [m], []
        for group in groups:
            if group[0] & keys:
                together |= group[0]
                matches = group[1] + matches
            else:
                others.append(group)
        groups = [*others, (together, matches)]
    return [*alone, *(matches for _, matches in groups)]


def _grouped(items: dict[int, Collective], key: Key) -> dict[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for i, c in items.items():
        if key(c) is not None:
            groups[key(c)].append(i)
    return dict(groups)
