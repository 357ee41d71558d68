"""Sentences on the effects of rules on many arrays, and on differing tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from shardviz.axis_rules.differences import AuditDiff, SpecDifference
from shardviz.axis_rules.requests import Request
from shardviz.axis_rules.rule_uses import (
    Idle,
    LosesAxes,
    NoSuchName,
    NoSuchPath,
    OwnSpecs,
    RuledBefore,
    RuleUse,
    ShadowedPattern,
)
from shardviz.axis_rules.rules import PathRule, Rule
from shardviz.axis_rules.words.rules import holders
from shardviz.base.format import (
    by_count,
    clause,
    first_lines,
    fold,
    ids_text,
    joined,
    listed,
    plural,
    shown,
)

# Maximum number of names per list.
SHOWN = 5
_NONE: Mapping[str, str] = MappingProxyType({})


def idle(fact: Idle) -> str:
    """Explains why a rule decides nothing; the text follows the rule in a sentence."""
    match fact:
        case OwnSpecs(rule=PathRule()):
            return (
                "decides nothing: each array that it matches has its own PartitionSpec,"
                " which splits it differently"
            )
        case ShadowedPattern(by=by):
            patterns = by_count(len(by), "pattern", "patterns")
            verb = by_count(len(by), "decides", "decide")
            deciding = f"{patterns} {ids_text([i + 1 for i in by])}"
            # In Keras, if several patterns match, none of them decides.
            if not by:
                deciding, verb = "other patterns", "also match"
            return f"is shadowed: {deciding} {verb} every path that it matches"
        case NoSuchPath(near=near):
            hint = clause("; the nearest pattern is {}", near and shown(near))
            return f"matches no path{hint}"
    return f"never fires: {_idle_rule(fact)}"


def _idle_rule(fact: Idle) -> str:
    assert isinstance(fact.rule, Rule)
    name = shown(fact.rule.logical)
    match fact:
        case LosesAxes(verdict=verdict):
            return holders(verdict.taken)
        case NoSuchName(near=near):
            hint = clause("; the nearest name is {}", near and shown(near))
            return f"no array has a dimension named {name}{hint}"
        case OwnSpecs():
            return (
                f"each array with a dimension {name} has its own PartitionSpec, which splits"
                " it differently, or has names that cannot be resolved"
            )
        case RuledBefore(by=by):
            rules = by_count(len(by), "rule", "rules")
            verb = by_count(len(by), "decides", "decide")
            numbers = listed([i + 1 for i in by])
            return f"{rules} {numbers} {verb} every dimension named {name} first"
    raise TypeError(type(fact))


def rule_uses(uses: Sequence[RuleUse]) -> str:
    """Lists the rules or patterns that decide nothing, and why."""
    count, idles = len(uses), [use for use in uses if use.never is not None]
    if not count:
        return ""
    if not idles:
        return "Every rule decides something."
    noun, verb = "rule", by_count(len(idles), "never fires", "never fire")
    if isinstance(idles[0].rule, PathRule):
        noun = "pattern"
        verb = by_count(len(idles), "decides nothing", "decide nothing")
    head = f"{len(idles):,} of {plural(count, noun)} {verb}"
    if count == 1:
        head = f"The only {noun} {verb}"
    # A table for many models can have dozens of names that this model doesn't use.
    names, lines = [], []
    for use in idles:
        if isinstance(use.rule, Rule) and isinstance(use.never, NoSuchName):
            names.append(shown(use.rule.logical))
        else:
            lines.append(f"  {noun} {use.index + 1} ({use.rule}) {use.never}.")
    if names:
        unused = joined(dict.fromkeys(names), "or", limit=SHOWN)
        if not lines:
            return f"{head}: no array has a dimension named {unused}."
        others = by_count(len(lines), "rule", "rules")
        head += f". No array has a dimension named {unused}. The other {others}"
    return first_lines(f"{head}:", lines, 2 * SHOWN)


def difference(fact: SpecDifference) -> str:
    """Explains why two audits split an array differently, dimension by dimension."""
    sentences = []
    for dim in fact.dimensions:
        sides = []
        for label, row in zip(fact.labels, fact.rows, strict=True):
            sides.append(f"{label} {_decided(row, dim)}")
        words = f"{'; '.join(sides)}."
        # A pattern or a spec decides all dimensions together.
        if dim is not None:
            words = f"Dimension {dim}: {words}"
        sentences.append(words)
    return " ".join(sentences)


def few(names: Iterable[str]) -> str:
    """Lists a few names, with layer numbers folded, and counts the others."""
    folds = fold(names, str)
    parts = [layers.name for layers in folds[:SHOWN]]
    # Count names, not folds, because readers can't know what a fold is.
    hidden = sum(len(layers.items) for layers in folds[SHOWN:])
    if hidden:
        parts.append(f"{hidden:,} more")
    return joined(parts)


def in_layers(paths: Iterable[str], parameters: Mapping[str, str] = _NONE) -> str:
    """Names the first arrays with their layers in words, and counts the others.

    Args:
        paths: the paths of the arrays.
        parameters: the path of an optimizer moment -> the path of its parameter.

    >>> paths = [f"{tree}.layers.{i}.wq" for tree in ("0", "mu", "nu") for i in range(4)]
    >>> in_layers(paths)
    '0.wq, layers 0 to 3, and 8 more'
    >>> in_layers(paths, {path: f"0.layers.{path[-4]}.wq" for path in paths[4:]})
    '0.wq and its moments, layers 0 to 3'
    >>> in_layers(["wi", "wo"])
    'wi and wo'
    """
    # A moment whose parameter is not listed has its own name.
    moments_of: dict[str, int] = dict.fromkeys(paths, 0)
    for path in list(moments_of):
        if (parameter := parameters.get(path)) in moments_of:
            del moments_of[path]
            moments_of[parameter] += 1
    folds = fold(moments_of, str)
    names = []
    for layers in folds:
        name, *numbers = layers.in_layers or (layers.name,)
        if any(moments_of[path] for path in layers.items):
            name += " and its moments"
        names.append(", ".join([name, *numbers]))
    if len(names) > 2:
        more = 0
        for layers in folds[1:]:
            more += sum(1 + moments_of[path] for path in layers.items)
        names[1:] = [f"{more:,} more"]
    plain = len(names) < 2 or not ("," in names[0] or "moments" in names[0])
    return (" and " if plain else ", and ").join(names)


def _decided(row: Request, dim: int | None) -> str:
    """Names the rule, pattern or spec that decided a dimension or the whole array."""
    names, paths = row.resolution, row.by_path
    if dim is not None and names is not None:
        winner, axes = names.winners[dim], names.spec.dims[dim]
        if winner is not None:
            rule = names.rules[winner]
            dropped = [axis for axis in rule.axes if axis not in axes]
            words = clause(" and drops {} of size 1", listed(dropped))
            return f"takes rule {winner + 1} ({rule}){words}"
        if axes:
            return "has no rule for the name and uses it as a mesh axis"
        return "finds no rule that applies"
    if row.spec_wins:
        return "keeps the array's own spec"
    if paths is not None and paths.winner is not None and not paths.one_element:
        pattern = paths.rules[paths.winner].pattern
        return f"takes pattern {paths.winner + 1} ({shown(pattern)})"
    if row.spec is not None:
        return f"gives {row.spec}"
    return clause("refuses: {}", (row.problem or "").rstrip(".")) or "gives no spec"


def beside_table(value: AuditDiff) -> str:
    """Lists arrays that are not split as the table requests, grouped by equal differences."""
    if not value.rows:
        return ""
    alike: dict[str, list[str]] = {}
    for row in value.rows:
        words = f"{row.second}, but the table {_decided(row.rows[0], None)}"
        if row.rows[0].resolution is not None:
            words = f"{row.second}, but the table gives {row.first}"
        alike.setdefault(words, []).append(row.path)
    lines = [f"  {few(paths)}: {words}." for words, paths in alike.items()]
    count = plural(len(value.rows), "array")
    verb = by_count(len(value.rows), "is", "are")
    return first_lines(f"{count} {verb} not split as the table requests:", lines)


def audit_diff(value: AuditDiff) -> str:
    """Explains each difference; arrays with the same difference share a line."""
    first, second = value.labels
    verb = by_count(len(value.rows), "differs", "differ")
    count = plural(len(value.rows) + value.alike, "array")
    lines = [f"{len(value.rows):,} of {count} {verb} between {first} and {second}."]
    # All layers of a model usually have the same difference.
    groups: dict[str, list[str]] = {}
    for row in value.rows:
        first_spec, second_spec = row.first or "unknown", row.second or "unknown"
        words = f"{first_spec} by {first}, {second_spec} by {second}. {difference(row)}"
        groups.setdefault(words, []).append(row.path)
    for words, paths in groups.items():
        lines.append(f"{joined(paths, limit=SHOWN)}: {words}")
    if value.missing:
        lines.append(
            f"Only in one of the two audits: {joined(value.missing, limit=SHOWN)}."
        )
    return "\n".join(lines)


SENTENCES = {Idle: idle, SpecDifference: difference}

EXPLANATIONS = {AuditDiff: audit_diff}
