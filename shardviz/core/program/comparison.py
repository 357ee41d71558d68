"""compare(): what became of the collectives of one stage in the next, with a sentence for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardviz.core.display import Displayed
from shardviz.core.errors import ProgramError
from shardviz.core.format import bytes_text, joined, shown, suggestion
from shardviz.core.program.matching import Match, elements, match, same_work
from shardviz.core.program.report import UNKNOWN, Collective, Member

# Where the collectives of a stage come from.
_SAYS = {
    "propagated": "Shardy planned",
    "partitioned": "the partitioner made",
    "compiled": "the compiler made",
}
_GONE = {
    "partitioned": "the partitioner does without it",
    "compiled": "the compiler does without it",
}
_WHY = {
    "all-reduce > reduce-scatter": "each device keeps only its part of the sum",
    "all-gather > collective-permute": "each part is used while the next one is sent",
    "all-gather > all-to-all": "only the parts that change hands are sent",
    "all-gather > all-reduce": "each device adds its part to zeros",
    "all-reduce > all-gather": "the parts are gathered first and summed on every device",
    "all-reduce > reduce-scatter, all-gather": "a sum in two steps, with work in between",
    "reduce-scatter > all-reduce": "every device gets the whole sum and keeps its part",
    "all-to-all > all-gather": "every device gets all parts, and keeps what it needs",
    "all-to-all > collective-permute": "the parts are sent round one by one",
}


def phrase(collectives: Sequence[Collective]) -> str:
    """Collectives as a phrase; equal ones are counted.

    >>> c = Collective("all-reduce", ("data",), 1024)
    >>> phrase([c]), phrase([c, c])
    ('an all-reduce of 1 KiB over data', '2 all-reduces of 2 KiB in all over data')
    """
    groups: dict[tuple[str, tuple[str, ...]], list[Collective]] = {}
    for c in collectives:
        groups.setdefault((c.kind, c.mesh_axes), []).append(c)
    return joined(_alike(kind, axes, some) for (kind, axes), some in groups.items())


def _alike(kind: str, axes: tuple[str, ...], some: Sequence[Collective]) -> str:
    size = bytes_text(sum(c.bytes_per_device for c in some))
    if len(some) == 1:
        article = "an" if kind[0] in "aeio" else "a"
        return f"{article} {kind} of {size}{_over(axes)}{_loop_words(some[0])}"
    loops = {_loop_words(c) for c in some}
    each = loops.pop() if len(loops) == 1 else ""
    return f"{len(some)} {kind}s of {size} in all{_over(axes)}{each}"


def _over(axes: tuple[str, ...]) -> str:
    return f" over {joined(axes)}" if axes else ""


def _loop_words(c: Collective) -> str:
    if not c.in_loop:
        return ""
    return " in a loop" if c.trips is None else f" in a loop, {c.trips} times"


def _at(collectives: Sequence[Collective]) -> str:
    """` (block.py:31)`, or the two first of several lines."""
    lines = list(dict.fromkeys(c.source for c in collectives if c.source))
    more = " …" if len(lines) > 2 else ""
    return f" ({', '.join(lines[:2])}{more})" if lines else ""


def sentence(
    kind: str,
    before: Sequence[Collective],
    after: Sequence[Collective],
    names: tuple[str, str],
    duplicate: bool = False,
) -> str:
    """What became of `before`, and why where that is known.

    Args:
        kind: one of CHANGES.
        before, after: the collectives on each side.
        names: the names of the two stages.
        duplicate: whether one that does the same is still there, for one that is gone.
    """
    what, at = phrase(before or after), _at(before) or _at(after)
    if kind in ("kept", "made asynchronous"):
        return _kept(kind, before[0], after[0], what + at, names)
    if kind == "combined":
        return _combined(before, after, at)
    if kind == "regrouped":
        return _regrouped(before, after, at, names)
    if kind == "hoisted":
        return _hoisted(before[0], after[0], at)
    if kind == "split":
        return _split(before[0], after, what + at)
    if kind == "removed":
        gone = _GONE.get(names[1], f"{names[1]} has none")
        why = "an equal one does its work too" if duplicate else gone
        return f"Gone: {what}{at}; {why}."
    if kind == "added":
        return f"New: {what}{at}. {after[0].cause or _remade(after)}".rstrip()
    return _replaced(before, after, at, names)


def _kept(
    kind: str, before: Collective, after: Collective, what: str, names: tuple[str, str]
) -> str:
    if kind == "kept":
        word = "As planned" if names[0] == "propagated" else "Kept"
        return f"{word}: {what}. {_remade([after])}".rstrip()
    return (
        f"Made asynchronous: {what} is started early and waited for later, so that other work"
        f" can run meanwhile. {_remade([after])}"
    ).rstrip()


def _combined(before: Sequence[Collective], after: Sequence[Collective], at: str) -> str:
    one_kind = len({(c.kind, c.mesh_axes) for c in (*before, *after)}) == 1
    what = (
        f"{len(before)} {after[0].kind}s{_over(after[0].mesh_axes)}" if one_kind else phrase(before)
    )
    into = phrase(after) if _kinds(before) != _kinds(after) else _one_of(after[0], one_kind)
    words = f"{what[0].upper()}{what[1:]} were combined into {into}{at}"
    why = _WHY.get(f"{_kinds(before)} > {_kinds(after)}", "")
    if _adds_first(before):
        why = "what the program adds up afterwards is added up first, and communicated once"
    elif one_kind:
        why = f"one large message takes less time than {len(before)} small ones"
    words += f": {why}." if why else "."
    if any(c.in_loop for c in before) and not any(c.in_loop for c in after):
        words += " It was also moved out of its loop."
    return words + (" It runs asynchronously." if _begins(before, after) else "")


def _one_of(combined: Collective, one_kind: bool) -> str:
    over = "" if one_kind else _over(combined.mesh_axes)
    return f"one of {bytes_text(combined.bytes_per_device)}{over}"


def _adds_first(before: Sequence[Collective]) -> bool:
    """Whether some were sums that are added up, of which there is one for all afterwards."""
    counts = Counter((c.added_in, c.shape) for c in before if c.added_in)
    return any(count > 1 for count in counts.values())


def _regrouped(
    before: Sequence[Collective], after: Sequence[Collective], at: str, names: tuple[str, str]
) -> str:
    if names[0] == "propagated":
        return _instead(before, after, at, names)
    old, new = phrase(before), phrase(after)
    words = f"{old[0].upper()}{old[1:]}{at} became {new}; which became which is unknown."
    return words + (" It runs asynchronously." if _begins(before, after) else "")


def _instead(
    before: Sequence[Collective], after: Sequence[Collective], at: str, names: tuple[str, str]
) -> str:
    """What was planned, and what was made of it."""
    verb = _SAYS.get(names[1], f"{names[1]} has")
    planned, made = f"{_SAYS[names[0]]} {phrase(before)}", f"{verb} {phrase(after)}"
    return f"{planned} here{at}; {made} instead. {_remade(after)}".rstrip()


def _hoisted(before: Collective, after: Collective, at: str) -> str:
    often = "each iteration" if before.trips is None else f"{before.trips} times"
    what = phrase([after])
    return f"Moved out of its loop: {what}{at} runs once instead of {often}." + (
        " It runs asynchronously." if _begins([before], [after]) else ""
    )


def _split(before: Collective, after: Sequence[Collective], what: str) -> str:
    if any(c.between_slices for c in after):
        return (
            f"Split: {what} became {phrase(after)}: what goes from slice to slice is a step of its"
            " own."
        )
    copies = {(c.mesh_axes, c.bytes_per_device) for c in after}
    if copies == {(before.mesh_axes, before.bytes_per_device)}:
        return f"Unrolled: {what} is there {len(after)} times, since its loop was unrolled."
    return f"Split: {what} became {phrase(after)}."


def _replaced(
    before: Sequence[Collective], after: Sequence[Collective], at: str, names: tuple[str, str]
) -> str:
    if names[0] == "propagated":
        return _instead(before, after, at, names)
    old, new = phrase(before), phrase(after)
    why = _WHY.get(f"{_kinds(before)} > {_kinds(after)}", "") or _type_change(before, after)
    if not why and len(after) == 1 and not _as_much(after[0], before):
        why = "what else it communicates is unknown"
    remade = "It runs asynchronously. " * _begins(before, after) + _remade(after)
    return (
        f"{old[0].upper()}{old[1:]}{at} became {new}{': ' + why if why else ''}. {remade}".rstrip()
    )


def _kinds(collectives: Sequence[Collective]) -> str:
    return ", ".join(dict.fromkeys(c.kind for c in collectives))


def _type_change(before: Sequence[Collective], after: Sequence[Collective]) -> str:
    old, new = ({c.shape.lstrip("(").partition("[")[0] for c in s} for s in (before, after))
    if _kinds(before) != _kinds(after) or len(old) != 1 or len(new) != 1 or old == new:
        return ""
    if sum(map(_amount, before)) != sum(map(_amount, after)):
        return ""
    return f"it sends {new.pop()} instead of {old.pop()}" if all((*old, *new)) else ""


def _begins(before: Sequence[Collective], after: Sequence[Collective]) -> bool:
    return any(c.is_async for c in after) and not any(c.is_async for c in before)


def _remade(after: Sequence[Collective]) -> str:
    if any(c.rematerialises for c in after):
        return (
            "It is a full rematerialisation: every device makes the full array and splits it again."
        )
    return ""


CHANGES = (
    "kept",
    "combined",
    "made asynchronous",
    "hoisted",
    "split",
    "replaced",
    "regrouped",
    "removed",
    "added",
)


@dataclass(frozen=True)
class CollectiveChange:
    """What became of one collective, or of several that belong together.

    Attributes:
        kind: one of CHANGES.
        before: the collectives on the earlier stage; none where one was added.
        after: the collectives on the later stage; none where one was removed.
        words: the same in one sentence, with the reason where it is known.

    >>> c = Collective("all-reduce", ("data",), 1024, source="block.py:31")
    >>> print(CollectiveChange("kept", (c,), (c,), "Kept: an all-reduce of 1 KiB over data."))
    Kept: an all-reduce of 1 KiB over data.
    """

    kind: str
    before: tuple[Collective, ...]
    after: tuple[Collective, ...]
    words: str

    @property
    def bytes_per_device(self) -> int:
        """The bytes of the larger side, each loop counted as often as it runs."""
        return max(total_bytes(self.before), total_bytes(self.after))

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """The collectives of two stages, matched.

    Attributes:
        before: the name of the earlier stage.
        after: the name of the later stage.
        changes: every collective of both sides in exactly one CollectiveChange.
        notes: what else changed, in sentences.

    >>> c = Collective("all-reduce", ("data",), 1024)
    >>> found = compare([c, c], [c])
    >>> found.short, found.same, len(found)
    ('1 kept, 1 removed', False, 2)
    """

    before: str
    after: str
    changes: tuple[CollectiveChange, ...]
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether every collective of the one side is on the other, and no more than these."""
        return all(c.kind == "kept" for c in self.changes)

    @property
    def counts(self) -> dict[str, int]:
        """How many changes there are of each kind, in the order of CHANGES."""
        found = Counter(c.kind for c in self.changes)
        return {kind: found[kind] for kind in CHANGES if found[kind]}

    @property
    def short(self) -> str:
        """The changes in a few words: `2 kept, 3 combined into 1, 1 added`."""
        if not self.changes:
            return "no collectives"
        if self.same and self.before == "propagated":
            return "as planned"
        return ", ".join(map(self._counted, self.counts))

    @property
    def lines(self) -> tuple[str, ...]:
        """The comparison, one sentence a line; those that changed come first."""
        changed = sorted(self.changes, key=lambda c: (c.kind == "kept", -c.bytes_per_device))
        head = f"From {self.before} to {self.after}: {self.short}."
        return (head, *self.notes, *(c.words for c in changed))

    def of(self, kind: str) -> tuple[CollectiveChange, ...]:
        """The changes of one kind.

        Raises:
            ProgramError: if there is no such kind.
        """
        if kind not in CHANGES:
            raise ProgramError(f"{shown(kind)} is no kind of change.{suggestion(kind, CHANGES)}")
        return tuple(c for c in self.changes if c.kind == kind)

    def _counted(self, kind: str) -> str:
        some = self.of(kind)
        many, new = sum(len(c.before) for c in some), sum(len(c.after) for c in some)
        if kind in ("combined", "split", "replaced", "regrouped"):
            word = "replaced by" if kind == "replaced" else f"{kind} into"
            return f"{many} {word} {new}"
        return f"{len(some)} {kind}"

    def __len__(self) -> int:
        return len(self.changes)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        return f"Comparison({self.before} → {self.after}: {self.short})"


