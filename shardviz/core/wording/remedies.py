"""What to change in a table or an array, what that does, and why nothing does."""

from __future__ import annotations

from collections.abc import Mapping

from shardviz.core.format import (
    by_count,
    bytes_text,
    clause,
    fold,
    joined,
    listed,
    plural,
    shown,
)
from shardviz.core.layout.rules.remedies import (
    Kind,
    NamesFromParameter,
    NoRemedy,
    Remedies,
    Remedy,
    Step,
    Steps,
)
from shardviz.core.layout.rules.rules import PathRule, Rule
from shardviz.core.layout.rules.wishes import Wish


def decapitalised(text: str) -> str:
    """A sentence as a part of another one.

    >>> decapitalised("Remove rule 1")
    'remove rule 1'
    """
    return text[:1].lower() + text[1:]


def wish(fact: Wish) -> str:
    """What is wanted, as the rest of a sentence that begins with "to"."""
    title = _title(fact)
    # The most exact wish first: a spec says what each dimension gets.
    if fact.spec is not None:
        return f"split {title} as {fact.spec}"
    if fact.limit is not None:
        return f"have at most {bytes_text(fact.limit)} of {title} per device"
    if fact.dim is not None:
        return f"split dimension {fact.dim} of {title}"
    return f"split {title}"


def _title(fact: Wish) -> str:
    return fact.path or "the array"


def step(fact: Step) -> str:
    """What to do.

    >>> table = (Rule("embed", ("data",)), Rule("mlp", ()))
    >>> step(Step(Kind.MOVE, 1, 0, rules=table))
    'Move rule 2 (mlp → None) before rule 1'
    """
    if fact.kind is Kind.ARRAY_NAME:
        return _new_name(fact)
    if fact.kind is Kind.SIZE:
        words = (
            f"Make dimension {fact.subject} a multiple of {fact.parts:,}:"
            f" {fact.new:,} instead of {fact.old:,}"
        )
        # The array itself is known from the wish; that others change with it is not.
        if fact.alike:
            words += f", in {_arrays(fact)}"
        return words
    if fact.kind is Kind.ADD:
        return f"Add the {_new_line(fact)} {_where(fact, 'before')}"
    assert fact.subject is not None
    line = _line(fact, fact.subject)
    if fact.kind is Kind.REMOVE:
        return f"Remove {line}"
    if fact.kind is Kind.MOVE:
        if fact.place < fact.subject:
            return f"Move {line} {_where(fact, 'before')}"
        return f"Move {line} {_where(fact, 'after')}"
    return _other_line(fact, line)


def _other_line(fact: Step, line: str) -> str:
    """What becomes of a line that stays where it is."""
    new, old = fact.new, fact.rules[fact.subject or 0]
    if isinstance(new, PathRule):
        if fact.kind is Kind.AXES:
            return f"Give {line} the spec {new.spec}"
        return f"Change {line} to {shown(new.pattern)}"
    assert isinstance(new, Rule)
    assert isinstance(old, Rule)
    if fact.kind is Kind.RULE_NAME:
        return f"Rename {shown(old.logical)} to {shown(new.logical)} in {line}"
    now, becomes = old.target, new.target
    # The target of one axis is its bare name, which needs quotes in a sentence.
    if len(old.axes) == 1:
        now = shown(old.axes[0])
    if new.axes:
        noun = by_count(len(new.axes), "axis", "axes")
        becomes = f"the {noun} {listed(new.axes)}"
    return f"Give {line} {becomes} in place of {now}"


def _new_line(fact: Step) -> str:
    if isinstance(fact.new, PathRule):
        return f"pattern {shown(fact.new.pattern)} → {fact.new.spec}"
    return f"rule {fact.new}"


def _where(fact: Step, side: str) -> str:
    """Where a line goes to, among the lines as they are."""
    # After the last line, which has no number yet.
    if fact.place == len(fact.rules):
        return "at the end"
    if isinstance(fact.rules[fact.place], PathRule):
        return f"{side} {_line(fact, fact.place)}"
    return f"{side} rule {fact.place + 1}"


