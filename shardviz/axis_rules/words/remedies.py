"""What to change in a table or an array, what that does, and why nothing does."""

from __future__ import annotations

from collections.abc import Mapping

from shardviz.axis_rules.remedies import (
    Kind,
    NoRemedy,
    Remedies,
    Remedy,
    Step,
    Wish,
)
from shardviz.axis_rules.rules import PathRule, Rule
from shardviz.base.format import (
    by_count,
    bytes_text,
    clause,
    fold,
    joined,
    listed,
    plural,
    shown,
)


def decapitalised(text: str) -> str:
    """A sentence as a part of another one.

    >>> decapitalised("Remove rule 1")
    'remove rule 1'
    """
    return text[:1].lower() + text[1:]


def wish(fact: Wish) -> str:
    """What is wanted, as the rest of a sentence that begins with "to"."""
    title = fact.path or "the array"
    # The most exact wish first: a spec says what each dimension gets.
    if fact.spec is not None:
        return f"split {title} as {fact.spec}"
    if fact.limit is not None:
        return f"have at most {bytes_text(fact.limit)} of {title} per device"
    if fact.dim is not None:
        return f"split dimension {fact.dim} of {title}"
    return f"split {title}"


def step(fact: Step) -> str:
    """What to do.

    >>> table = (Rule("embed", ("data",)), Rule("mlp", ()))
    >>> step(Step(Kind.MOVE, 1, 0, rules=table))
    'Move rule 2 (mlp → None) before rule 1'
    """
    if isinstance(fact.new, tuple):
        # Flax's boxes have the names, and some optimizers are given what is in them.
        return (
            "Make the optimizer's state from parameters that have their names"
            f" ({joined(map(shown, fact.new))} for {fact.path}), not from bare arrays"
        )
    if fact.kind in (Kind.ARRAY_NAME, Kind.SIZE):
        return _other_array(fact)
    if fact.kind is Kind.ADD:
        noun = "pattern" if isinstance(fact.new, PathRule) else "rule"
        return f"Add the {noun} {_line(fact.new)} {_where(fact, 'before')}"
    assert fact.subject is not None
    line = _numbered(fact, fact.subject)
    if fact.kind is Kind.REMOVE:
        return f"Remove {line}"
    if fact.kind is Kind.MOVE:
        # A line that goes down has moved up those that it passes.
        side = "after"
        if fact.place < fact.subject:
            side = "before"
        return f"Move {line} {_where(fact, side)}"
    return _other_line(fact, line)


def _other_array(fact: Step) -> str:
    """What becomes of the array, and of those that are like it."""
    array = clause("array {}", fact.path) or "the array"
    array += clause(" and {:,} like it", fact.alike)
    if fact.kind is Kind.SIZE:
        words = (
            f"Make dimension {fact.subject} a multiple of {fact.parts:,}:"
            f" {fact.new:,} instead of {fact.old:,}"
        )
        # The array itself is known from the wish; that others change with it is not.
        return words + clause(", in {}", fact.alike and array)
    if fact.old is None:
        return f"Name dimension {fact.subject} of {array} {shown(fact.new)}"
    return f"Rename {shown(fact.old)} to {shown(fact.new)} in {array}"


def _other_line(fact: Step, line: str) -> str:
    """What becomes of a line that stays where it is."""
    new, old = fact.new, fact.rules[fact.subject or 0]
    if isinstance(new, Rule) and isinstance(old, Rule):
        if fact.kind is Kind.RULE_NAME:
            return f"Rename {shown(old.logical)} to {shown(new.logical)} in {line}"
        becomes, now = new.target, listed(old.axes) or old.target
        if new.axes:
            noun = by_count(len(new.axes), "axis", "axes")
            becomes = f"the {noun} {listed(new.axes)}"
        return f"Give {line} {becomes} in place of {now}"
    assert isinstance(new, PathRule)
    if fact.kind is Kind.AXES:
        return f"Give {line} the spec {new.spec}"
    return f"Change {line} to {shown(new.pattern)}"