def compare(
    before: Sequence[Collective],
    after: Sequence[Collective],
    names: Sequence[str] = ("partitioned", "compiled"),
) -> Comparison:
    """What became of every collective from one stage to another.

    Args:
        before, after: the collectives of each stage, in the order of the program.
        names: the names of the two stages; the sentences speak of them.

    Raises:
        ProgramError: if what was given is no collectives, or no two names.

    >>> small = Collective("all-reduce", ("data",), 1024, shape="f32[256]")
    >>> large = Collective("all-reduce", ("data",), 2048, shape="(f32[256], f32[256])")
    >>> print(compare([small, small], [large]).changes[0])
    2 all-reduces over data were combined into one of 2 KiB: one large message takes less time ...
    """
    old, new = _collectives(before), _collectives(after)
    pair = tuple(names) if not isinstance(names, str) else ()
    if len(pair) != 2 or not all(isinstance(n, str) and n for n in pair):
        raise ProgramError(f"A comparison has two names, one a stage; got {shown(names)}.")
    found = match(old, new, planned=pair[0] == "propagated")
    kept = [old[i] for m in found if m.after for i in m.before]
    changes = (_change(m, old, new, kept, (pair[0], pair[1])) for m in found)
    return Comparison(pair[0], pair[1], tuple(changes))


