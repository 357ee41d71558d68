"""The stages of a program, and what became of the collectives of one in the next."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.base.collective import Collective
from shardviz.base.format import (
    bytes_text,
    clause,
    joined,
    plural,
    seconds_text,
    with_article,
)
from shardviz.compiled.comparison import CollectiveChange, Comparison
from shardviz.compiled.inherited import amount
from shardviz.compiled.stages import Stage, Stages

# Who makes the collectives of a stage.
_MAKERS = {
    "propagated": "Shardy",
    "partitioned": "the partitioner",
    "compiled": "the compiler",
}
# Kinds before and after, to the reason why the one may stand for the other.
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
_REMADE = (
    " It is a full rematerialisation: every device makes the full array and splits it"
    " again."
)


def phrase(collectives: Sequence[Collective]) -> str:
    """Collectives as a phrase; equal ones are counted.

    >>> c = Collective("all-reduce", ("data",), 1024)
    >>> phrase([c]), phrase([c, c])
    ('an all-reduce of 1 KiB over data', '2 all-reduces of 2 KiB in all over data')
    """
    alike: dict[tuple[str, tuple[str, ...]], list[Collective]] = {}
    for c in collectives:
        alike.setdefault((c.kind, c.mesh_axes), []).append(c)
    return joined(map(_counted, alike.values()))


def _counted(alike: Sequence[Collective]) -> str:
    first = alike[0]
    size = bytes_text(sum(c.bytes_per_device for c in alike))
    loops = {_loop(c) for c in alike}
    # Of several loops none is named: it would be wrong for the others.
    loop = loops.pop() if len(loops) == 1 else ""
    rest = f"{clause(' over {}', joined(first.axes_in_words))}{loop}"
    if len(alike) > 1:
        return f"{len(alike)} {first.kind}s of {size} in all{rest}"
    return f"{with_article(first.kind)} of {size}{rest}"


def _loop(c: Collective) -> str:
    if not c.in_loop:
        return ""
    return " in a loop" + clause(", {} times", c.trips)


def _at(change: CollectiveChange) -> str:
    """` (block.py:31)`, or the two first of several lines."""
    # XLA often drops the lines of what it makes: those before are better.
    for side in (change.before, change.after):
        lines = list(dict.fromkeys(c.source for c in side if c.source))
        if len(lines) > 2:
            return f" ({', '.join(lines[:2])} …)"
        if lines:
            return f" ({', '.join(lines)})"
    return ""


def collective_change(change: CollectiveChange) -> str:
    """What became of collectives, and why where that is known."""
    before, after = change.before, change.after
    first, last = change.stages
    what = phrase(before or after) + _at(change)
    capital = what[:1].upper() + what[1:]
    if change.kind == "removed":
        return f"Gone: {what}; {_MAKERS[last]} does without it."
    remade = ""
    if any(c.rematerialises for c in after):
        remade = _REMADE
    if change.kind == "added":
        # A cause explains a rematerialisation better than the remark on it.
        cause = clause(" {}", str(after[0].cause).rstrip())
        return f"New: {what}.{cause or remade}"
    if change.kind == "kept":
        # The first stage has a plan only, of which nothing can be kept.
        lead = "As planned" if first == "propagated" else "Kept"
        return f"{lead}: {what}.{remade}"
    if first == "propagated" and change.kind != "made asynchronous":
        made = f"{_MAKERS[last]} made {phrase(after)} instead"
        return f"Shardy planned {what} here; {made}.{remade}"
    starts = ""
    if change.becomes_async:
        starts = " It runs asynchronously."
    if change.kind == "made asynchronous":
        words = f"Made asynchronous: {what}"
    elif change.kind == "hoisted":
        often = "each iteration"
        if before[0].trips is not None:
            often = f"{before[0].trips} times"
        moved = phrase(after) + _at(change)
        words = f"Moved out of its loop: {moved} runs once instead of {often}"
    elif change.kind == "combined":
        words = _combined(change)
        if any(c.in_loop for c in before) and not after[0].in_loop:
            starts = f" It was also moved out of its loop.{starts}"
    else:
        words = f"{capital} became {phrase(after)}"
    return f"{words}{clause(': {}', _why(change))}.{starts}{remade}"


def _combined(change: CollectiveChange) -> str:
    before, one = change.before, change.after[0]
    several, into = phrase(before), phrase(change.after)
    # Kind and axes are said once where they are the same.
    if len({(c.kind, c.mesh_axes) for c in (*before, one)}) == 1:
        over = clause(" over {}", joined(one.axes_in_words))
        several = f"{len(before)} {one.kind}s{over}"
        into = f"one of {bytes_text(one.bytes_per_device)}"
    several = several[:1].upper() + several[1:]
    return f"{several} were combined into {into}{_at(change)}"


def _why(change: CollectiveChange) -> str:
    """Why some became others; `""` where that is not known."""
    before, after = change.before, change.after
    old = ", ".join(dict.fromkeys(c.kind for c in before))
    new = ", ".join(dict.fromkeys(c.kind for c in after))
    if change.kind in ("made asynchronous", "hoisted"):
        return ""
    if change.kind == "split" and any(c.between_slices for c in after):
        return "what goes from slice to slice is a step of its own"
    if old != new:
        return _WHY.get(f"{old} > {new}", "")
    if change.kind == "combined":
        return _why_combined(before, after)
    sent, sends = _dtype(before), _dtype(after)
    # Other numbers of elements say that more than the type has changed.
    alike = sum(map(amount, before)) == sum(map(amount, after))
    if alike and sent and sends and sent != sends:
        return f"it sends {sends} instead of {sent}"
    if len(before) > 1 and len(after) > 1:
        return "which became which is unknown"
    return ""


def _why_combined(before: Sequence[Collective], after: Sequence[Collective]) -> str:
    """Why several became one, judged by the numbers that each sends."""
    sums: dict[str | int, Collective] = {}
    for number, c in enumerate(before):
        sums[c.added_in or number] = c
    sent = sum(map(amount, after))
    if len(sums) < len(before) and sent == sum(map(amount, sums.values())):
        return "what the program adds up is added up first, and communicated once"
    in_all = sum(amount(c) * c.execution_count for c in before)
    if sent in (sum(map(amount, before)), in_all):
        return f"one large message takes less time than {len(before)} small ones"
    return ""


def _dtype(collectives: Sequence[Collective]) -> str:
    """The type of what they send, or `""` if they send several types."""
    dtypes = {c.dtype for c in collectives}
    return dtypes.pop() if len(dtypes) == 1 else ""


def comparison(value: Comparison) -> str:
    """The comparison, one sentence a line; those that changed come first."""
    head = f"From {value.before} to {value.after}: {value.short}."
    return "\n".join((head, *map(str, value.ordered)))


_NOT_YET = {
    "propagated": "Not planned yet.",
    "partitioned": "Not asked yet.",
    "compiled": "Not compiled yet.",
}


def stage(fact: Stage) -> str:
    """How far a stage has come.

    >>> stage(Stage("compiled", "not yet"))
    'Not compiled yet.'
    """
    about = fact.about
    if fact.state == "failed":
        return str(about)
    if fact.state == "not yet":
        return _NOT_YET[fact.name]
    if fact.state == "nothing left":
        return "XLA left no module of its partitioner."
    if fact.name == "requested":
        return f"{plural(len(about.arrays), 'array')} on {about.mesh}."
    if fact.name == "propagated":
        values = plural(len(about.ops), "value")
        return f"{values}; the collectives are Shardy's plan, an estimate."
    if fact.name == "partitioned":
        return f"What XLA's partitioner put in, for {about}."
    return f"What runs on {about}."


def stages(value: Stages) -> str:
    """Each stage in one line, and between two neighbours what changed."""
    lines: list[str] = []
    last: Stage | None = None
    for one in value.all:
        # A stage that failed or is yet to come cannot be compared.
        known = last is not None and last.collectives is not None
        if last is not None and known and one.collectives is not None:
            lines.append(f"  {value.between(last.name, one.name).short}")
        time = ""
        if one.seconds is not None:
            time = f" in {seconds_text(one.seconds)}"
        lines.append(f"{one.name}{time}: {one.sum or one}")
        last = one
    return "\n".join(lines)


SENTENCES = {CollectiveChange: collective_change, Stage: stage}
EXPLANATIONS = {Comparison: comparison, Stages: stages}