def _line(fact: Step, index: int) -> str:
    rule = fact.rules[index]
    if isinstance(rule, PathRule):
        return f"pattern {index + 1} ({shown(rule.pattern)} → {rule.spec})"
    return f"rule {index + 1} ({rule})"


def _arrays(fact: Step) -> str:
    array = clause("array {}", fact.path) or "the array"
    return array + clause(" and {:,} like it", fact.alike)


def _new_name(fact: Step) -> str:
    array = _arrays(fact)
    if fact.old is None:
        return f"Name dimension {fact.subject} of {array} {shown(fact.new)}"
    return f"Rename {shown(fact.old)} to {shown(fact.new)} in {array}"


def steps(fact: Steps) -> str:
    """What to do, one edit after the other."""
    first, *rest = map(step, fact.steps)
    return ", then ".join([first, *map(decapitalised, rest)])


def names_from_parameter(fact: NamesFromParameter) -> str:
    """What to do where an optimizer's array lost its names."""
    return (
        "Make the optimizer's state from parameters that have their names"
        f" ({joined(map(shown, fact.names))} for {fact.path}), not from bare arrays"
    )


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
    verb, size = _saving(here)
    words = f"{verb} {size} per device"
    if here == everywhere:
        return words
    all_verb, all_size = _saving(everywhere)
    if all_verb != verb:
        all_size = f"{all_verb} {all_size}"
    return f"{words} here and {all_size} in all"


def _saving(count: int) -> tuple[str, str]:
    if not count:
        return "saves", "nothing"
    if count < 0:
        return "costs", bytes_text(-count)
    return "saves", bytes_text(count)


def remedy(fact: Remedy) -> str:
    """A remedy and what it does."""
    return f"{fact.edit}: {effect(fact)}."


#: Code to why there is no remedy; `{title}` is the array, `{wish}` what is wanted.
REASONS: Mapping[str, str] = {
    "own spec": (
        "{title} has a PartitionSpec of its own, {spec}, which no rule changes. Change"
        " that."
    ),
    "unreduced": "No rule can make a spec with unreduced or reduced axes.",
    "no layout": "No table can {wish}. {error}",
    "no names": "No rule splits {title}. {error}",
    "bytes unknown": (
        "How many bytes {title} takes is not known: its shape or the mesh is missing."
    ),
    "too small": (
        "No table can do that: split as far as its sizes allow, {title} still takes"
        " {bytes} per device."
    ),
    "one element": "{title} has one element, and EasyLM never splits such an array.",
    "scalar": "No table can {wish}: it has no dimension.",
    "no edit": "No single edit that was tried can {wish}, nor two after one another.",
    "breaks others": (
        "No edit that was tried can {wish} and leave all other arrays as good: {steps}"
        " breaks {path}: {error}"
    ),
    "split already": "Nothing to change: {title} is split as {spec}{takes}.",
    "does not divide": "No table can {wish}: no axis of the mesh ({mesh}) divides {sizes}.",
    "no axes": "No table can split {title}: {mesh} no axis of more than one device.",
}


def no_remedy(fact: NoRemedy) -> str:
    """Why there is no remedy."""
    # A template takes what it needs of these; the others stay empty.
    size = edits = ""
    if fact.bytes is not None:
        size = bytes_text(fact.bytes)
    if fact.steps is not None:
        edits = decapitalised(steps(fact.steps))
    sizes = [f"{n:,}" for n in fact.sizes]
    error, mesh = fact.error, str(fact.mesh)
    if fact.code == "no names" and not error:
        error = "It has no logical names that rules are for."
    if fact.code == "no axes":
        mesh = "the mesh has"
        if fact.mesh is None:
            mesh = "the table names"
    return REASONS[fact.code].format(
        title=_title(fact.wish),
        wish=fact.wish,
        spec=fact.spec,
        error=error,
        bytes=size,
        takes=clause(" and takes {} per device", size),
        mesh=mesh,
        sizes=joined(sizes, "or") or "its sizes",
        steps=edits,
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


SENTENCES = {
    Wish: wish,
    Step: step,
    Steps: steps,
    NamesFromParameter: names_from_parameter,
    Remedy: remedy,
    NoRemedy: no_remedy,
}

EXPLANATIONS = {Remedy: effect, Remedies: remedies}
