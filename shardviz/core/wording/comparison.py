"""The stages of a program, and what became of the collectives of one in the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from shardviz.core.format import bytes_text, clause, joined, plural
from shardviz.core.program.comparison import CollectiveChange, Comparison
from shardviz.core.program.inherited import amount, is_as_much
from shardviz.core.program.report import Collective
from shardviz.core.program.stages import Stage, Stages

# Who makes the collectives of a stage.
_MAKES = {
    "propagated": "Shardy planned",
    "partitioned": "the partitioner made",
    "compiled": "the compiler made",
}
_DOES_WITHOUT = {
    "partitioned": "the partitioner does without it",
    "compiled": "the compiler does without it",
}
_ASYNC = " It runs asynchronously."
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
    loop = _loop(first)
    # Of several loops none is named: it would be wrong for the others.
    if any(_loop(c) != loop for c in alike):
        loop = ""
    if len(alike) == 1:
        article = "a"
        if first.kind[0] in "aeio":
            article = "an"
        return f"{article} {first.kind} of {size}{_over(first.mesh_axes)}{loop}"
    kinds = f"{len(alike)} {first.kind}s"
    return f"{kinds} of {size} in all{_over(first.mesh_axes)}{loop}"


def _over(axes: tuple[str, ...]) -> str:
    return clause(" over {}", joined(axes))


def _loop(c: Collective) -> str:
    if not c.in_loop:
        return ""
    if c.trips is None:
        return " in a loop"
    return f" in a loop, {c.trips} times"


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


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def collective_change(change: CollectiveChange) -> str:
    """What became of collectives, and why where that is known."""
    at, kind = _at(change), change.kind
    what = phrase(change.before or change.after) + at
    remade = _remade(change.after)
    if kind == "kept":
        # The first stage has a plan only, of which nothing can be kept.
        if change.stages[0] == "propagated":
            return f"As planned: {what}.{remade}"
        return f"Kept: {what}.{remade}"
    if kind == "made asynchronous":
        return (
            f"Made asynchronous: {what} is started early and waited for later, so that"
            f" other work can run meanwhile.{remade}"
        )
    if kind == "removed":
        why = "an equal one does its work too"
        if not change.is_repeated:
            stage = change.stages[1]
            why = _DOES_WITHOUT.get(stage, f"{stage} has none")
        return f"Gone: {what}; {why}."
    if kind == "added":
        # A cause explains a rematerialisation better than the remark on it.
        cause = clause(" {}", str(change.after[0].cause).rstrip())
        return f"New: {what}.{cause or remade}"
    if kind == "combined":
        return _combined(change)
    if kind == "hoisted":
        return _hoisted(change)
    if kind == "split":
        return _split(change, what)
    if change.stages[0] == "propagated":
        return _instead(change)
    if kind == "regrouped":
        words = f"{_capital(what)} became {phrase(change.after)}"
        return f"{words}; which became which is unknown.{_async(change)}"
    return _replaced(change, what)


def _combined(change: CollectiveChange) -> str:
    before, after = change.before, change.after
    combined = after[0]
    one_kind = len({(c.kind, c.mesh_axes) for c in (*before, *after)}) == 1
    what = phrase(before)
    if one_kind:
        what = f"{len(before)} {combined.kind}s{_over(combined.mesh_axes)}"
    into = f"one of {bytes_text(combined.bytes_per_device)}"
    if _kinds(before) != _kinds(after):
        into = phrase(after)
    elif not one_kind:
        into += _over(combined.mesh_axes)
    why = _WHY.get(f"{_kinds(before)} > {_kinds(after)}", "")
    if _adds_first(before):
        why = (
            "what the program adds up afterwards is added up first, and communicated"
            " once"
        )
    elif one_kind:
        why = f"one large message takes less time than {len(before)} small ones"
    words = f"{_capital(what)} were combined into {into}{_at(change)}"
    words += clause(": {}", why) + "."
    if any(c.in_loop for c in before) and not any(c.in_loop for c in after):
        words += " It was also moved out of its loop."
    return words + _async(change)


def _async(change: CollectiveChange) -> str:
    if change.becomes_async:
        return _ASYNC
    return ""


def _adds_first(before: Sequence[Collective]) -> bool:
    """Whether some were sums that are added up, of which there is one for all."""
    counts = Counter((c.added_in, c.shape) for c in before if c.added_in)
    return any(count > 1 for count in counts.values())


def _instead(change: CollectiveChange) -> str:
    """What was planned, and what was made of it."""
    stage = change.stages[1]
    planned = f"{_MAKES[change.stages[0]]} {phrase(change.before)}"
    made = f"{_MAKES.get(stage, f'{stage} has')} {phrase(change.after)}"
    remade = _remade(change.after)
    return f"{planned} here{_at(change)}; {made} instead.{remade}"


def _hoisted(change: CollectiveChange) -> str:
    trips = change.before[0].trips
    often = "each iteration"
    if trips is not None:
        often = f"{trips} times"
    what = phrase(change.after) + _at(change)
    return (
        f"Moved out of its loop: {what} runs once instead of {often}.{_async(change)}"
    )


def _split(change: CollectiveChange, what: str) -> str:
    (before,), after = change.before, change.after
    # XLA sends within a slice and between slices separately.
    if any(c.between_slices for c in after):
        return (
            f"Split: {what} became {phrase(after)}: what goes from slice to slice is a"
            " step of its own."
        )
    same = {(c.mesh_axes, c.bytes_per_device) for c in after}
    if same == {(before.mesh_axes, before.bytes_per_device)}:
        return f"Unrolled: {what} is there {len(after)} times, since its loop was unrolled."
    return f"Split: {what} became {phrase(after)}."


def _replaced(change: CollectiveChange, what: str) -> str:
    before, after = change.before, change.after
    why = _WHY.get(f"{_kinds(before)} > {_kinds(after)}", "")
    why = why or _type_change(before, after)
    if not why and len(after) == 1 and not is_as_much(after[0], before):
        why = "what else it communicates is unknown"
    words = f"{_capital(what)} became {phrase(after)}{clause(': {}', why)}."
    return words + _async(change) + _remade(after)


def _kinds(collectives: Sequence[Collective]) -> str:
    return ", ".join(dict.fromkeys(c.kind for c in collectives))


def _type_change(before: Sequence[Collective], after: Sequence[Collective]) -> str:
    """Why one became another that sends the same numbers in another type."""
    old, new = _dtype(before), _dtype(after)
    if _kinds(before) != _kinds(after) or not old or not new or old == new:
        return ""
    # Other numbers of elements say that more than the type has changed.
    if sum(map(amount, before)) != sum(map(amount, after)):
        return ""
    return f"it sends {new} instead of {old}"


def _dtype(collectives: Sequence[Collective]) -> str:
    """The type of what they send, or `""` where they send several types."""
    # Shapes are written as in `f32[8,4]`, or in brackets where there are several.
    dtypes = {c.shape.lstrip("(").partition("[")[0] for c in collectives}
    if len(dtypes) != 1:
        return ""
    return dtypes.pop()


def _remade(after: Sequence[Collective]) -> str:
    if not any(c.rematerialises for c in after):
        return ""
    return (
        " It is a full rematerialisation: every device makes the full array and splits"
        " it again."
    )


def comparison(value: Comparison) -> str:
    """The comparison, one sentence a line; those that changed come first."""
    return "\n".join((head(value), *notes(value), *map(str, value.ordered)))


def head(value: Comparison) -> str:
    """The two stages, and the changes in a few words."""
    return f"From {value.before} to {value.after}: {value.short}."


def notes(value: Comparison) -> list[str]:
    """How far the axes went from the arguments, where that is part of it."""
    if value.spread is None:
        return []
    split, made = value.spread
    return [
        f"{split:,} of {plural(made, 'value')} that the program makes got axes:"
        " plan.why(value) says where each came from."
    ]


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


def lines(value: Stages) -> list[str]:
    """Each stage in one line, and between two neighbours what changed."""
    result: list[str] = []
    last: Stage | None = None
    for one in value.all:
        # A stage that failed or is yet to come cannot be compared.
        known = last is not None and last.collectives is not None
        if last is not None and known and one.collectives is not None:
            result.append(f"  {value.between(last.name, one.name).short}")
        result.append(_line(one))
        last = one
    return result


def _line(one: Stage) -> str:
    time = ""
    if one.seconds is not None:
        time = f" in {one.seconds:.3g} s"
        if one.seconds < 1:
            time = f" in {one.seconds * 1e3:.3g} ms"
    return f"{one.name}{time}: {one.sum or one}"


def stages(value: Stages) -> str:
    """The four stages, one line each."""
    return "\n".join(lines(value))


SENTENCES = {CollectiveChange: collective_change, Stage: stage}
EXPLANATIONS = {Comparison: comparison, Stages: stages}
