"""What rules and patterns did, and why."""

from __future__ import annotations

import math

from shardviz.axis_rules.path_rules import PathResolution
from shardviz.axis_rules.resolution import Resolution
from shardviz.axis_rules.rules import Dialect, PathRule, Rule
from shardviz.axis_rules.verdicts import Decision, Outcome, Problem, Verdict
from shardviz.axis_rules.words.remedies import decapitalised
from shardviz.base.format import (
    by_count,
    clause,
    ids_text,
    joined,
    listed,
    plural,
    shown,
    suggestion,
)
from shardviz.base.partition_spec import is_unconstrained
from shardviz.base.words.layout import misfit, wrong_rank

FEW_PATTERNS = 8  # of which each is named that does not match


def verdict(fact: Verdict) -> str:
    """What one rule did for one dimension, or one pattern for one array."""
    if isinstance(fact.line, PathRule):
        words = (
            f"pattern {fact.rule + 1} ({shown(fact.line.pattern)} → {fact.line.spec})"
        )
    else:
        words = f"rule {fact.rule + 1} ({fact.line})"
    return f"{words} {verdict_reason(fact)}"


def verdict_reason(fact: Verdict) -> str:
    """The same without the line of the table, as the rest of a sentence.

    >>> print(verdict_reason(Verdict(0, Rule("mlp", ("model",)), Outcome.APPLIED)))
    splits over 'model'.
    """
    outcome = fact.outcome
    if outcome in (Outcome.INDIVISIBLE, Outcome.WRONG_RANK, Outcome.MISSING_AXIS):
        return f"decides, but {_broken(fact)}"
    if outcome is Outcome.REPEATED and fact.taken:
        causes = joined(f"dimension {d} has {shown(a)}, too" for a, d, _ in fact.taken)
        return f"decides, but {causes}."
    if outcome is Outcome.REPEATED:
        twice = next(a for i, a in enumerate(fact.axes) if a in fact.axes[:i])
        return f"decides, but names {shown(twice)} twice; a mesh axis can split an array once."
    if outcome in (Outcome.TAKEN, Outcome.PART_TAKEN):
        return _taken(fact)
    if fact.decides and isinstance(fact.line, PathRule):
        return _matches(fact, fact.line)
    if fact.decides and isinstance(fact.line, Rule):
        return _decides(fact, fact.line)
    return _does_not_decide(fact)


def _broken(fact: Verdict) -> str:
    """Why an array cannot be laid out as the line says."""
    if fact.wrong_rank is not None:
        return decapitalised(wrong_rank(fact.wrong_rank))
    if fact.misfit is not None:
        if isinstance(fact.line, PathRule):
            return f"in dimension {fact.dimension}, {misfit(fact.misfit)}"
        return misfit(fact.misfit)
    hint = ""
    if fact.mesh is not None:
        hint = suggestion(fact.absent[0], fact.mesh.axis_names)
    return f"the mesh ({fact.mesh}) has no axis {listed(fact.absent, 'or')}.{hint}"


def _does_not_decide(fact: Verdict) -> str:
    # Rules have numbers from 1 on in sentences, and from 0 on in values.
    outcome, by = fact.outcome, (fact.by_rule or 0) + 1
    if outcome is Outcome.OTHER_NAME and isinstance(fact.line, Rule):
        own = "no name"
        if fact.name is not None:
            own = shown(fact.name)
        return f"is for {shown(fact.line.logical)}; this dimension has {own}."
    if outcome is Outcome.DECIDED:
        return f"comes after rule {by}, which already decided this dimension."
    if outcome is Outcome.OVERRIDDEN:
        return (
            f"is replaced by rule {by}: this dialect reads the table as a dict, where the"
            " last repeat wins."
        )
    if outcome is Outcome.INVALID:
        return f"cannot be matched. {fact.error}"
    if outcome is Outcome.SEVERAL:
        numbers = listed([n + 1 for n in fact.several])
        return f"matches, as do others (patterns {numbers} in all); Keras allows one."
    if outcome is Outcome.NO_MATCH and fact.wider:
        return (
            "does not match: it is only in a part of the path, which did in older versions"
            f" of Keras; {shown(fact.wider)} matches all of it."
        )
    if outcome is Outcome.NO_MATCH:
        return f"does not match{clause(': the path has no {}', listed(fact.lacks, 'or', 3))}."
    if fact.dialect is Dialect.KERAS:
        return f"matches, too, and pattern {by} is the path itself, which Keras takes first."
    return f"matches, too, and comes after pattern {by}, which decides."


def _decides(fact: Verdict, rule: Rule) -> str:
    if rule.free:
        return "leaves the dimension to the compiler and ends the search."
    if fact.outcome is Outcome.UNSPLIT:
        return "leaves the dimension unsplit and ends the search."
    if fact.mesh is None:
        return f"splits over {listed(fact.axes)}."
    # Axes of size 1 split nothing; MaxText leaves them out of the spec as well.
    ways = math.prod(fact.mesh.shape[axis] for axis in fact.axes)
    ones = [axis for axis in fact.axes if fact.mesh.shape[axis] == 1]
    large = [axis for axis in fact.axes if axis not in ones]
    dropped = clause(" {} of size 1 splits nothing.", listed(ones))
    if fact.dialect is Dialect.MAXTEXT:
        dropped = clause(" {} of size 1 is dropped.", listed(ones))
    if not large:
        return f"decides, and nothing is split:{dropped}"
    return f"splits {ways:,} ways over {listed(large)}.{dropped}"