def inherited(before: Sequence[Collective], after: Sequence[Collective]) -> tuple[Collective, ...]:
    """The collectives of a later stage, with what is known only of the earlier one.

    Whether a gather rematerialises can be seen in the partitioner's text, and in the final one not
    always. What a collective became inherits its operand and its cause, the value of the plan that
    it is for, and its operation and source line where the compiler lost them. Of a combined one
    each member inherits from the collective that it was.

    Args:
        before, after: the collectives of two stages, such as `partitioned` and `compiled`.

    >>> gather = Collective("all-gather", ("data",), 1024, rematerialises=True)
    >>> inherited([gather], [Collective("all-gather", ("data",), 1024)])[0].rematerialises
    True
    """
    result = list(after)
    for found in match(before, after):
        for j in found.after:
            old = [before[i] for i in found.before]
            if found.kind != "split":  # every step of what was split is for the same
                old = [c for c in old if c.kind == after[j].kind]
            result[j] = _with(after[j], old, found.kind)
    return tuple(result)


def _with(new: Collective, old: Sequence[Collective], kind: str) -> Collective:
    if kind == "regrouped":
        return new  # which of the old ones it was is not known
    members: tuple[Member, ...] = ()
    if new.members:
        members = _explained(new.members, old)
    elif kind == "combined" and len(old) > 1 and new.operand == UNKNOWN:
        members = _found_by_size(new, old)
    if members:
        new = _with_members(new, members)
    elif len(old) == 1 and _is_certain(new, old[0]) and _is_all(new, old[0], kind):
        first = old[0]
        new = replace(new, operand=first.operand, cause=first.cause, members=first.members)
    remade = [c for c in old if c.rematerialises]
    if remade and not new.rematerialises:
        new = replace(new, rematerialises=True, cause=remade[0].cause or new.cause)
    values = {c.value for c in old if c.value and _same_place(c, new)}
    located = [c for c in old if c.source] if not new.source else []
    if located:
        op = new.op if "/" in new.op else located[0].op
        new = replace(new, op=op, source=located[0].source, stack=located[0].stack)
    return replace(new, value=new.value or (values.pop() if len(values) == 1 else ""))


