"""What rules and patterns did, and why."""

from __future__ import annotations

import math

from shardviz.core.format import (
    by_count,
    clause,
    ids_text,
    joined,
    listed,
    plural,
    shown,
    suggestion,
)
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec, is_unconstrained
from shardviz.core.layout.rules.path_rules import PathResolution
from shardviz.core.layout.rules.resolution import Resolution
from shardviz.core.layout.rules.rules import Dialect
from shardviz.core.layout.rules.verdicts import (
    Decision,
    Outcome,
    PathOutcome,
    PathProblem,
    PathVerdict,
    Problem,
    Verdict,
)
from shardviz.core.wording.layout import misfit, wrong_rank
from shardviz.core.wording.remedies import decapitalised

FEW_PATTERNS = 8  # of which each is named that does not match


def verdict(fact: Verdict) -> str:
    """What one rule did for one dimension."""
    return f"rule {fact.rule + 1} ({fact.target}) {verdict_reason(fact)}"


def verdict_reason(fact: Verdict) -> str:
    """The same without the rule, as the rest of a sentence.

    >>> print(verdict_reason(Verdict(0, "mlp", ("model",), Outcome.APPLIED)))
    splits over 'model'.
    """
    outcome = fact.outcome
    # Rules have numbers from 1 on in sentences, and from 0 on in values.
    by = (fact.by_rule or 0) + 1
    if outcome is Outcome.INDIVISIBLE and fact.misfit is not None:
        return f"decides, but {misfit(fact.misfit)}"
    if outcome is Outcome.MISSING_AXIS:
        return f"decides, but {_no_axis(fact.absent, fact.mesh)}"
    if outcome is Outcome.REPEATED and fact.taken:
        causes = joined(f"dimension {d} has {shown(a)}, too" for a, d, _ in fact.taken)
        return f"decides, but {causes}."
    if outcome is Outcome.REPEATED:
        return f"decides, but {_twice(fact.axes)}"
    if outcome is Outcome.OTHER_NAME:
        own = "no name"
        if fact.name is not None:
            own = shown(fact.name)
        return f"is for {shown(fact.logical)}; this dimension has {own}."
    if outcome is Outcome.DECIDED:
        return f"comes after rule {by}, which already decided this dimension."
    if outcome is Outcome.OVERRIDDEN:
        return (
            f"is replaced by rule {by}: this dialect reads the table as a dict, where the"
            " last repeat wins."
        )
    if outcome in (Outcome.TAKEN, Outcome.PART_TAKEN):
        return _taken(fact)
    return _decides(fact)


def _decides(fact: Verdict) -> str:
    if fact.free:
        return "leaves the dimension to the compiler and ends the search."
    if fact.outcome is Outcome.UNSPLIT:
        return "leaves the dimension unsplit and ends the search."
    if fact.mesh is None:
        return f"splits over {listed(fact.axes)}."
    # Axes of size 1 split nothing; some dialects leave them out of the spec as well.
    ways = math.prod(fact.mesh.shape[axis] for axis in fact.axes)
    ones = [axis for axis in fact.axes if fact.mesh.shape[axis] == 1]
    large = [axis for axis in fact.axes if axis not in ones]
    dropped = clause(" {} of size 1 splits nothing.", listed(ones))
    if fact.drops:
        dropped = clause(" {} of size 1 is dropped.", listed(ones))
    if not large:
        return f"decides, and nothing is split:{dropped}"
    return f"splits {ways:,} ways over {listed(large)}.{dropped}"


def _no_axis(absent: tuple[str, ...], mesh: MeshSpec | None) -> str:
    if mesh is None:
        return f"the mesh has no axis {listed(absent, 'or')}."
    hint = suggestion(absent[0], mesh.axis_names)
    return f"the mesh ({mesh}) has no axis {listed(absent, 'or')}.{hint}"


def _twice(axes: tuple[str, ...]) -> str:
    twice = next(a for i, a in enumerate(axes) if a in axes[:i])
    return f"names {shown(twice)} twice; a mesh axis can split an array once."