def _matches(fact: Verdict, line: PathRule) -> str:
    if fact.outcome is Outcome.ONE_ELEMENT:
        return "matches, but an array of one element is never split."
    parts = []
    for dim, axes in enumerate(line.spec.dims):
        if dim in line.spec.unconstrained:
            parts.append(f"dimension {dim} as the compiler likes")
        elif axes:
            parts.append(f"dimension {dim} over {listed(axes)}")
    return f"matches and splits {', '.join(parts) or 'no dimension'}."


def holders(fact: Verdict) -> str:
    """Which rules already use the axes that a rule wants."""
    causes = []
    for axis, dim, by in fact.taken:
        rule = f"rule {(by or 0) + 1}"
        causes.append(f"{rule} already uses {shown(axis)} for dimension {dim}")
    return joined(causes)


def _taken(fact: Verdict) -> str:
    if fact.outcome is Outcome.TAKEN:
        return f"does not apply: {holders(fact)}."
    gone = {axis for axis, _, _ in fact.taken}
    free = [a for a in fact.axes if a not in gone]
    verb = by_count(len(free), "is", "are")
    return (
        f"needs all of ({', '.join(fact.axes)}), and {holders(fact)};"
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
        if one.outcome in (Outcome.TAKEN, Outcome.PART_TAKEN):
            before.append(verdict(one))
    winner = fact.deciding
    if winner is None:
        return f"{head} is not split: {' '.join(before)}"
    lead = f"{head} is not split"
    if fact.axes:
        lead = f"{head} → {', '.join(fact.axes)}"
    elif isinstance(winner.line, Rule) and winner.line.free:
        lead = f"{head} is left to the compiler"
    sentences = [f"{lead}: {verdict(winner)}"]
    for lost in before:
        sentences.append(f"Before it, {lost}")
    return " ".join(sentences)


def problem(fact: Problem) -> str:
    """Why a mesh cannot have the spec of an array, or why it has none."""
    if fact.error:
        return fact.error
    if fact.code == "several match":
        return (
            f"{len(fact.patterns)} patterns match the path, {listed(fact.patterns, limit=4)},"
            " and Keras allows one. Make each path match one pattern, or give the path"
            " itself as a key, which wins."
        )
    if fact.decision is None:
        return (
            "No pattern matches the path, where EasyLM raises an error. Add a pattern;"
            " ('.*', ()) at the end leaves all other arrays unsplit."
        )
    dim, winner = fact.decision.dimension, fact.decision.deciding
    if winner is not None:
        return f"Dimension {dim}: {verdict(winner)}"
    return (
        f"Dimension {dim}: no rule is for {shown(fact.decision.logical)}, and nnx takes it"
        " for a mesh axis, which the mesh lacks."
    )


def resolution_findings(value: Resolution) -> list[str]:
    """The spec, then a line per dimension, then what else is wrong."""
    count = plural(len(value.rules), "rule")
    lines = [f"{value.spec}  ({value.dialect.value} rules, {count})"]
    # Dimensions come in order, as in the spec above them.
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
        purpose = f"To split dimension {dim}: "
        if remedy.leaves_unsplit:
            purpose = f"No edit of the table splits dimension {dim}. To "
        lines.append(f"{purpose}{decapitalised(remedy.edit)}.")
    return "\n".join(lines)


def path_resolution(value: PathResolution) -> str:
    """Which pattern decides for a path, and why every other does not."""
    # EasyLM raises an error there, and an audit goes on.
    became = "unknown"
    if value.spec is not None:
        became = str(value.spec)
    count = plural(len(value.rules), "pattern")
    lines = [f"{value.path} → {became}  ({value.dialect.value}, {count})"]
    if value.problem is not None:
        lines.append(problem(value.problem))
    elif value.one_element and value.winner is None:
        lines.append("An array of one element is never split.")
    elif value.winner is None:
        lines.append("No pattern matches the path, and Keras replicates such an array.")
    lacking = [v.rule for v in value.verdicts if v.outcome is Outcome.NO_MATCH]
    for one in value.verdicts:
        if len(lacking) <= FEW_PATTERNS or one.rule not in lacking:
            lines.append(verdict(one))
    if len(lacking) > FEW_PATTERNS:
        lines.append(f"Patterns {ids_text([n + 1 for n in lacking])} do not match.")
    remedy = value.first_remedy()
    if remedy is not None:
        purpose = "To split it: "
        if remedy.leaves_unsplit:
            purpose = "No edit of the table splits it. To "
        lines.append(f"{purpose}{decapitalised(remedy.edit)}.")
    return "\n".join(lines)


SENTENCES = {Verdict: verdict, Decision: decision, Problem: problem}

EXPLANATIONS = {
    Verdict: verdict_reason,
    Resolution: resolution,
    PathResolution: path_resolution,
}
