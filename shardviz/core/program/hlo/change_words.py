"""What became of collectives from one rung to the next, in one sentence. Pure data."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.core.errors import bytes_text
from shardviz.core.program.report import Collective

# Who speaks on a rung: how its collectives came to be.
_SAYS = {
    "propagated": "Shardy planned",
    "partitioned": "the partitioner made",
    "compiled": "the compiler made",
}
_GONE = {
    "partitioned": "the partitioner does without it",
    "compiled": "the compiler found no need of it",
}
_WHY = {
    "all-reduce > reduce-scatter": "each device keeps only its part of the sum",
    "all-gather > collective-permute": "each part is used while the next one travels",
    "all-gather > all-to-all": "only the parts that change hands are sent",
    "all-gather > all-reduce": "each device adds its part to zeros",
    "all-reduce > all-gather": "the parts are gathered first and summed on every device",
    "all-reduce > reduce-scatter, all-gather": "a sum in two steps, with work in between",
    "reduce-scatter > all-reduce": "every device gets the whole sum and keeps its part",
    "all-to-all > all-gather": "every device gets all parts, and keeps what it needs",
    "all-to-all > collective-permute": "the parts are handed round one by one",
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
    return _and([_alike(kind, axes, some) for (kind, axes), some in groups.items()])


def _alike(kind: str, axes: tuple[str, ...], some: Sequence[Collective]) -> str:
    size = bytes_text(sum(c.bytes_per_device for c in some))
    if len(some) == 1:
        return (
            f"{'an' if kind[0] in 'aeio' else 'a'} {kind} of {size}{_over(axes)}{_turns(some[0])}"
        )
    return f"{len(some)} {kind}s of {size} in all{_over(axes)}"


def _over(axes: tuple[str, ...]) -> str:
    return f" over {_and(list(axes))}" if axes else ""


def _turns(c: Collective) -> str:
    if not c.in_loop:
        return ""
    return " in a loop" if c.trips is None else f" in a loop, {c.trips} times"


def _and(parts: Sequence[str]) -> str:
    return ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else "".join(parts)


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
    twin: bool = False,
) -> str:
    """What became of `before`, and why where that is known.

    Args:
        kind: a kind of `rungs.Change`.
        before, after: the collectives on each side.
        names: the names of the two rungs.
        twin: whether an equal collective is still there, for one that is gone.
    """
    what, at = phrase(before or after), _at(before) or _at(after)
    if kind in ("kept", "made asynchronous"):
        return _kept(kind, before[0], after[0], what + at, names)
    if kind == "combined":
        return _combined(before, after[0], at)
    if kind == "hoisted":
        return _hoisted(before[0], after[0], at)
    if kind == "split":
        return _split(before[0], after, what + at)
    if kind == "removed":
        gone = _GONE.get(names[1], f"{names[1]} has none")
        why = "an equal one does its work too" if twin else gone
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


def _combined(before: Sequence[Collective], after: Collective, at: str) -> str:
    one = f"were combined into one of {bytes_text(after.bytes_per_device)}"
    if all(c.mesh_axes == after.mesh_axes for c in before):
        words = (
            f"{len(before)} {after.kind}s{_over(after.mesh_axes)} {one}{at}: one large message"
            f" takes less time than {len(before)} small ones."
        )
    else:
        words = f"{phrase(before)} {one}{_over(after.mesh_axes)}{at}."
        words = words[0].upper() + words[1:]
    if any(c.in_loop for c in before) and not after.in_loop:
        words += " It was also moved out of its loop."
    return words + (" It runs asynchronously." if _begins(before, [after]) else "")


def _hoisted(before: Collective, after: Collective, at: str) -> str:
    often = "each turn" if before.trips is None else f"{before.trips} times"
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
        return f"Unrolled: {what} stands {len(after)} times, since its loop was unrolled."
    return f"Split: {what} became {phrase(after)}."


def _replaced(
    before: Sequence[Collective], after: Sequence[Collective], at: str, names: tuple[str, str]
) -> str:
    old, new = phrase(before), phrase(after)
    if names[0] in _SAYS and names[0] == "propagated":
        verb = _SAYS.get(names[1], f"{names[1]} has")
        return f"{_SAYS[names[0]]} {old} here{at}; {verb} {new} instead. {_remade(after)}".rstrip()
    why = _WHY.get(f"{_kinds(before)} > {_kinds(after)}", "") or _type_change(before, after)
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
    return f"it sends {new.pop()} instead of {old.pop()}" if all((*old, *new)) else ""


def _begins(before: Sequence[Collective], after: Sequence[Collective]) -> bool:
    return any(c.is_async for c in after) and not any(c.is_async for c in before)


def _remade(after: Sequence[Collective]) -> str:
    if any(c.rematerialises for c in after):
        return (
            "It is a full rematerialisation: every device makes the whole array and cuts it anew."
        )
    return ""