def _same_place(one: Collective | Member, other: Collective | Member) -> bool:
    """Whether two come from one operation and line, as far as both are known."""
    ops = one.op == other.op or not (one.op and other.op)
    return ops and (one.source == other.source or not (one.source and other.source))


def _is_certain(new: Collective | Member, old: Collective) -> bool:
    """Whether one surely is what another became, so that they have one operand."""
    if not old.operand or old.operand == UNKNOWN:
        return False
    if new.operand in ("", UNKNOWN):
        return _same_place(new, old)
    arguments = {c.operand for c in (new, old) if "argument " in c.operand}
    return new.operand == old.operand or (_same_place(new, old) and len(arguments) < 2)


def _explained(members: Sequence[Member], old: Sequence[Collective]) -> tuple[Member, ...]:
    """The members of a combined collective, with the places and causes of what they were."""
    free, result = list(old), []
    for member in members:
        fits = [c for c in free if _amount(c) == _amount(member)]
        sure = [c for c in fits if c.operand == member.operand and _same_place(c, member)]
        sure = sure or [c for c in fits if _is_certain(member, c)]
        if len({(c.op, c.source, c.operand) for c in sure}) == 1:
            free.remove(sure[0])
            member = replace(
                _as_member(sure[0]), bytes_per_device=member.bytes_per_device, shape=member.shape
            )
        result.append(member)
    return tuple(result)


