"""Rule tables, how they resolve one array (a verdict per rule and dimension), and a single spec.

Tables of paths have a verdict per pattern.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardviz.core.format import bytes_text, ids_text, joined, plural, shown
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.path_rules import PathResolution
from shardviz.core.layout.remedies import Remedies
from shardviz.core.layout.resolution import Resolution
from shardviz.core.layout.rule_uses import AuditDiff
from shardviz.core.layout.rules import PathRules, Rule, Rules
from shardviz.core.layout.verdicts import Outcome, PathOutcome, PathVerdict, Verdict
from shardviz.picture.page import and_more, page, paragraphs, text_width
from shardviz.picture.picture import Label, Picture, make_tiles, no_tiles
from shardviz.picture.tables import NOT_SPLIT_GROUP, Bar, Cell, bars, matrix

MOST_ROWS = 200
FULL_ROWS = 24  # in longer tables, rules for other names share one line
VERDICT_LEGEND = ((0, "decides"), (1, "lost"), (2, "does not work"), (3, "does not apply"))
_VERDICT_GROUPS = {
    Outcome.APPLIED: 0, Outcome.UNSPLIT: 0, Outcome.SIZE_ONE: 0,
    Outcome.TAKEN: 1, Outcome.PART_TAKEN: 1, Outcome.OVERRIDDEN: 1,
    Outcome.INDIVISIBLE: 2, Outcome.MISSING_AXIS: 2,
}  # fmt: skip


def draw_spec(spec: Spec, title: str | None = None) -> Picture:
    """A spec: a tile per dimension, with the mesh axes that split it, major to minor.

    >>> draw_spec(Spec.parse("x, None, (y, z)")).tiles.label(2)
    'dimension 2\\ny, z'
    """
    axes = list(dict.fromkeys(spec.axes))
    words = [", ".join(mine) or _without_axes(spec, dim) for dim, mine in enumerate(spec.dims)]
    widths = [max(64.0, text_width(w, 8.0) + 20) for w in words]
    starts = np.cumsum([0.0, *(w + 4 for w in widths)])
    tiles = no_tiles()
    if words:
        tiles = make_tiles(
            starts[:-1],
            0,
            widths,
            38,
            [axes.index(m[0]) % NOT_SPLIT_GROUP if m else NOT_SPLIT_GROUP for m in spec.dims],
            text=[f"dimension {d}\n{w}" for d, w in enumerate(words)],
            hint=[f"dimension {d}: {w}" for d, w in enumerate(words)],
            radius=4.0,
        )
    dims = "; ".join(f"dimension {d} {w}" for d, w in enumerate(words)) or "no dimension is split"
    return page(
        tiles,
        [] if words else [Label(0, 8, "no dimension is split", "start", "note")],
        title=str(spec) if title is None else title,
        notes=[f"{mark}: {names}" for mark, names in _marks(spec)],
        size=(max(float(starts[-1]), 120.0), 38.0 if words else 14.0),
        alt=f"Spec {spec}: {dims}.",
        groups=10,
        facts={"kind": "spec"},
    )


def spec_text(spec: Spec, width: int) -> str:
    """A spec, then what splits each dimension."""
    dims = [
        f"dimension {d} → {', '.join(axes)}" if axes else f"dimension {d} {_without_axes(spec, d)}"
        for d, axes in enumerate(spec.dims)
    ]
    marks = [f"{mark} over {names}" for mark, names in _marks(spec)]
    return paragraphs([str(spec), " · ".join([*dims, *marks]) or "no dimension is split"], width)


def _without_axes(spec: Spec, dim: int) -> str:
    return "left to the compiler" if dim in spec.unconstrained else "not split"


def _marks(spec: Spec) -> list[tuple[str, str]]:
    marks = (("unreduced", spec.unreduced), ("reduced", spec.reduced))
    return [(mark, ", ".join(sorted(axes))) for mark, axes in marks if axes]


def draw_rules(rules: Rules, title: str | None = None) -> Picture:
    """A rule table: a row per rule, a column per mesh axis, a tile where the rule wants the axis.

    >>> draw_rules(Rules.of(("mlp", "model"), ("embed", None))).tiles.label(0)
    'model'
    """
    shown = rules.entries[:MOST_ROWS]
    axes = list(dict.fromkeys(a for r in shown for a in r.axes))
    cells = [cell for row, rule in enumerate(shown) for cell in _wanted_axes(row, rule, axes)]
    return matrix(
        [f"{row + 1:>{len(str(len(shown)))}}  {rule.logical}" for row, rule in enumerate(shown)],
        [*axes, "not split"],
        cells,
        remarks=_repeats(shown),
        title=plural(len(rules), "rule") if title is None else title,
        notes=and_more(len(rules) - len(shown), "rule"),
        alt=f"A table of {plural(len(rules), 'rule')}: {'; '.join(map(str, shown))}."
        if len(rules)
        else "A table without rules.",
        groups=10,
        facts={"kind": "rules"},
    )


def _wanted_axes(row: int, rule: Rule, axes: list[str]) -> list[Cell]:
    hint = f"rule {row + 1}: {rule}"
    if not rule.axes:
        return [Cell(row, len(axes), "not split", NOT_SPLIT_GROUP, hint)]
    many = len(rule.axes) > 1
    return [
        Cell(
            row, axes.index(a), f"{a} {n + 1}" if many else a, axes.index(a) % NOT_SPLIT_GROUP, hint
        )
        for n, a in enumerate(dict.fromkeys(rule.axes))
    ]


def _repeats(rules: tuple[Rule, ...]) -> list[str]:
    seen: dict[str, list[int]] = {}
    remarks = []
    for number, rule in enumerate(rules, 1):
        before = seen.setdefault(rule.logical, [])
        noun = "rules" if len(before) > 1 else "rule"
        remarks.append(f"repeats “{rule.logical}” of {noun} {joined(before)}" if before else "")
        before.append(number)
    return remarks


def rules_text(rules: Rules, width: int) -> str:
    """A numbered line per rule."""
    return _numbered(rules, "rule")


def _numbered(lines: Sequence[object], word: str) -> str:
    digits = len(str(len(lines)))
    numbered = [f"{i:>{digits}}  {line}" for i, line in enumerate(lines, 1)]
    return "\n".join([plural(len(lines), word), *numbered])


def draw_resolution(resolution: Resolution, title: str | None = None) -> Picture:
    """The rules and the dimensions of one array: a verdict in every cell, the spec at the end.

    >>> from shardviz.core.layout.resolution import resolve
    >>> found = resolve(("embed", "mlp"), [("mlp", "model"), ("embed", "model"), ("embed", None)])
    >>> picture = draw_resolution(found)
    >>> picture.tiles.label(2), picture.tiles.tooltip(2)[:50]
    ('used by dimension 1', 'dimension 0: rule 2 (embed → model) does not apply')
    """
    rules, decisions = resolution.rules, resolution.decisions
    rows = list(range(len(rules)))
    if len(rules) > FULL_ROWS:
        rows = [i for i in rows if rules[i].logical in resolution.names]
    rows = rows[:MOST_ROWS]
    others = sorted(set(range(len(rules))) - set(rows))
    cells = [
        _verdict_cell(row, d.dimension, d.verdicts[index])
        for row, index in enumerate(rows)
        for d in decisions
    ]
    dims = [f"dimension {d.dimension} {d.logical or ''}" for d in decisions]
    outcome = " · ".join(
        f"{dim} → {', '.join(d.axes)}" if d.axes else f"{dim} not split"
        for dim, d in zip(dims, decisions, strict=True)
    )
    notes: list[str | Label] = [outcome or "no dimensions"]
    if others:
        numbers = ids_text([i + 1 for i in others])
        notes.append(f"rules for other names, or not shown: {numbers}")
    notes += [Label(0, 0, p, "start", "note", "bad") for p in resolution.problems]
    return matrix(
        [f"{i + 1:>{len(str(len(rules)))}}  {rules[i]}" for i in rows],
        dims,
        cells,
        least=92.0,
        title=f"{resolution.spec} by {resolution.dialect.value} rules" if title is None else title,
        legend=VERDICT_LEGEND,
        notes=notes,
        alt=f"Verdicts of {plural(len(rules), 'rule')}. {resolution.findings}",
        colormap="verdicts",
        groups=4,
        facts={"kind": "resolution"},
    )


def _verdict_cell(row: int, dim: int, verdict: Verdict) -> Cell:
    group = _VERDICT_GROUPS.get(verdict.outcome, 3)
    return Cell(row, dim, verdict_word(verdict), group, f"dimension {dim}: {verdict}")


def verdict_word(verdict: Verdict) -> str:
    """A verdict in as few words as fit into a cell.

    >>> verdict_word(Verdict(0, "embed", (), Outcome.UNSPLIT, "keeps the dimension whole."))
    '✓ not split'
    """
    outcome = verdict.outcome
    if outcome is Outcome.APPLIED:
        return f"✓ {', '.join(verdict.axes)}"
    if outcome is Outcome.MISSING_AXIS:
        return f"✗ no axis {', '.join(verdict.absent)}"
    if outcome is Outcome.INDIVISIBLE and verdict.misfit is not None:
        return f"✗ not divisible by {verdict.misfit.parts:,}"
    if outcome in (Outcome.TAKEN, Outcome.PART_TAKEN) and verdict.taken:
        dims = ", ".join(str(d) for d in sorted({dim for _, dim, _ in verdict.taken}))
        return f"{'used' if outcome is Outcome.TAKEN else 'partly used'} by dimension {dims}"
    if outcome in (Outcome.DECIDED, Outcome.OVERRIDDEN) and verdict.by_rule is not None:
        word = "decided by" if outcome is Outcome.DECIDED else "replaced by"
        return f"{word} rule {verdict.by_rule + 1}"
    return {Outcome.UNSPLIT: "✓ not split", Outcome.SIZE_ONE: "✓ size 1"}.get(outcome, "–")


def resolution_text(resolution: Resolution, width: int) -> str:
    """The explanation of a resolution, then what is wrong with it."""
    return paragraphs([resolution.explain(), *(f"✗ {p}" for p in resolution.problems)], width)


def draw_remedies(remedies: Remedies, title: str | None = None) -> Picture:
    """A row per remedy: the bytes per device that it saves in all, the edit and its effect.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.resolution import resolve
    >>> found = resolve("mlp", [("mpl", "x")], mesh=make_mesh(x=2), shape=(8,)).remedies("split")
    >>> [label.text for label in draw_remedies(found).labels][:3]
    ['To split the array', 'saved per device', 'edit']
    """
    rows = [
        Bar(
            None if r.bytes_saved is None else max(r.bytes_saved, 0),
            "" if r.bytes_saved is None else bytes_text(r.bytes_saved),
            (f"{n}. {r.edit}", str(r.spec), plural(len(r.others), "other array")),
            hint=str(r),
        )
        for n, r in enumerate(remedies, 1)
    ]
    return bars(
        rows,
        ["saved per device", "edit", "the array then", "also changes"] if rows else ["", ""],
        title=f"To {remedies.want}" if title is None else title,
        notes=[remedies.reason] if remedies.reason else [],
        alt=remedies.explain(),
        facts={"kind": "remedies"},
    )


def remedies_text(remedies: Remedies, width: int) -> str:
    """A numbered paragraph per remedy, or why there is none."""
    return paragraphs(remedies.explain().splitlines(), width)


def draw_path_rules(rules: PathRules, title: str | None = None) -> Picture:
    """A table of paths: a row per pattern, a column per dimension, a tile where the spec has one.

    >>> table = PathRules.of([("mlp/.*/kernel", (None, "model"))])
    >>> [draw_path_rules(table).tiles.label(i) for i in (0, 1)]
    ['not split', 'model']
    """
    lines = rules.entries[:MOST_ROWS]
    axes = list(dict.fromkeys(a for r in lines for a in r.spec.axes))
    cells = [
        Cell(
            row,
            dim,
            ", ".join(names) or _without_axes(rule.spec, dim),
            axes.index(names[0]) % NOT_SPLIT_GROUP if names else NOT_SPLIT_GROUP,
            f"pattern {row + 1}: {rule}",
        )
        for row, rule in enumerate(lines)
        for dim, names in enumerate(rule.spec.dims)
    ]
    count = plural(len(rules), "pattern")
    return matrix(
        [f"{row + 1:>{len(str(len(lines)))}}  {shown(r.pattern)}" for row, r in enumerate(lines)],
        [f"dimension {d}" for d in range(max((r.spec.rank for r in lines), default=0))],
        cells,
        remarks=["" if r.spec.rank else "splits nothing" for r in lines],
        least=72.0,  # for the heads
        title=count if title is None else title,
        notes=and_more(len(rules) - len(lines), "pattern"),
        alt=f"A table of {count}: {'; '.join(map(str, lines))}."
        if lines
        else f"A table of {count}.",
        groups=10,
        facts={"kind": "path rules"},
    )


def path_rules_text(rules: PathRules, width: int) -> str:
    """A numbered line per pattern."""
    return _numbered(rules.entries, "pattern")


def draw_path_resolution(found: PathResolution, title: str | None = None) -> Picture:
    """The patterns for one path: a verdict on each; of many, those that match are shown.

    >>> from shardviz.core.layout.path_rules import resolve_path
    >>> table = PathRules.of([("bias", ()), ("kernel", (None, "model")), (".*", ())])
    >>> picture = draw_path_resolution(resolve_path("mlp/kernel", table))
    >>> [picture.tiles.label(i) for i in range(3)]
    ['–', '✓ matched', 'shadowed by 2']
    """
    rows = list(found.verdicts)
    if len(rows) > FULL_ROWS:
        rows = [v for v in rows if v.outcome is not PathOutcome.NO_MATCH]
    rows = rows[:MOST_ROWS]
    at = {v.rule for v in rows}
    others = [i + 1 for i in range(len(found.rules)) if i not in at]
    notes: list[str | Label] = []
    if others:
        notes.append(f"patterns that do not match, or not shown: {ids_text(others)}")
    if found.problem:
        notes.append(Label(0, 0, found.problem, "start", "note", "bad"))
    return matrix(
        [f"{v.rule + 1:>{len(str(len(found.rules)))}}  {shown(v.pattern)}" for v in rows],
        [shown(found.path)[1:-1]],
        [_path_cell(row, verdict) for row, verdict in enumerate(rows)],
        remarks=[str(v.spec) for v in rows],
        least=92.0,
        title=f"{'unknown' if found.spec is None else found.spec} by {found.dialect.value} patterns"
        if title is None
        else title,
        legend=VERDICT_LEGEND,
        notes=notes,
        alt=f"Verdicts of {plural(len(found.rules), 'pattern')}. {found.explain()}",
        colormap="verdicts",
        groups=4,
        facts={"kind": "path resolution"},
    )


def _path_cell(row: int, verdict: PathVerdict) -> Cell:
    outcome, word, group = verdict.outcome, verdict.kind, 2
    if outcome in (PathOutcome.MATCHED, PathOutcome.ONE_ELEMENT):
        word, group = f"✓ {word}", 0
    elif outcome is PathOutcome.SHADOWED:
        word = f"shadowed by {'' if verdict.by_rule is None else verdict.by_rule + 1}"
        group = 1
    elif outcome is PathOutcome.NO_MATCH:
        word, group = "–", 3
    else:
        word = f"✗ {word}"
    return Cell(row, 0, word, group, str(verdict))


def draw_audit_diff(found: AuditDiff, title: str | None = None) -> Picture:
    """Where two dialects or tables differ: a row per array, a column for each of them.

    >>> from shardviz.core.layout.audit import audit
    >>> one = audit([("w", (8, 8), "embed mlp")], [("mlp", "model")], "data=2, model=2")
    >>> [draw_audit_diff(one.diff("nnx")).tiles.label(i) for i in (0, 1)]
    ["P(None, 'model')", "P('embed', 'model')"]
    """
    rows = found.rows[:MOST_ROWS]
    cells = [
        Cell(row, column, "unknown" if spec is None else str(spec), column, difference.why)
        for row, difference in enumerate(rows)
        for column, spec in enumerate((difference.first, difference.second))
    ]
    return matrix(
        [r.path for r in rows],
        list(found.labels),
        cells,
        least=92.0,
        title=found.explain().partition("\n")[0] if title is None else title,
        notes=and_more(len(found.rows) - len(rows), "array"),
        alt=found.explain(),
        groups=10,
        facts={"kind": "audit difference"},
    )
