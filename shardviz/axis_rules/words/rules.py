"""Sentences on rules, patterns, verdicts and resolutions."""

from __future__ import annotations

import math

from shardviz.axis_rules.path_rules import PathResolution
from shardviz.axis_rules.remedies import Remedies
from shardviz.axis_rules.resolution import Resolution
from shardviz.axis_rules.rules import PathRule, Rule
from shardviz.axis_rules.verdicts import (
    Applied,
    AxisNameProblem,
    AxisShared,
    AxisTwice,
    DecidedBefore,
    Decision,
    Holder,
    Indivisible,
    Invalid,
    Matched,
    MissingAxis,
    NoMatch,
    NoMatchProblem,
    OneElement,
    OtherName,
    Overridden,
    PartTaken,
    Problem,
    RankMismatch,
    SeveralMatch,
    SeveralMatchProblem,
    Shadowed,
    SpecProblem,
    Taken,
    UnreadableProblem,
    Unsplit,
    Verdict,
    VerdictProblem,
)
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
from shardviz.base.partition_spec import Spec, SpecOnMesh, is_unconstrained
from shardviz.base.words.layout import misfit, wrong_rank

# Up to this many patterns that don't match get a line each.
FEW_PATTERNS = 8


def verdict(fact: Verdict) -> str:
    """Formats the effect of one rule on a dimension, or of one pattern on an array."""
    if isinstance(fact.line, PathRule):
        words = (
            f"pattern {fact.rule + 1} ({shown(fact.line.pattern)} → {fact.line.spec})"
        )
    else:
        words = f"rule {fact.rule + 1} ({fact.line})"
    return f"{words} {verdict_reason(fact)}"


def verdict_reason(fact: Verdict) -> str:
    """Formats a verdict without its rule, as the rest of a sentence.

    >>> print(verdict_reason(Applied(0, Rule("mlp", ("model",)))))
    splits over 'model'.
    """
    # Sentences number rules from 1, values from 0.
    match fact:
        case Applied():
            return _applied(fact)
        case Unsplit():
            return "leaves the dimension unsplit and ends the search."
        case Matched(line=PathRule(spec=spec)):
            return _matched(spec)
        case OneElement():
            return "matches, but an array of one element is never split."
        case RankMismatch(wrong_rank=mismatch):
            return f"decides, but {decapitalised(wrong_rank(mismatch))}"
        case Indivisible(line=PathRule()):
            words = f"in dimension {fact.dimension}, {misfit(fact.misfit)}"
            return f"decides, but {words}"
        case Indivisible():
            return f"decides, but {misfit(fact.misfit)}"
        case MissingAxis(absent=absent, mesh=mesh):
            hint = suggestion(absent[0], mesh.axis_names)
            words = f"the mesh ({mesh}) has no axis {listed(absent, 'or')}.{hint}"
            return f"decides, but {words}"
        case AxisShared(taken=taken):
            causes = joined(f"dimension {d} also uses {shown(a)}" for a, d, _ in taken)
            return f"decides, but {causes}."
        case AxisTwice(axes=axes):
            twice = next(a for i, a in enumerate(axes) if a in axes[:i])
            return (
                f"decides, but names {shown(twice)} twice; a mesh axis can split only one"
                " dimension of an array."
            )
        case Taken():
            return _taken(fact)
        case OtherName(line=Rule(logical=rule_name), name=name):
            own_name = "no name" if name is None else shown(name)
            return f"is for {shown(rule_name)}; this dimension has {own_name}."
        case DecidedBefore(by_rule=by):
            return f"comes after rule {by + 1}, which already decided this dimension."
        case Overridden(by_rule=by):
            return (
                f"is replaced by rule {by + 1}: this dialect reads the table as a dict,"
                " in which the last rule for a name wins."
            )
        case Shadowed(by_rule=by, by_key=True, library=library):
            return (
                f"also matches, but pattern {by + 1} is the path itself, which {library}"
                " takes first."
            )
        case Shadowed(by_rule=by):
            return f"also matches, but comes after pattern {by + 1}, which decides."
        case SeveralMatch(several=several, library=library):
            others = [n + 1 for n in several if n != fact.rule]
            verb = by_count(len(others), "does pattern", "do patterns")
            return f"matches, but so {verb} {listed(others)}; {library} allows only one match."
        case NoMatch(wider="", lacks=lacks):
            words = clause(": the path has no {}", listed(lacks, "or", 3))
            return f"does not match{words}."
        case NoMatch(wider=wider, library=library):
            return (
                "does not match the whole path, only a part of it, which was enough in older"
                f" versions of {library}; {shown(wider)} matches the whole path."
            )
        case Invalid(error=error):
            return f"cannot be matched. {error}"
    raise TypeError(type(fact))


