"""What the lines of a table did for many arrays, and where two tables differ."""

from __future__ import annotations

from shardviz.core.format import (
    by_count,
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
from shardviz.core.layout.rules.rules import PathRule, Rule
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
        verb = by_count(len(axes), "goes", "go")
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
        return _idle_pattern(fact)
    return f"never fires: {idle_reason(fact)}"


def idle_reason(fact: Idle) -> str:
    """Why a rule of a table of names decides nothing.

    >>> idle_reason(Idle("decided before", Rule("embed", ("data",)), (2,)))
    "rule 3 decides every 'embed' first"
    """
    assert isinstance(fact.rule, Rule)
    name = shown(fact.rule.logical)
    if fact.code == "loses":
        return _loses(fact)
    if fact.code == "no such name":
        words = f"no array has a dimension {name}"
        if fact.near:
            words += f"; an array has {shown(fact.near)}"
        return words
    if fact.code == "not resolved":
        return (
            f"each array with {name} has a PartitionSpec of its own, which wins, or names"
            " that cannot be resolved"
        )
    numbers, count = listed([i + 1 for i in fact.by]), len(fact.by)
    rules = f"{by_count(count, 'rule', 'rules')} {numbers}"
    if fact.code == "overridden":
        verb = by_count(count, "replaces", "replace")
        return f"{rules} {verb} it: nnx takes the last of a name"
    return f"{rules} {by_count(count, 'decides', 'decide')} every {name} first"


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
    # "Every" of one would be odd.
    if fact.arrays > 1:
        words += " in every array"
    return words


def _idle_pattern(fact: Idle) -> str:
    if fact.code == "own specs":
        return (
            "decides nothing: each array that it matches has a PartitionSpec of its own"
        )
    if fact.code == "shadowed":
        paths = plural(fact.arrays, "path")
        if not fact.by:
            return f"decides nothing: other patterns match the {paths} that it matches"
        patterns = f"patterns {ids_text([i + 1 for i in fact.by])} decide"
        if len(fact.by) == 1:
            patterns = f"pattern {fact.by[0] + 1} decides"
        return f"is shadowed: {patterns} {paths} that it matches, too"
    words = "matches no path"
    if fact.word:
        words += f": none has {shown(fact.word)}"
    if fact.near:
        words += f", but {shown(fact.near)} is near"
    return words


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
    # A table for many models has names by the dozen that this one lacks.
    for use in idles:
        if use.absent and isinstance(use.rule, Rule):
            names.append(use.rule.logical)
        else:
            lines.append(f"  rule {use.index + 1} ({use.rule}) {use.never}.")
    if names:
        head += f"; {len(names):,} of them for names that no array has"
        head += f" ({joined(dict.fromkeys(names), limit=SHOWN)})"
    if not lines:
        return f"{head}."
    return first_lines(f"{head}:", lines, 2 * SHOWN)


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
    sides = []
    for label, reading in zip(fact.labels, fact.readings, strict=True):
        sides.append(f"{label} {_reading(reading)}")
    words = f"{'; '.join(sides)}."
    # Patterns and specs decide for all dimensions at once.
    if fact.dimension is not None:
        words = f"Dimension {fact.dimension}: {words}"
    return words


def _reading(reading: Reading) -> str:
    line, number = reading.line, reading.rule + 1
    if isinstance(line, PathRule):
        return f"takes pattern {number} ({shown(line.pattern)})"
    if line is not None:
        words = f"takes rule {number} ({line})"
        dropped = [axis for axis in line.axes if axis not in reading.axes]
        return words + f" and drops {listed(dropped)} of size 1" * bool(dropped)
    if reading.code == "own spec":
        return "keeps the array's own spec"
    if reading.code == "refused":
        return f"refuses: {reading.problem.rstrip('.')}"
    if reading.code == "spec" and reading.spec is None:
        return "does not know how it is split"
    if reading.code == "spec":
        return f"gives {reading.spec}"
    if reading.axes:
        return "has no rule for its name and takes that for a mesh axis"
    return "finds no rule that applies"


def audit_diff(value: AuditDiff) -> str:
    """Each difference and its cause; arrays that differ alike share a line."""
    first, second = value.labels
    verb = by_count(len(value.rows), "differs", "differ")
    count = plural(len(value.rows) + value.alike, "array")
    lines = [f"{len(value.rows):,} of {count} {verb} between {first} and {second}."]
    # The layers of a model mostly differ alike.
    groups: dict[tuple, list[str]] = {}
    for row in value.rows:
        groups.setdefault((row.first, row.second, row.causes), []).append(row.path)
    for (one, two, causes), paths in groups.items():
        lines.append(
            f"{joined(paths, limit=SHOWN)}: {one or 'unknown'} by {first},"
            f" {two or 'unknown'} by {second}."
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
