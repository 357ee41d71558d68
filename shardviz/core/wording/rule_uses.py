"""What the lines of a table did for many arrays, and where two tables differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shardviz.core.format import (
    first_lines,
    ids_text,
    joined,
    listed,
    plural,
    shown,
)
from shardviz.core.layout.rules.differences import AuditDiff, Reading, ReadingDifference
from shardviz.core.layout.rules.rule_uses import (
    Broke,
    Idle,
    Lost,
    NoPattern,
    Owner,
    RuleUses,
)
from shardviz.core.layout.rules.rules import Dialect, PathRule, Rule
from shardviz.core.wording.rules import verdict_reason

SHOWN = 5  # names in a list


def _axes_by_owner(
    owners: tuple[Owner, ...],
) -> list[tuple[str, int, list[str]]]:
    """To which name, through which rule, which axes go."""
    takers: dict[tuple[str, int], list[str]] = {}
    for axis, owner, through in owners:
        takers.setdefault((owner, through), []).append(axis)
    return [(owner, through, axes) for (owner, through), axes in takers.items()]


def lost(fact: Lost) -> str:
    """To whom a rule lost its axes.

    >>> lost(Lost((("model", "mlp", 0),)))
    "'model' goes to 'mlp' through rule 1"
    """
    parts = []
    for owner, through, axes in _axes_by_owner(fact.owners):
        verb = "goes" if len(axes) == 1 else "go"
        parts.append(
            f"{listed(axes)} {verb} to {shown(owner)} through rule {through + 1}"
        )
    return joined(parts)


def broke(fact: Broke) -> str:
    """What a deciding rule broke."""
    if fact.verdict is None:
        return fact.problem
    return f"dimension {fact.dimension}: it {verdict_reason(fact.verdict)}"


def idle(fact: Idle) -> str:
    """Why a rule or pattern decides nothing, as the rest of a sentence about it."""
    if isinstance(fact.rule, PathRule):
        return _PATTERNS[fact.code](fact)
    return f"never fires: {idle_reason(fact)}"


def idle_reason(fact: Idle) -> str:
    """Why a rule of a table of names decides nothing.

    >>> idle_reason(Idle("search ended", Rule("embed", ("data",)), (2,)))
    "rule 3 ends every search for 'embed' first"
    """
    assert isinstance(fact.rule, Rule)
    name = shown(fact.rule.logical)
    number = fact.by[0] + 1 if fact.by else 0
    if fact.code == "loses":
        return _loses(fact)
    if fact.code == "no such name":
        hint = f"; an array has {shown(fact.near)}" if fact.near else ""
        return f"no array has a dimension {name}{hint}"
    if fact.code in ("decided before", "overridden"):
        return _decided_before(fact, name)
    return {
        "own specs": f"each array with {name} has a PartitionSpec of its own, which wins",
        "unresolved": f"the names of the arrays with {name} cannot be resolved",
        "search ended": f"rule {number} ends every search for {name} first",
        "taken before": (
            f"rule {number} ({fact.before}) takes every {name} that this one could"
        ),
    }[fact.code]


def _decided_before(fact: Idle, name: str) -> str:
    numbers = listed([i + 1 for i in fact.by])
    one = len(fact.by) == 1
    rules = f"{'rule' if one else 'rules'} {numbers}"
    if fact.code == "overridden":
        verb = "replaces" if one else "replace"
        return f"{rules} {verb} it: nnx takes the last of a name"
    return f"{rules} {'decides' if one else 'decide'} every {name} first"


def _loses(fact: Idle) -> str:
    parts = []
    for owner, through, axes in _axes_by_owner(fact.owners):
        parts.append(f"{listed(axes)} to {shown(owner)} (rule {through + 1})")
    words = f"it loses {joined(parts)}"
    if fact.unreached:
        arrays = plural(fact.arrays, "array")
        return (
            f"{words} in {arrays}, and other rules decide first in {fact.unreached:,}"
        )
    return f"{words} in every array" if fact.arrays > 1 else words


def _shadowed(fact: Idle) -> str:
    numbers = ids_text([i + 1 for i in fact.by])
    one = len(fact.by) == 1
    patterns = f"{'pattern' if one else 'patterns'} {numbers}"
    return (
        f"is shadowed: {patterns} {'decides' if one else 'decide'}"
        f" {plural(fact.arrays, 'path')} that it matches, too"
    )


def _no_word(fact: Idle) -> str:
    hint = f", but {shown(fact.near)} is near" if fact.near else ""
    return f"matches no path: none has {shown(fact.word)}{hint}"


def _no_path(fact: Idle) -> str:
    hint = f"; the nearest is {shown(fact.near)}" if fact.near else ""
    return f"matches no path{hint}"


def _part_of_a_path(fact: Idle) -> str:
    return (
        "matches no path; older versions of Keras searched,"
        f" {shown(fact.near)} matches all of a path"
    )


_PATTERNS: Mapping[str, Callable[[Idle], str]] = {
    "own specs": lambda _: (
        "decides nothing: each array that it matches has a PartitionSpec of its own"
    ),
    "several match": lambda _: (
        "decides nothing: other patterns match each path that it matches"
    ),
    "shadowed": _shadowed,
    "no such word": _no_word,
    "no such path": _no_path,
    "inner path": _part_of_a_path,
}


def rule_uses(fact: RuleUses) -> str:
    """Which rules or patterns decide nothing, and why."""
    count, idles = len(fact.uses), [u for u in fact.uses if u.never is not None]
    if not count:
        return "The table is empty."
    if not idles:
        return "Every rule decides something."
    if isinstance(idles[0].rule, PathRule):
        head = f"{len(idles):,} of {plural(count, 'pattern')} decide nothing:"
        lines = [f"  pattern {u.index + 1} ({u.rule}) {u.never}." for u in idles]
        return first_lines(head, lines, 2 * SHOWN)
    head, names, lines = f"{len(idles):,} of {plural(count, 'rule')} never fire", [], []
    for use in idles:
        if use.absent and isinstance(use.rule, Rule):
            names.append(use.rule.logical)
        else:
            lines.append(f"  rule {use.index + 1} ({use.rule}) {use.never}.")
    if names:
        head += f"; {len(names):,} of them for names that no array has"
        head += f" ({joined(dict.fromkeys(names), limit=SHOWN)})"
    return first_lines(f"{head}:" if lines else f"{head}.", lines, 2 * SHOWN)


def no_pattern(fact: NoPattern) -> str:
    """Which arrays no pattern of a LayoutMap matches."""
    if not fact.paths:
        return ""
    verb, them = "match", "them"
    if len(fact.paths) == 1:
        verb, them = "matches", "it"
    few = joined(fact.paths, limit=SHOWN)
    count = plural(len(fact.paths), "array")
    return f"{count} {verb} no pattern, and Keras replicates {them}: {few}."


def cause(fact: ReadingDifference) -> str:
    """Why two audits differ about an array or a dimension."""
    one, two = (
        f"{label} {_reading(reading)}"
        for label, reading in zip(fact.labels, fact.readings, strict=True)
    )
    where = "" if fact.dimension is None else f"Dimension {fact.dimension}: "
    return f"{where}{one}; {two}."


def _reading(reading: Reading) -> str:
    keras = reading.dialect is Dialect.KERAS
    if reading.code == "rule":
        return _rule_reading(reading)
    if reading.code == "pattern":
        how = "the first that it finds in the path"
        if keras:
            how = (
                "the path itself" if reading.exact else "which matches all of the path"
            )
        assert isinstance(reading.line, PathRule)
        return (
            f"takes pattern {reading.rule + 1} ({shown(reading.line.pattern)}), {how}"
        )
    if reading.code == "no pattern":
        where = (
            "that matches all of the path, and replicates" if keras else "in the path"
        )
        return f"finds no pattern {where}"
    name = shown(reading.name)
    if reading.code == "no rule":
        does = "leaves it unsplit"
        if reading.dialect is Dialect.NNX:
            does = "takes it for a mesh axis"
        return f"has no rule for {name} and {does}"
    numbers = joined([i + 1 for i in reading.several])
    return {
        "own spec": "keeps the array's own spec",
        "refused": f"refuses: {reading.problem.rstrip('.')}",
        "no names": "has no names for rules",
        "spec": f"gives {reading.spec}",
        "one element": "leaves an array of one element unsplit",
        "several match": f"refuses patterns {numbers}, which all match the path",
        "no name": "has no name to decide by",
        "axes used": f"takes no rule for {name}, since other dimensions use their axes",
    }[reading.code]


def _rule_reading(reading: Reading) -> str:
    words = f"takes rule {reading.rule + 1} ({reading.line})"
    if reading.repeated:
        last = reading.dialect is Dialect.NNX
        how = (
            "the last of the name"
            if last
            else "the first of the name whose axes are free"
        )
        words += f", {how}"
    if reading.shared:
        words += f", though {listed(reading.shared)} splits another dimension, too"
    if reading.dropped:
        words += f" and drops {listed(reading.dropped)} of size 1"
    return words


def audit_diff(value: AuditDiff) -> str:
    """Each difference and its cause; arrays that differ alike share a line."""
    first, second = value.labels
    verb = "differs" if len(value.rows) == 1 else "differ"
    count = plural(len(value.rows) + value.alike, "array")
    lines = [f"{len(value.rows):,} of {count} {verb} between {first} and {second}."]
    groups: dict[tuple, list[str]] = {}
    for row in value.rows:
        groups.setdefault((row.first, row.second, row.causes), []).append(row.path)
    for (one, two, causes), paths in groups.items():
        specs = ["unknown" if s is None else str(s) for s in (one, two)]
        lines.append(
            f"{joined(paths, limit=SHOWN)}: {specs[0]} by {first}, {specs[1]} by {second}."
            f" {' '.join(map(cause, causes))}"
        )
    if value.missing:
        lines.append(f"Only in one of them: {joined(value.missing, limit=SHOWN)}.")
    return "\n".join(lines)


SENTENCES = {
    Lost: lost,
    Broke: broke,
    Idle: idle,
    RuleUses: rule_uses,
    NoPattern: no_pattern,
    ReadingDifference: cause,
}

EXPLANATIONS = {AuditDiff: audit_diff}
