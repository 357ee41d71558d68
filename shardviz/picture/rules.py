"""Tables: a spec, rules over mesh axes, and the verdict of every rule on every dimension."""

from __future__ import annotations

import numpy as np

from shardviz.core.format import plural
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.resolution import Resolution
from shardviz.core.layout.rules import Rule, Rules
from shardviz.core.layout.verdicts import Outcome, Verdict
from shardviz.picture.ids import ids_text
from shardviz.picture.page import page, text_width
from shardviz.picture.picture import Label, Picture, make_tiles, no_tiles
from shardviz.picture.tables import Cell, matrix

MOST_ROWS = 200
FULL_ROWS = 24  # in longer tables, rules that speak of other names share one line
NOT_SPLIT_GROUP = 8  # the grey of the palette
VERDICT_LEGEND = ((0, "decides"), (1, "lost"), (2, "does not work"), (3, "has no say"))
_VERDICT_GROUPS = {
    Outcome.APPLIED: 0, Outcome.UNSPLIT: 0, Outcome.SIZE_ONE: 0,
    Outcome.TAKEN: 1, Outcome.PART_TAKEN: 1, Outcome.OVERRIDDEN: 1,
    Outcome.INDIVISIBLE: 2, Outcome.MISSING_AXIS: 2,
}  # fmt: skip


def draw_spec(spec: Spec, title: str | None = None) -> Picture:
    """A spec: a tile a dimension, with the mesh axes that split it, major to minor.

    >>> draw_spec(Spec.parse("x, None, (y, z)")).tiles.label(2)
    'dim 2\\ny, z'
    """
    axes = list(dict.fromkeys(spec.axes))
    words = [
        ", ".join(mine) or ("left to the compiler" if dim in spec.unconstrained else "whole")
        for dim, mine in enumerate(spec.dims)
    ]
    widths = [max(64.0, text_width(w, 8.0) + 20) for w in words]
    starts = np.cumsum([0.0, *(w + 4 for w in widths)])
    said = "; ".join(f"dim {d} {w}" for d, w in enumerate(words)) or "all whole"
    marks = (("unreduced", spec.unreduced), ("reduced", spec.reduced))
    tiles = no_tiles()
    if words:
        tiles = make_tiles(
            starts[:-1],
            0,
            widths,
            38,
            [axes.index(m[0]) % NOT_SPLIT_GROUP if m else NOT_SPLIT_GROUP for m in spec.dims],
            text=[f"dim {d}\n{w}" for d, w in enumerate(words)],
            hint=[f"dim {d}: {w}" for d, w in enumerate(words)],
            radius=4.0,
        )
    return page(
        tiles,
        [] if words else [Label(0, 8, "every dimension whole", "start", "note")],
        title=str(spec) if title is None else title,
        notes=[f"{mark}: {', '.join(sorted(names))}" for mark, names in marks if names],
        size=(max(float(starts[-1]), 120.0), 38.0 if words else 14.0),
        alt=f"Spec {spec}: {said}.",
        groups=10,
        facts={"kind": "spec"},
    )  # fmt: skip


def draw_rules(rules: Rules, title: str | None = None) -> Picture:
    """A rule table: a row a rule, a column a mesh axis, a tile where the rule wants the axis.

    >>> draw_rules(Rules.of(("mlp", "model"), ("embed", None))).tiles.label(0)
    'model'
    """
    shown = rules.entries[:MOST_ROWS]
    axes = list(dict.fromkeys(a for r in shown for a in r.axes))
    cells = [cell for row, rule in enumerate(shown) for cell in _wants(row, rule, axes)]
    more = len(rules) - len(shown)
    return matrix(
        [f"{row + 1:>{len(str(len(shown)))}}  {rule.logical}" for row, rule in enumerate(shown)],
        [*axes, "whole"],
        cells,
        remarks=_repeats(shown),
        title=plural(len(rules), "rule") if title is None else title,
        notes=[f"and {plural(more, 'more rule')}"] if more else [],
        alt=f"A table of {plural(len(rules), 'rule')}: {'; '.join(map(str, shown))}."
        if len(rules)
        else "A table without rules.",
        groups=10,
        facts={"kind": "rules"},
    )