def _applied(fact: Applied) -> str:
    if isinstance(fact.line, Rule) and fact.line.free:
        return "leaves the dimension to the compiler and ends the search."
    if fact.mesh is None:
        return f"splits over {listed(fact.axes)}."
    parts = math.prod(fact.mesh.shape[axis] for axis in fact.axes)
    unsplitting = [axis for axis in fact.axes if fact.mesh.shape[axis] == 1]
    large = [axis for axis in fact.axes if axis not in unsplitting]
    verb = by_count(len(unsplitting), "splits", "split")
    dropped = clause(f" {{}} of size 1 {verb} nothing.", listed(unsplitting))
    if fact.drops_size_one:
        verb = by_count(len(unsplitting), "is", "are")
        dropped = clause(f" {{}} of size 1 {verb} dropped.", listed(unsplitting))
    if not large:
        return f"decides, and nothing is split:{dropped}"
    return f"splits {parts:,} ways over {listed(large)}.{dropped}"


def _matched(spec: Spec) -> str:
    parts = []
    for dim, axes in enumerate(spec.dims):
        if dim in spec.unconstrained:
            parts.append(f"dimension {dim} as the compiler chooses")
        elif axes:
            parts.append(f"dimension {dim} over {listed(axes)}")
    return f"matches and splits {', '.join(parts) or 'no dimension'}."


def holders(taken: tuple[Holder, ...]) -> str:
    """Lists the rules that already use some axes, and for which dimensions."""
    causes = []
    for axis, dim, by in taken:
        rule = f"rule {(by or 0) + 1}"
        causes.append(f"{rule} already uses {shown(axis)} for dimension {dim}")
    return joined(causes)


def _taken(fact: Taken) -> str:
    if not isinstance(fact, PartTaken):
        return f"does not apply: {holders(fact.taken)}."
    in_use = {axis for axis, _, _ in fact.taken}
    free = [a for a in fact.axes if a not in in_use]
    verb = by_count(len(free), "is", "are")
    return (
        f"needs all of ({', '.join(fact.axes)}), and {holders(fact.taken)};"
        f" {listed(free)} {verb} free."
    )


def decision(fact: Decision) -> str:
    """Explains in one line which rule decided a dimension, and which rules lost."""
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
        return (
            f"{head} → {name}: no rule names it, so {fact.dialect.name} uses the name as a"
            " mesh axis."
        )
    if fact.unknown:
        hint = clause(" Did you mean “{}”?", fact.near)
        return f"{head} is not split: no rule names “{name}”.{hint}"
    # Earlier rules for this name, whose axes were already in use.
    before = [str(lost) for lost in fact.verdicts if isinstance(lost, Taken)]
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
    """Explains why a spec is invalid on the mesh, or why an array has no spec."""
    match fact:
        case VerdictProblem(decision=Decision(dimension=dim, deciding=winner)):
            return f"Dimension {dim}: {winner}"
        case AxisNameProblem(decision=Decision(dimension=dim, logical=name) as decided):
            return (
                f"Dimension {dim}: no rule names {shown(name)}, so {decided.dialect.name}"
                " uses the name as a mesh axis, but the mesh has no such axis."
            )
        case NoMatchProblem(library=library):
            return (
                f"No pattern matches the path, and {library} then raises an error. Add a"
                " pattern; ('.*', ()) at the end leaves all other arrays unsplit."
            )
        case SeveralMatchProblem(patterns=patterns, library=library):
            return (
                f"{len(patterns)} patterns match the path, {listed(patterns, limit=4)},"
                f" and {library} allows only one. Make each path match one pattern, or give"
                " the path itself as a key, which takes precedence."
            )
        case SpecProblem(error=error) | UnreadableProblem(error=error):
            return error
    raise TypeError(type(fact))