def _taken(fact: Verdict) -> str:
    """Which rules already use the axes that a rule wants."""
    causes = []
    for axis, dim, by in fact.taken:
        rule = "another"
        if by is not None:
            rule = str(by + 1)
        causes.append(f"rule {rule} already uses {shown(axis)} for dimension {dim}")
    if fact.outcome is Outcome.TAKEN:
        return f"does not apply: {joined(causes)}."
    gone = {axis for axis, _, _ in fact.taken}
    free = [a for a in fact.axes if a not in gone]
    verb = by_count(len(free), "is", "are")
    return (
        f"needs all of ({', '.join(fact.axes)}), and {joined(causes)};"
        f" {listed(free)} {verb} free."
    )


def decision(fact: Decision) -> str:
    """One line on one dimension: which rule decided, and which could not apply."""
    name, head = fact.logical, f"dimension {fact.dimension}"
    if is_unconstrained(name):
        return f"{head} is left to the compiler."
    if name is None:
        return (
            f"{head} (no name) is not split: no rule can match a dimension without a"
            " name."
        )
    head = f"{head} “{name}”"
    if fact.passed_through:
        return f"{head} → {name}: no rule is for it, so nnx takes the name for a mesh axis."
    if fact.unknown:
        hint = clause(" Did you mean “{}”?", fact.near)
        return f"{head} is not split: no rule knows “{name}”.{hint}"
    # Rules for the name that came first and could not have their axes.
    before = []
    for one in fact.verdicts:
        if one.logical == name and one.outcome in (Outcome.TAKEN, Outcome.PART_TAKEN):
            before.append(verdict(one))
    winner = fact.deciding
    if winner is None:
        return f"{head} is not split: {' '.join(before)}"
    lead = f"{head} is not split"
    if fact.axes:
        lead = f"{head} → {', '.join(fact.axes)}"
    elif winner.free:
        lead = f"{head} is left to the compiler"
    sentences = [f"{lead}: {verdict(winner)}"]
    for lost in before:
        sentences.append(f"Before it, {lost}")
    return " ".join(sentences)


def problem(fact: Problem) -> str:
    """Why a mesh cannot have the spec that rules gave."""
    if fact.decision is None:
        return fact.error
    dim, winner = fact.decision.dimension, fact.decision.deciding
    if fact.code == "verdict" and winner is not None:
        return f"Dimension {dim}: {verdict(winner)}"
    return (
        f"Dimension {dim}: no rule is for {shown(fact.decision.logical)}, and nnx takes it"
        " for a mesh axis, which the mesh lacks."
    )


def resolution_findings(value: Resolution) -> list[str]:
    """The spec, then a line per dimension, then what else is wrong."""
    count = plural(len(value.rules), "rule")
    lines = [f"{value.spec}  ({value.dialect.value} rules, {count})"]
    lines += map(decision, value.decisions)
    # What a verdict says is in the line of its dimension.
    lines += [problem(p) for p in value.failures if p.code != "verdict"]
    return lines


def resolution(value: Resolution) -> str:
    """How names became a spec, and what would split a dimension that is not."""
    lines = resolution_findings(value)
    first = value.first_remedy()
    if first is not None:
        dim, remedy = first
        lines.append(f"To split dimension {dim}: {decapitalised(remedy.edit)}.")
    return "\n".join(lines)


def path_verdict(fact: PathVerdict) -> str:
    """What one pattern did for one array."""
    line = f"{shown(fact.pattern)} → {fact.spec}"
    return f"pattern {fact.rule + 1} ({line}) {path_verdict_reason(fact)}"