def _wants(row: int, rule: Rule, axes: list[str]) -> list[Cell]:
    hint = f"rule {row + 1}: {rule}"
    if not rule.axes:
        return [Cell(row, len(axes), "whole", NOT_SPLIT_GROUP, hint)]
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
    for index, rule in enumerate(rules):
        before = seen.setdefault(rule.logical, [])
        again = " and ".join(str(i + 1) for i in before)
        remarks.append(f"repeats “{rule.logical}”, after {again}" if before else "")
        before.append(index)
    return remarks


def draw_resolution(found: Resolution, title: str | None = None) -> Picture:
    """Rules against the dimensions of one array: a verdict in every cell, the spec at the end.

    >>> from shardviz.core.layout.resolution import resolve
    >>> found = resolve(("embed", "mlp"), [("mlp", "model"), ("embed", "model"), ("embed", None)])
    >>> picture = draw_resolution(found)
    >>> picture.tiles.label(2), picture.tiles.tooltip(2)[:44]
    ('taken by dim 1', 'dim 0: rule 2 (embed → model) does not apply')
    """
    decisions = found.decisions
    speaking = [i for i, r in enumerate(found.rules) if r.logical in found.names]
    rows = list(range(len(found.rules))) if len(found.rules) <= FULL_ROWS else speaking
    rows = rows[:MOST_ROWS]
    silent = sorted(set(range(len(found.rules))) - set(rows))
    cells = [
        _verdict_cell(row, d.dimension, d.verdicts[index])
        for row, index in enumerate(rows)
        for d in decisions
    ]
    names = [f"{i + 1:>{len(str(len(found.rules)))}}  {found.rules[i]}" for i in rows]
    outcome = " · ".join(
        f"dim {d.dimension} {_named(d.logical)} → {', '.join(d.axes) or 'whole'}" for d in decisions
    )
    said = ids_text([i + 1 for i in silent])
    more = [f"rules of other names, or beyond the page: {said}"] if silent else []
    problems = [Label(0, 0, p, "start", "note", "bad") for p in found.problems]
    return matrix(
        names,
        [f"dim {d.dimension} {_named(d.logical)}" for d in decisions],
        cells,
        least=92.0,
        title=f"{found.spec} by {found.dialect.value} rules" if title is None else title,
        legend=VERDICT_LEGEND,
        notes=[outcome, *more, *problems] if decisions else ["no dimensions", *more],
        alt=f"Verdicts of {plural(len(found.rules), 'rule')}. {found.explain()}",
        hue="verdicts",
        groups=4,
        facts={"kind": "resolution"},
    )


def _named(name: object) -> str:
    return "" if name is None else str(name)


def _verdict_cell(row: int, dim: int, verdict: Verdict) -> Cell:
    group = _VERDICT_GROUPS.get(verdict.outcome, 3)
    return Cell(row, dim, verdict_word(verdict), group, f"dim {dim}: {verdict}")


def verdict_word(verdict: Verdict) -> str:
    """A verdict in as few words as fit into a cell.

    >>> verdict_word(Verdict(0, "embed", (), Outcome.UNSPLIT, "keeps the dimension whole."))
    '✓ whole'
    """
    outcome = verdict.outcome
    if outcome is Outcome.APPLIED:
        return f"✓ {', '.join(verdict.axes)}"
    if outcome is Outcome.MISSING_AXIS:
        return f"✗ no axis {', '.join(verdict.absent)}"
    if outcome is Outcome.INDIVISIBLE and verdict.misfit is not None:
        return f"✗ {verdict.misfit.size:,} over {verdict.misfit.parts:,}"
    if outcome in (Outcome.TAKEN, Outcome.PART_TAKEN) and verdict.taken:
        dims = ", ".join(str(d) for d in sorted({dim for _, dim, _ in verdict.taken}))
        return f"{'taken' if outcome is Outcome.TAKEN else 'part taken'} by dim {dims}"
    if outcome in (Outcome.DECIDED, Outcome.OVERRIDDEN) and verdict.by_rule is not None:
        word = "after" if outcome is Outcome.DECIDED else "replaced by"
        return f"{word} rule {verdict.by_rule + 1}"
    return {Outcome.UNSPLIT: "✓ whole", Outcome.SIZE_ONE: "✓ size 1"}.get(outcome, "–")
