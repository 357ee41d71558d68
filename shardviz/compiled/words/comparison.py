"""Sentences for a program's stages, and for the changes of its collectives."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.base.collective import Collective
from shardviz.base.collective_matching import amount
from shardviz.base.format import (
    by_count,
    bytes_text,
    clause,
    joined,
    plural,
    seconds_text,
    with_article,
)
from shardviz.compiled.comparison import CollectiveChange, Comparison
from shardviz.compiled.stages import Stage, Stages
from shardviz.plans.plan import Plan
from shardviz.programs.program import Program

# Stage -> the compiler pass that adds its collectives.
_MAKERS = {
    "propagated": "Shardy",
    "partitioned": "the partitioner",
    "compiled": "the compiler",
}
# Kinds before and after -> why the compiler may replace one with the other.
_WHY = {
    "all-reduce > reduce-scatter": "each device keeps only its part of the sum",
    "all-gather > collective-permute": "each part is used while the next one is sent",
    "all-gather > all-to-all": "only the parts that change hands are sent",
    "all-gather > all-reduce": "the devices' parts are padded with zeros and summed",
    "all-reduce > all-gather": "the parts are gathered first and summed on every device",
    "all-reduce > reduce-scatter, all-gather": "a sum in two steps, with work in between",
    "reduce-scatter > all-reduce": "every device gets the whole sum and keeps its part",
    "all-to-all > all-gather": "every device gets all parts, and keeps what it needs",
    "all-to-all > collective-permute": "the parts are sent one after another",
}
_REMADE = (
    " It is a full rematerialisation: every device makes the full array and keeps only its"
    " shard."
)


def phrase(collectives: Sequence[Collective]) -> str:
    """Describes collectives in a phrase, grouped by kind and mesh axes.

    >>> c = Collective("all-reduce", ("data",), 1024, group_size=2)
    >>> phrase([c])
    'an all-reduce that sends 1 KiB over data'
    >>> phrase([c, c])
    '2 all-reduces that send 2 KiB in total over data'
    """
    alike: dict[tuple[str, tuple[str, ...]], list[Collective]] = {}
    for c in collectives:
        alike.setdefault((c.kind, c.mesh_axes), []).append(c)
    return joined(map(_counted, alike.values()))


def _counted(alike: Sequence[Collective]) -> str:
    first = alike[0]
    loops = {_loop(c) for c in alike}
    # If the loops differ, none of them is named.
    loop = loops.pop() if len(loops) == 1 else ""
    place = f"{clause(' over {}', joined(first.axes_in_words))}{loop}"
    if len(alike) > 1:
        return f"{len(alike)} {first.kind}s {_sends(alike)} in total{place}"
    return f"{with_article(first.kind)} {_sends(alike)}{place}"


def _sends(alike: Sequence[Collective]) -> str:
    """Describes the bytes of one execution: `that sends 1 KiB`."""
    sent = [c.sent_bytes for c in alike]
    if None in sent:
        return f"with a result of {bytes_text(sum(c.bytes_per_device for c in alike))}"
    verb = by_count(len(alike), "sends", "send")
    return f"that {verb} {bytes_text(sum(filter(None, sent)))}"


def _loop(c: Collective) -> str:
    if not c.in_loop:
        return ""
    return " in a loop" + clause(", {} times", c.trips)


def _at(change: CollectiveChange) -> str:
    """Returns the source line, like ` (block.py:31)`, or the first two of several."""
    # XLA often drops source lines, so we prefer those of the earlier stage.
    for side in (change.before, change.after):
        lines = list(dict.fromkeys(c.source for c in side if c.source))
        if len(lines) > 2:
            return f" ({', '.join(lines[:2])} …)"
        if lines:
            return f" ({', '.join(lines)})"
    return ""


def collective_change(change: CollectiveChange) -> str:
    """Describes how collectives changed, and why if that is known."""
    before, after = change.before, change.after
    first, last = change.stages
    subject = phrase(before or after) + _at(change)
    capital = subject[:1].upper() + subject[1:]
    if change.equal_values:
        equal = joined(change.equal_values)
        return f"Gone: {subject}; {equal} are equal, so XLA computes only one of them."
    if change.kind == "removed":
        pronoun = by_count(len(before), "it", "them")
        return f"Gone: {subject}; {_MAKERS[last]} does not need {pronoun}."
    remade = ""
    if any(c.rematerialises for c in after):
        remade = _REMADE
    if change.kind == "added":
        # The cause explains a rematerialisation better than the fixed sentence
        # `_REMADE`.
        cause = clause(" {}", str(after[0].cause).rstrip())
        return f"New: {subject}.{cause or remade}"
    if change.kind == "kept":
        # The propagated stage is only a plan, so there is nothing to keep.
        lead = "As planned" if first == "propagated" else "Kept"
        return f"{lead}: {subject}.{remade}"
    if first == "propagated" and change.kind != "made asynchronous":
        actual = f"{_MAKERS[last]} made {phrase(after)} instead"
        return f"Shardy planned {subject} here; {actual}.{remade}"
    starts = ""
    if change.becomes_async:
        starts = " It runs asynchronously."
    if change.kind == "made asynchronous":
        words = f"Made asynchronous: {subject}"
    elif change.kind == "hoisted":
        moved, trips = phrase(after) + _at(change), before[0].trips
        if trips is None:
            # For example, XLA unrolls the loops that its own partitioner made.
            words = (
                f"No longer in a loop: {moved}. XLA moved it out of the loop, or unrolled"
                " the loop"
            )
        else:
            words = f"Moved out of its loop: {moved} runs once instead of {trips} times"
    elif change.kind == "combined":
        words = _combined(change)
        if any(c.in_loop for c in before) and not after[0].in_loop:
            starts = f" It is no longer in a loop.{starts}"
    else:
        words = f"{capital} became {phrase(after)}"
    return f"{words}{clause(': {}', _why(change))}.{starts}{remade}"


def _combined(change: CollectiveChange) -> str:
    before, combined = change.before, change.after[0]
    several, into = phrase(before), phrase(change.after)
    # If all kinds and axes are equal, they are named once.
    if len({(c.kind, c.mesh_axes) for c in (*before, combined)}) == 1:
        over = clause(" over {}", joined(combined.axes_in_words))
        several = f"{len(before)} {combined.kind}s{over}"
        into = f"one {_sends(change.after)}"
    several = several[:1].upper() + several[1:]
    return f"{several} were combined into {into}{_at(change)}"


def _why(change: CollectiveChange) -> str:
    """Explains why collectives changed; `""` if that is unknown."""
    before, after = change.before, change.after
    old = ", ".join(dict.fromkeys(c.kind for c in before))
    new = ", ".join(dict.fromkeys(c.kind for c in after))
    if change.kind in ("made asynchronous", "hoisted"):
        return ""
    if change.kind == "split" and any(c.between_slices for c in after):
        return "the transfer between slices is a separate step"
    if old != new:
        return _WHY.get(f"{old} > {new}", "")
    if change.kind == "combined":
        return _why_combined(before, after)
    sent, sends = _dtype(before), _dtype(after)
    # If the numbers of elements differ, more than the dtype has changed.
    same_amount = sum(map(amount, before)) == sum(map(amount, after))
    if same_amount and sent and sends and sent != sends:
        return f"it sends {sends} instead of {sent}"
    if len(before) > 1 and len(after) > 1:
        return "which of them became which is unknown"
    return ""


def _why_combined(before: Sequence[Collective], after: Sequence[Collective]) -> str:
    """Explains why collectives were combined, judged by the elements they send."""
    sums: dict[str | int, Collective] = {}
    for number, c in enumerate(before):
        sums[c.added_in or number] = c
    sent = sum(map(amount, after))
    if len(sums) < len(before) and sent == sum(map(amount, sums.values())):
        return "the program adds their results, so XLA adds first and communicates once"
    in_all = sum(amount(c) * c.execution_count for c in before)
    if sent in (sum(map(amount, before)), in_all):
        return f"one large message takes less time than {len(before)} small ones"
    return ""


def _dtype(collectives: Sequence[Collective]) -> str:
    """Returns the dtype that collectives send; `""` if there are several."""
    dtypes = {c.dtype for c in collectives}
    return dtypes.pop() if len(dtypes) == 1 else ""


def comparison(value: Comparison) -> str:
    """Lists the changes, one sentence per line; unchanged collectives come last."""
    head = f"From {value.before} to {value.after}: {value.short}."
    return "\n".join((head, *map(str, value.ordered)))


_NOT_YET = {
    "propagated": "Not planned yet.",
    "partitioned": "Not partitioned yet.",
    "compiled": "Not compiled yet.",
}


def stage(fact: Stage) -> str:
    """Describes the state of a stage.

    >>> stage(Stage("compiled", "not yet"))
    'Not compiled yet.'
    """
    about = fact.about
    if fact.state == "failed":
        return str(about)
    if fact.state == "not yet":
        return _NOT_YET[fact.name]
    if fact.state == "nothing left":
        return "XLA's dump has no module from its partitioner."
    if isinstance(about, Program):
        return f"{plural(len(about.arrays), 'array')} on {about.mesh}."
    if isinstance(about, Plan):
        values = plural(len(about.ops), "value")
        return f"{values}; the collectives are an estimate by Shardy."
    if fact.name == "partitioned":
        return f"The program after XLA's partitioner, for {about}."
    return f"The compiled program, for {about}."


def stages(value: Stages) -> str:
    """Describes each stage in one line, with the changes between stages."""
    lines: list[str] = []
    last: Stage | None = None
    for next_stage in value.all:
        # Stages that failed or are missing cannot be compared.
        reached = next_stage.without_error
        if last is not None and None not in (last.collectives, reached.collectives):
            lines.append(f"  {value.between(last.name, next_stage.name).short}")
        time = ""
        if reached.seconds is not None:
            time = f" in {seconds_text(reached.seconds)}"
        lines.append(f"{next_stage.name}{time}: {next_stage.sum or next_stage}")
        last = reached
    return "\n".join(lines)


SENTENCES = {CollectiveChange: collective_change, Stage: stage}
EXPLANATIONS = {Comparison: comparison, Stages: stages}