def path_verdict_reason(fact: PathVerdict) -> str:
    """The same without the pattern, as the rest of a sentence."""
    outcome = fact.outcome
    by = (fact.by_rule or 0) + 1
    if outcome is PathOutcome.ONE_ELEMENT:
        return "matches, but an array of one element is never split."
    if outcome is PathOutcome.MATCHED:
        return f"matches and {_splits(fact.spec)}."
    if outcome is PathOutcome.WRONG_RANK and fact.wrong_rank is not None:
        return f"decides, but {decapitalised(wrong_rank(fact.wrong_rank))}"
    if outcome is PathOutcome.INDIVISIBLE and fact.misfit is not None:
        return f"decides, but in dimension {fact.dimension}, {misfit(fact.misfit)}"
    if outcome is PathOutcome.MISSING_AXIS:
        return f"decides, but {_no_axis(fact.absent, fact.mesh)}"
    if outcome is PathOutcome.REPEATED:
        return f"decides, but {_twice(fact.spec.axes)}"
    if outcome is PathOutcome.INVALID:
        return f"cannot be matched. {fact.error}"
    if outcome is PathOutcome.SEVERAL:
        numbers = listed([n + 1 for n in fact.several])
        return f"matches, as do others (patterns {numbers} in all); Keras allows one."
    if outcome is PathOutcome.NO_MATCH:
        return f"does not match{_lack(fact)}."
    if fact.dialect is Dialect.KERAS:
        return f"matches, too, and pattern {by} is the path itself, which Keras takes first."
    return f"matches, too, and comes after pattern {by}, which decides."


def _lack(fact: PathVerdict) -> str:
    if fact.lacks:
        return f": the path has no {listed(fact.lacks, 'or', 3)}"
    if not fact.wider:
        return ""
    return (
        ": it is only in a part of the path, which did in older versions of Keras;"
        f" {shown(fact.wider)} matches all of it"
    )


def _splits(spec: Spec) -> str:
    parts = []
    for dim, axes in enumerate(spec.dims):
        if dim in spec.unconstrained:
            parts.append(f"dimension {dim} as the compiler likes")
        elif axes:
            parts.append(f"dimension {dim} over {listed(axes)}")
    return f"splits {', '.join(parts) or 'no dimension'}"


def path_problem(fact: PathProblem) -> str:
    """Why no pattern gives a path a spec."""
    if fact.code == "unreadable":
        return fact.error
    if fact.code == "several match":
        return (
            f"{len(fact.patterns)} patterns match the path, {listed(fact.patterns, limit=4)},"
            " and Keras allows one. Make each path match one pattern, or give the path"
            " itself as a key, which wins."
        )
    hint = ""
    if fact.patterns:
        hint = f" The nearest is {shown(fact.patterns[0])}."
    return (
        f"No pattern matches the path, where EasyLM raises an error.{hint} Add a pattern;"
        " ('.*', ()) at the end leaves all other arrays unsplit."
    )


def path_resolution(value: PathResolution) -> str:
    """Which pattern decides for a path, and why every other does not."""
    became = "unknown"
    if value.spec is not None:
        became = str(value.spec)
    count = plural(len(value.rules), "pattern")
    lines = [f"{value.path} → {became}  ({value.dialect.value}, {count})"]
    if value.problem is not None:
        lines.append(path_problem(value.problem))
    elif value.one_element and value.winner is None:
        lines.append("An array of one element is never split.")
    elif value.winner is None:
        lines.append("No pattern matches the path, and Keras replicates such an array.")
    lacking = [v.rule for v in value.verdicts if v.outcome is PathOutcome.NO_MATCH]
    rest = []
    for one in value.verdicts:
        # Of many, those are named that older versions of Keras would have taken.
        few = len(lacking) <= FEW_PATTERNS or bool(one.wider)
        if few or one.rule not in lacking:
            lines.append(path_verdict(one))
        else:
            rest.append(one.rule + 1)
    if rest:
        lines.append(f"Patterns {ids_text(rest)} do not match.")
    remedies = value.first_remedy()
    if remedies:
        lines.append(f"To {remedies.want}: {decapitalised(remedies[0].edit)}.")
    return "\n".join(lines)


SENTENCES = {
    Verdict: verdict,
    Decision: decision,
    Problem: problem,
    PathVerdict: path_verdict,
    PathProblem: path_problem,
}

EXPLANATIONS = {
    Verdict: verdict_reason,
    PathVerdict: path_verdict_reason,
    Resolution: resolution,
    PathResolution: path_resolution,
}
