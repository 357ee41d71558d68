"""Remedies: what to change in a table or an array, what that does, and why nothing
does.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardviz.core.format import bytes_text, fold, joined, listed, plural, shown
from shardviz.core.layout.rules.remedies import (
    NamesFromParameter,
    NoRemedy,
    Remedies,
    Remedy,
    Step,
    Steps,
)
from shardviz.core.layout.rules.remedy_edits import Kind
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
    if fact.spec is not None:
        return f"split {title} as {fact.spec}"
    if fact.limit is not None:
        return f"have at most {bytes_text(fact.limit)} of {title} per device"
    if fact.dim is not None:
        return f"split dimension {fact.dim} of {title}"
    return f"split {title}"


def _title(fact: Wish) -> str:
    return "the array" if fact.path is None else fact.path


def step(fact: Step) -> str:
    """What to do.

    >>> table = (Rule("embed", ("data",)), Rule("mlp", ()))
    >>> step(Step(Kind.MOVE, table, 1, 0))
    'Move rule 2 (mlp → None) before rule 1'
    """
    if fact.kind is Kind.ARRAY_NAME:
        return _new_name(fact)
    if fact.kind is Kind.SIZE:
        words = (
            f"Make dimension {fact.subject} a multiple of {fact.parts:,}:"
            f" {fact.new:,} instead of {fact.old:,}"
        )
        return f"{words}, in {_arrays(fact)}" if fact.alike else words
    if isinstance(fact.new or fact.rules[0], PathRule):
        return _pattern_step(fact)
    return _rule_step(fact)


def _rule_step(fact: Step) -> str:
    if fact.subject is None:
        end = f"before rule {fact.place + 1}"
        if fact.place == len(fact.rules):
            end = "at the end"
        return f"Add the rule {fact.new} {end}"
    old = fact.rules[fact.subject]
    assert isinstance(old, Rule)
    line = f"rule {fact.subject + 1} ({old})"
    if fact.kind is Kind.REMOVE:
        return f"Remove {line}"
    if fact.kind is Kind.RULE_NAME:
        return f"Rename {shown(old.logical)} to {shown(fact.new)} in {line}"
    if isinstance(fact.new, Rule):
        now = old.target if len(old.axes) != 1 else shown(old.axes[0])
        return f"Give {line} {_right_side(fact.new)} in place of {now}"
    if fact.kind is Kind.SWAP:
        return f"Exchange {line} and rule {fact.place + 1} ({fact.rules[fact.place]})"
    side = "before" if fact.place < fact.subject else "after"
    return f"Move {line} {side} rule {fact.place + 1}"


def _right_side(rule: Rule) -> str:
    if not rule.axes:
        return rule.target
    return f"{'the axis' if len(rule.axes) == 1 else 'the axes'} {listed(rule.axes)}"


def _pattern_step(fact: Step) -> str:
    new = fact.new
    if fact.subject is None:
        assert isinstance(new, PathRule)
        end = "at the end"
        if fact.place < len(fact.rules):
            end = f"before {_pattern_line(fact, fact.place)}"
        return f"Add the pattern {shown(new.pattern)} → {new.spec} {end}"
    line = _pattern_line(fact, fact.subject)
    if fact.kind is Kind.REMOVE:
        return f"Remove {line}"
    if not isinstance(new, PathRule):
        side = "before" if fact.place < fact.subject else "after"
        return f"Move {line} {side} {_pattern_line(fact, fact.place)}"
    if fact.kind is Kind.AXES:
        return f"Give {line} the spec {new.spec}"
    return f"Change {line} to {shown(new.pattern)}"


def _pattern_line(fact: Step, index: int) -> str:
    rule = fact.rules[index]
    assert isinstance(rule, PathRule)
    return f"pattern {index + 1} ({shown(rule.pattern)} → {rule.spec})"


def _arrays(fact: Step) -> str:
    array = "the array" if fact.path is None else f"array {fact.path}"
    return f"{array} and {fact.alike:,} like it" if fact.alike else array


def _new_name(fact: Step) -> str:
    array = _arrays(fact)
    if fact.new is None:
        return (
            f"Take the name {shown(fact.old)} from dimension {fact.subject} of {array}"
        )
    if not isinstance(fact.old, str):
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
        verb = "changes" if len(fact.others) == 1 else "change"
        names = joined((f.name for f in fold(fact.others, str)), limit=4)
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
    size = bytes_text(abs(count)) if count else "nothing"
    return "saves" if count >= 0 else "costs", size


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
    "nameless": "No rule splits {title}. It has no logical names that rules are for.",
    "bytes unknown": (
        "How many bytes {title} takes is not known: its shape or the mesh is missing."
    ),
    "too small": (
        "No table can do that: split as far as its sizes allow, {title} still takes"
        " {bytes} per device."
    ),
    "one element": "{title} has one element, and EasyLM never splits such an array.",
    "scalar": "No table can {wish}: it has no dimension.",
}


def no_remedy(fact: NoRemedy) -> str:
    """Why there is no remedy."""
    title = _title(fact.wish)
    if fact.code in REASONS:
        size = "" if fact.bytes is None else bytes_text(fact.bytes)
        return REASONS[fact.code].format(
            title=title, wish=fact.wish, spec=fact.spec, error=fact.error, bytes=size
        )
    if fact.code == "split already":
        size = ""
        if fact.bytes is not None:
            size = f" and takes {bytes_text(fact.bytes)} per device"
        return f"Nothing to change: {title} is split as {fact.spec}{size}."
    if fact.code == "no axes":
        what = "the table names" if fact.mesh is None else "the mesh has"
        return f"No table can split {title}: {what} no axis of more than one device."
    if fact.code == "does not divide":
        which = joined((f"{n:,}" for n in fact.sizes), "or") or "its sizes"
        return f"No table can {fact.wish}: no axis of the mesh ({fact.mesh}) divides {which}."
    if fact.code == "breaks others":
        return _breaks_others(fact)
    pairs = "two that move, add, remove or change rules"
    if fact.stopped:
        pairs = "any of the many pairs of edits that were tried"
    return f"No single edit can {fact.wish}{_because(fact)}. Nor can {pairs}."


def _breaks_others(fact: NoRemedy) -> str:
    assert fact.steps is not None
    rest = ""
    if fact.stopped:
        rest = f" The same is true of the {fact.others:,} other edits that were tried."
    elif fact.others:
        rest = f" The same is true of {plural(fact.others, 'other edit')}."
    return (
        f"No edit can {fact.wish} and leave all other arrays as good:"
        f" {decapitalised(steps(fact.steps))} breaks {fact.path}: {fact.error}{rest}"
    )


def _because(fact: NoRemedy) -> str:
    if fact.unnamed is not None:
        return f", because dimension {fact.unnamed} has no name that a rule could match"
    if len(fact.missing) > 1:
        return f", because dimensions {joined(fact.missing)} have no rule for what is wanted"
    return ""


def remedies(value: Remedies) -> str:
    """All of them, one line each, or why there is none."""
    if value.why is not None:
        return no_remedy(value.why)
    lines = [f"{n}. {remedy(one)}" for n, one in enumerate(value, 1)]
    return "\n".join([f"To {wish(value.want)}:", *lines])


SENTENCES = {
    Wish: wish,
    Step: step,
    Steps: steps,
    NamesFromParameter: names_from_parameter,
    Remedy: remedy,
    NoRemedy: no_remedy,
}

EXPLANATIONS = {Remedy: effect, Remedies: remedies}