def resolution_findings(value: Resolution) -> list[str]:
    """Returns lines: the spec, then one per dimension, then other problems."""
    count = plural(len(value.rules), "rule")
    lines = [f"{value.spec}  ({value.dialect.name} rules, {count})"]
    lines += map(decision, value.decisions)
    # The dimensions' lines already contain these verdicts.
    lines += [problem(p) for p in value.failures if not isinstance(p, VerdictProblem)]
    return lines


def resolution(value: Resolution) -> str:
    """Explains how names became a spec, and suggests an edit to split a dimension."""
    lines = resolution_findings(value)
    first = value.first_remedy()
    if first is not None:
        dim, remedy = first
        purpose = f"To split dimension {dim}: "
        if remedy.leaves_unsplit:
            purpose = _no_split(f"dimension {dim}", value.remedies(f"split {dim}"))
        lines.append(f"{purpose}{decapitalised(remedy.edit)}.")
    return "\n".join(lines)


def path_resolution(value: PathResolution) -> str:
    """Explains which pattern decides for a path, and why the others do not."""
    # If the library raises an error, the audit continues without a spec.
    spec = "unknown" if value.spec is None else str(value.spec)
    count = plural(len(value.rules), "pattern")
    lines = [f"{value.path} → {spec}  ({value.dialect.name}, {count})"]
    if value.problem is not None:
        lines.append(problem(value.problem))
    elif value.one_element and value.winner is None:
        lines.append("An array of one element is never split.")
    elif value.winner is None:
        library = value.dialect.library
        lines.append(
            f"No pattern matches the path, and {library} replicates such arrays."
        )
    lacking = [v.rule for v in value.verdicts if isinstance(v, NoMatch)]
    for fact in value.verdicts:
        if len(lacking) <= FEW_PATTERNS or fact.rule not in lacking:
            lines.append(verdict(fact))
    if len(lacking) > FEW_PATTERNS:
        lines.append(f"Patterns {ids_text([n + 1 for n in lacking])} do not match.")
    remedy = value.first_remedy()
    if remedy is not None:
        purpose = "To split it: "
        if remedy.leaves_unsplit:
            purpose = _no_split("it", value.remedies("split"))
        lines.append(f"{purpose}{decapitalised(remedy.edit)}.")
    return "\n".join(lines)


def _no_split(what: str, remedies: Remedies) -> str:
    """Explains why the suggested remedy leaves a dimension unsplit.

    If there are others, they make the shards larger.
    """
    larger = " without making the shards larger" if len(remedies) > 1 else ""
    return f"No edit of the table splits {what}{larger}. To "


SENTENCES = {Verdict: verdict, Decision: decision, Problem: problem}

EXPLANATIONS = {
    Verdict: verdict_reason,
    Resolution: resolution,
    PathResolution: path_resolution,
}


def copies(sharding: SpecOnMesh) -> list[str]:
    """One sentence about the devices that hold equal blocks; none if no two do."""
    axes = sharding.copy_axes
    devices = math.prod(sharding.mesh.shape[axis] for axis in axes)
    # The compiler can still split dimensions that are left to it.
    if devices == 1 or sharding.spec.unconstrained:
        return []
    return [f"Each block is on {devices:,} devices, along {joined(axes)}."]