def _where(fact: Step, side: str) -> str:
    """Where a line goes to, among the lines as they are."""
    # After the last line, which has no number yet.
    if fact.place == len(fact.rules):
        return "at the end"
    if isinstance(fact.rules[fact.place], PathRule):
        return f"{side} {_numbered(fact, fact.place)}"
    return f"{side} rule {fact.place + 1}"


def _line(line: object) -> str:
    if isinstance(line, PathRule):
        return f"{shown(line.pattern)} → {line.spec}"
    return str(line)


def _numbered(fact: Step, index: int) -> str:
    line = fact.rules[index]
    noun = "pattern" if isinstance(line, PathRule) else "rule"
    return f"{noun} {index + 1} ({_line(line)})"


def effect(fact: Remedy) -> str:
    """What a remedy does."""
    parts = [str(fact.spec)]
    if fact.leaf_bytes_saved is not None and fact.bytes_saved is not None:
        parts.append(_saved(fact.leaf_bytes_saved, fact.bytes_saved))
    if fact.others:
        verb = by_count(len(fact.others), "changes", "change")
        # A rule often changes the same array in every layer.
        alike = [one.name for one in fold(fact.others, str)]
        names = joined(alike, limit=4)
        parts.append(f"{plural(len(fact.others), 'other array')} {verb}: {names}")
    return "; ".join(parts)


def _saved(here: int, everywhere: int) -> str:
    words = f"{_saving(here)} per device"
    if here == everywhere:
        return words
    in_all = _saving(everywhere)
    # The same verb is not said again.
    if here > 0 and everywhere > 0:
        in_all = bytes_text(everywhere)
    return f"{words} here and {in_all} in all"


def _saving(count: int) -> str:
    if not count:
        return "saves nothing"
    if count < 0:
        return f"costs {bytes_text(-count)}"
    return f"saves {bytes_text(count)}"


def remedy(fact: Remedy) -> str:
    """A remedy and what it does."""
    return f"{fact.edit}: {effect(fact)}."


#: Code to why there is no remedy; `{title}` is the array, `{wish}` what is wanted.
REASONS: Mapping[str, str] = {
    "own spec": (
        "{title} has a PartitionSpec of its own, {spec}, which no rule changes. Change"
        " that."
    ),
    "no layout": "No table can {wish}. {error}",
    "no names": "No rule splits {title}. {error}",
    "bytes unknown": (
        "How many bytes {title} takes is not known: its shape or the mesh is missing."
    ),
    "too small": (
        "No table can do that: split as far as its sizes allow, {title} still takes"
        " {bytes} per device."
    ),
    "no edit": "No edit that was tried can {wish}.",
    "breaks others": (
        "No edit that was tried can {wish} and leave all other arrays as good: {steps}"
        " breaks {path}: {error}"
    ),
    "split already": "Nothing to change: {title} is split as {spec}{takes}.",
    "no axes": "No table can split {title}: the mesh has no axis of more than one device.",
}


def no_remedy(fact: NoRemedy) -> str:
    """Why there is no remedy."""
    # A template takes what it needs of these; the others stay empty.
    size, error = "", fact.error
    if fact.bytes is not None:
        size = bytes_text(fact.bytes)
    if fact.code == "no names" and not error:
        error = "It has no logical names that rules are for."
    return REASONS[fact.code].format(
        title=fact.wish.path or "the array",
        wish=fact.wish,
        spec=fact.spec,
        error=error,
        bytes=size,
        takes=clause(" and takes {} per device", size),
        steps=", then ".join(decapitalised(str(one)) for one in fact.steps),
        path=fact.path,
    )


def remedies(value: Remedies) -> str:
    """All of them, one line each, or why there is none."""
    if value.why is not None:
        return no_remedy(value.why)
    lines = [f"To {wish(value.want)}:"]
    for number, one in enumerate(value, 1):
        lines.append(f"{number}. {remedy(one)}")
    return "\n".join(lines)


SENTENCES = {Wish: wish, Step: step, Remedy: remedy, NoRemedy: no_remedy}

EXPLANATIONS = {Remedies: remedies}