def _found_by_size(new: Collective, old: Sequence[Collective]) -> tuple[Member, ...]:
    """The members of a packed collective whose text names none; `()` where no sizes sum up to it.

    Of sums over one axis after the other each array is a member once, and so it is of sums that are
    added up. What was in a loop may be there for all iterations.
    """
    choices = [list(old)]
    choices += [[c for c in old if axis in c.mesh_axes] for axis in new.mesh_axes]
    choices.append(list({c.added_in or n: c for n, c in enumerate(old)}.values()))
    for some in choices:
        once = [_amount(c) for c in some]
        for sizes in (once, [n * c.execution_count for n, c in zip(once, some, strict=True)]):
            if sum(sizes) == _amount(new) > 0:
                return tuple(
                    replace(
                        _as_member(c),
                        bytes_per_device=new.bytes_per_device * size // sum(sizes),
                        shape=c.shape if size == _amount(c) else "",
                    )
                    for c, size in zip(some, sizes, strict=True)
                )
    return ()


def _with_members(new: Collective, members: Sequence[Member]) -> Collective:
    first = max(members, key=lambda m: m.bytes_per_device)
    return replace(
        new,
        op=first.op,
        source=first.source,
        stack=first.stack,
        operand=first.operand,
        cause=first.cause,
        members=tuple(sorted(members, key=lambda m: -m.bytes_per_device)),
    )


def _amount(one: Collective | Member) -> int:
    """How many numbers it is about, since a compiler may send them in another type."""
    return elements(one) or one.bytes_per_device


def _is_all(new: Collective, old: Collective, kind: str) -> bool:
    """Whether one is about nothing but what the other was about, over the same axes."""
    return new.mesh_axes == old.mesh_axes and (kind != "replaced" or _as_much(new, [old]))


def _as_much(new: Collective, old: Sequence[Collective]) -> bool:
    return _amount(new) <= sum(map(_amount, old))


def _as_member(c: Collective) -> Member:
    return Member(c.op, c.source, c.bytes_per_device, c.shape, c.operand, c.stack, c.cause)


def _collectives(given: Any) -> tuple[Collective, ...]:
    values = tuple(given) if isinstance(given, Iterable) else (given,)
    wrong = [v for v in values if not isinstance(v, Collective)]
    if wrong:
        raise ProgramError(
            f"compare takes the collectives of two stages; got {shown(wrong[0])}. Give"
            " report.partitioned and report.collectives, or plan.collectives."
        )
    return values


def _change(
    found: Match,
    before: Sequence[Collective],
    after: Sequence[Collective],
    kept: Sequence[Collective],
    names: tuple[str, str],
) -> CollectiveChange:
    old = tuple(before[i] for i in found.before)
    new = tuple(after[j] for j in found.after)
    duplicate = found.kind == "removed" and any(same_work(old[0], c) for c in kept)
    return CollectiveChange(found.kind, old, new, sentence(found.kind, old, new, names, duplicate))


def total_bytes(collectives: Iterable[Collective]) -> int:
    """The bytes of collectives on each device, each loop counted as often as it runs.

    A loop of unknown length counts once.

    >>> total_bytes([Collective("all-reduce", ("data",), 1024, in_loop=True, trips=12)])
    12288
    """
    return sum(c.bytes_in_all for c in collectives)
