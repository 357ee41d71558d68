"""What the Explorer's list of problems says, one sentence for each."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.axis_rules.rule_uses import RuleUse
from shardviz.axis_rules.words.rule_uses import few
from shardviz.base.format import by_count, bytes_text, joined, listed, plural, shown
from shardviz.programs.constraints import Constraint

SHOWN = 4  # names in a list


# --- arrays ---------------------------------------------------------------------------


def dimension(array: str, name: object, dim: int) -> str:
    """A dimension of an array, by its name where it has one: `w.embed`.

    >>> dimension("w", "embed", 0), dimension("w", None, 1)
    ('w.embed', 'w.1')
    """
    return f"{array}.{dim if name is None else name}"


def no_layout(names: Sequence[str], why: str) -> str:
    """Arrays that cannot be laid out for the same reason."""
    return f"{few(names)} cannot be laid out. {why}"


def unmatched(name: str, near: str, arrays: Sequence[str], waste: int) -> str:
    """A logical name that is close to one that a rule has.

    >>> unmatched("embd", "embed", ["x", "y"], 16384)
    "No rule knows 'embd' (in x and y). Did you mean 'embed'? Now 16 KiB per device are wasted."
    """
    sentence = (
        f"No rule knows {shown(name)} (in {few(arrays)}). Did you mean {shown(near)}?"
    )
    if waste:
        sentence += f" Now {bytes_text(waste)} per device are wasted."
    return sentence


def unmatched_others(names: Sequence[str]) -> str:
    """Logical names that no rule knows, and that are close to none.

    >>> unmatched_others(["head_dim"])
    "No rule knows 'head_dim': its dimensions are kept whole."
    """
    whose = by_count(len(names), "its", "their")
    return f"No rule knows {listed(names, 'or')}: {whose} dimensions are kept whole."


def not_split_over(axes: Sequence[str], arrays: Sequence[str], waste: int) -> str:
    """Arrays that have copies, since they are not split over some axes of the mesh.

    >>> not_split_over(["data"], ["wi", "wo"], 49152)
    'wi and wo are not split over data: 48 KiB per device wasted by replication.'
    """
    verb = by_count(len(arrays), "is", "are")
    head = f"{few(arrays)} {verb} not split over {joined(axes, 'or')}"
    return f"{head}: {bytes_text(waste)} per device wasted by replication."


def no_names(arrays: Sequence[str], waste: int) -> str:
    """Arrays that have copies, since they have no names that rules are for.

    >>> no_names(["wo"], 49152)
    'wo has no logical names, so no rule splits it: 48 KiB per device. Name its dimensions.'
    """
    verb, it = by_count(len(arrays), "has", "have"), by_count(len(arrays), "it", "them")
    its = by_count(len(arrays), "its", "their")
    return (
        f"{few(arrays)} {verb} no logical names, so no rule splits {it}:"
        f" {bytes_text(waste)} per device. Name {its} dimensions."
    )


# --- rules ----------------------------------------------------------------------------


def idle(use: RuleUse) -> str:
    """A rule that never decides, and why."""
    return f"Rule {use.index + 1} ({use.rule}) {use.never}."


def idle_others(count: int) -> str:
    """How many further rules never decide."""
    return f"{plural(count, 'more rule')} never {by_count(count, 'fires', 'fire')}."


def no_array(count: int) -> str:
    """How many rules are for names that no array has.

    >>> no_array(25)
    '25 rules match no array here.'
    """
    return (
        f"{plural(count, 'rule')} {by_count(count, 'matches', 'match')} no array here."
    )


# --- the target, the plan and the report ----------------------------------------------


#: Why there is no plan, or why a compile or run ended.
STOPPED = "{}: {}"
NO_PLAN = "There is no plan"


def constraints(effect: str, calls: Sequence[Constraint]) -> str:
    """Calls in the model that constrain nothing, for the same reason."""
    count = f"{plural(len(calls), 'constraint')} in the model did nothing ({effect})"
    lines = dict.fromkeys(call.source or call.call for call in calls)
    return f"{count}: {joined(lines, limit=SHOWN)}."


def rematerialised(count: int, size: int) -> str:
    """Collectives that make an array whole on every device, to split it again.

    >>> rematerialised(1, 1 << 20)
    '1 collective makes an array whole on every device to split it again: 1 MiB per device.'
    """
    verb = by_count(count, "makes an array", "make arrays")
    them = by_count(count, "it", "them")
    head = f"{plural(count, 'collective')} {verb} whole on every device to split {them}"
    return f"{head} again: {bytes_text(size)} per device."


#: A check that failed, and the evidence.
CHECK = "The check “{}” failed: {}"
