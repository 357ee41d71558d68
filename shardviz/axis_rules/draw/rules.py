"""Pictures of specs, rule tables and resolutions.

A resolution is drawn as a matrix of verdicts. With Rules, there is one verdict per rule
and dimension; with PathRules, one verdict per pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardviz.axis_rules.path_rules import PathResolution
from shardviz.axis_rules.resolution import Resolution
from shardviz.axis_rules.rules import PathRule, PathRules, Rule, Rules
from shardviz.axis_rules.verdicts import BROKEN as BROKEN_OUTCOMES
from shardviz.axis_rules.verdicts import (
    Applied,
    DecidedBefore,
    Indivisible,
    MissingAxis,
    Outcome,
    Overridden,
    Shadowed,
    Taken,
    Verdict,
)
from shardviz.axis_rules.words.rules import copies, resolution_findings
from shardviz.base.format import by_count, ids_text, joined, plural, shown
from shardviz.base.partition_spec import Spec, SpecOnMesh
from shardviz.draw import words as wording
from shardviz.draw.page import (
    and_more,
    note,
    page,
    paragraphs,
    sentences,
    side_by_side,
    text_width,
    titled,
)
from shardviz.draw.picture import Label, Picture
from shardviz.draw.tables import (
    NOT_SPLIT_GROUP,
    Cell,
    Rectangle,
    matrix,
    rectangle_tiles,
)
from shardviz.hardware.draw.mesh import draw_mesh, mesh_text

MOST_ROWS = 200
# In longer tables, rules for other names have no row; a note lists them.
FULL_ROWS = 24
# The minimum width of a column of verdicts, in points.
WIDE = 92.0
# Groups of the colormap "verdicts": good, lost, broken, other.
DECIDES, LOST, BROKEN, OTHER = 0, 1, 2, 3
LEGEND = (
    (DECIDES, "decides"),
    (LOST, "lost"),
    (BROKEN, "does not work"),
    (OTHER, "does not apply"),
)
_LOST = (Outcome.TAKEN, Outcome.PART_TAKEN, Outcome.OVERRIDDEN, Outcome.SHADOWED)
_WORDS = {
    Outcome.UNSPLIT: "not split",
    Outcome.SIZE_ONE: "size 1",
    Outcome.TAKEN: "used",
    Outcome.PART_TAKEN: "partly used",
    Outcome.DECIDED: "decided",
    Outcome.OVERRIDDEN: "replaced",
    Outcome.OTHER_NAME: "–",
    Outcome.NO_MATCH: "–",
}


def draw_spec(spec: Spec, title: str | None = None) -> Picture:
    """Draws a spec as one tile per dimension, with the mesh axes that split it."""
    groups, tiles, x, labels = _axis_groups([spec]), [], 0.0, []
    height = 38.0
    for dim, axes in enumerate(spec.dims):
        words = _split_by(spec, dim)
        width = max(64.0, text_width(words, 8.0) + 20)
        text, group = f"dimension {dim}\n{words}", _group(groups, axes)
        tiles.append(Rectangle(x, 0.0, width, height, group, text))
        x += width + 4
    if not tiles:
        height = 14.0
        labels = [Label(0, 8, wording.NO_DIMENSION, "start", "note")]
    return page(
        rectangle_tiles(tiles, radius=4.0),
        labels,
        title=titled(title, str(spec)),
        notes=[f"{mark}: {names}" for mark, names in _marks(spec)],
        size=(max(x, 120.0), height),
        alt=sentences(_spec_lines(spec)),
        groups=10,
    )


def spec_text(spec: Spec, width: int) -> str:
    """Formats a spec, and the mesh axes that split each dimension."""
    return paragraphs(_spec_lines(spec), width)


def draw_spec_on_mesh(sharding: SpecOnMesh, title: str | None = None) -> Picture:
    """Draws a spec above the devices of its mesh."""
    parts = (draw_spec(sharding.spec, ""), draw_mesh(sharding.mesh))
    return side_by_side(
        parts, title=titled(title, str(sharding)), notes=copies(sharding)
    )


def spec_on_mesh_text(sharding: SpecOnMesh, width: int) -> str:
    """Formats a spec, the axes that hold copies, and the mesh."""
    lines = [*_spec_lines(sharding.spec), *copies(sharding)]
    return f"{paragraphs(lines, width)}\n{mesh_text(sharding.mesh, width)}"


def _spec_lines(spec: Spec) -> list[str]:
    parts = []
    for dim, axes in enumerate(spec.dims):
        name = f"dimension {dim}"
        if axes:
            name += " →"
        parts.append(f"{name} {_split_by(spec, dim)}")
    for mark, names in _marks(spec):
        parts.append(f"{mark} over {names}")
    return [str(spec), " · ".join(parts) or wording.NO_DIMENSION]


def _split_by(spec: Spec, dim: int) -> str:
    """Formats the mesh axes that split a dimension, or notes that none does."""
    if spec.dims[dim]:
        return ", ".join(spec.dims[dim])
    if dim in spec.unconstrained:
        return wording.LEFT_TO_COMPILER
    return "not split"


def _marks(spec: Spec) -> list[tuple[str, str]]:
    marks = []
    for mark, axes in spec.marks:
        if mark == "unreduced" and spec.unreduced_kind != "sum":
            mark += f" {spec.unreduced_kind}"
        marks.append((mark, ", ".join(axes)))
    return marks


def _axis_groups(specs: Sequence[Spec | Rule | PathRule]) -> dict[str, int]:
    """Returns mesh axis -> group of its colour, in order of first use."""
    groups: dict[str, int] = {}
    for spec in specs:
        for axis in spec.axes:
            groups.setdefault(axis, len(groups) % NOT_SPLIT_GROUP)
    return groups


def _group(groups: dict[str, int], axes: Sequence[str]) -> int:
    """Returns the colour group of a dimension's major mesh axis."""
    if not axes:
        return NOT_SPLIT_GROUP
    return groups[axes[0]]


def _numbered(number: int, count: int, words: object) -> str:
    return f"{number:>{len(str(count))}}  {words}"


def draw_rules(rules: Rules | PathRules, title: str | None = None) -> Picture:
    """Draws a table with one row per rule or pattern, and a tile for each mesh axis.

    For Rules, columns are mesh axes; for PathRules, columns are dimensions.
    """
    lines = rules.entries[:MOST_ROWS]
    groups = _axis_groups(lines)
    # The columns are mesh axes in order of first use.
    columns = [*groups, "not split"]
    if isinstance(rules, PathRules):
        rank = max((rule.spec.rank for rule in rules.entries[:MOST_ROWS]), default=0)
        columns = [f"dimension {dim}" for dim in range(rank)]
    names, remarks, cells = [], [], []
    earlier: dict[str, list[int]] = {}
    for row, line in enumerate(lines):
        if isinstance(line, PathRule):
            names.append(_numbered(row + 1, len(lines), shown(line.pattern)))
            remarks.append("" if line.spec.rank else "splits nothing")
            for dim, axes in enumerate(line.spec.dims):
                words = _split_by(line.spec, dim)
                cells.append(Cell(row, dim, words, _group(groups, axes)))
            continue
        names.append(_numbered(row + 1, len(lines), line.logical))
        remarks.append(_repeats(line, earlier.setdefault(line.logical, [])))
        earlier[line.logical].append(row + 1)
        # A rule without axes also gets a tile, because it decides too.
        if not line.axes:
            cells.append(Cell(row, len(groups), "not split", NOT_SPLIT_GROUP))
        for place, axis in enumerate(dict.fromkeys(line.axes), 1):
            # Number the axes, so that the major one is recognisable.
            text = axis
            if len(line.axes) > 1:
                text += f" {place}"
            cells.append(Cell(row, columns.index(axis), text, groups[axis]))
    noun, count = _noun(rules), plural(len(rules), _noun(rules))
    return matrix(
        names,
        columns,
        cells,
        remarks=remarks,
        least=72.0,  # wide enough for the column heads
        title=titled(title, count),
        notes=and_more(len(rules) - len(names), noun),
        alt=sentences([count, *map(str, lines)]),
        groups=10,
    )


def _repeats(rule: Rule, earlier: Sequence[int]) -> str:
    if not earlier:
        return ""
    noun = by_count(len(earlier), "rule", "rules")
    return f"repeats “{rule.logical}” of {noun} {joined(earlier)}"


def _noun(rules: Rules | PathRules) -> str:
    return "rule" if isinstance(rules, Rules) else "pattern"


def rules_text(rules: Rules | PathRules, width: int) -> str:
    """Formats a table as one numbered line per rule or pattern."""
    lines = [plural(len(rules), _noun(rules))]
    for number, line in enumerate(rules.entries, 1):
        lines.append(_numbered(number, len(rules), line))
    return "\n".join(lines)


def draw_resolution(resolution: Resolution, title: str | None = None) -> Picture:
    """Draws the verdict of every rule on every dimension of an array."""
    rules, columns, outcome, verdicts = resolution.rules, [], [], []
    # In a long table, most rules are for other names; a note lists these.
    rows = list(range(len(rules)))
    if len(rules) > FULL_ROWS:
        rows = [i for i in rows if rules[i].logical in resolution.names]
    rows = rows[:MOST_ROWS]
    for decision in resolution.decisions:
        verdicts.append([decision.verdicts[row] for row in rows])
        columns.append(f"dimension {decision.dimension} {decision.logical or ''}")
        split = "not split"
        if decision.axes:
            split = f"→ {', '.join(decision.axes)}"
        outcome.append(f"{columns[-1]} {split}")
    notes: list[str | Label] = [" · ".join(outcome) or "no dimensions"]
    if hidden := _without(rows, len(rules)):
        notes.append(wording.other_rules(hidden))
    notes += [note(str(problem), "bad") for problem in resolution.problems]
    return _verdicts(
        [_numbered(row + 1, len(rules), rules[row]) for row in rows],
        columns,
        verdicts,
        title=titled(title, f"{resolution.spec} by {resolution.dialect.name} rules"),
        notes=notes,
        alt=sentences([plural(len(rules), "rule"), *resolution_findings(resolution)]),
    )


def draw_path_resolution(
    resolution: PathResolution, title: str | None = None
) -> Picture:
    """Draws the patterns' verdicts for a path; in a long table, only matching ones."""
    verdicts, count = list(resolution.verdicts), len(resolution.rules)
    if count > FULL_ROWS:
        verdicts = [v for v in verdicts if v.outcome is not Outcome.NO_MATCH]
    verdicts = verdicts[:MOST_ROWS]
    names, remarks = [], []
    for verdict in verdicts:
        line = resolution.rules[verdict.rule]
        names.append(_numbered(verdict.rule + 1, count, shown(line.pattern)))
        remarks.append(str(line.spec))
    notes: list[str | Label] = []
    if hidden := _without([verdict.rule for verdict in verdicts], count):
        notes.append(wording.other_patterns(hidden))
    if resolution.problem:
        notes.append(note(str(resolution.problem), "bad"))
    return _verdicts(
        names,
        [shown(resolution.path)[1:-1]],
        [verdicts],
        remarks=remarks,
        title=titled(
            title,
            f"{resolution.spec or 'unknown'} by {resolution.dialect.name} patterns",
        ),
        notes=notes,
        alt=sentences([plural(count, "pattern"), resolution.explain()]),
    )


def _without(rows: Sequence[int], count: int) -> str:
    """Formats the numbers of the rules that are not shown."""
    hidden = [i + 1 for i in range(count) if i not in rows]
    return ids_text(hidden) if hidden else ""


def _verdicts(
    names: Sequence[str],
    columns: Sequence[str],
    verdicts: Sequence[Sequence[Verdict]],
    **options: Any,
) -> Picture:
    """Draws verdicts as a matrix: a row per rule, a column per list of verdicts."""
    cells = []
    for row, of_row in enumerate(zip(*verdicts, strict=True)):
        for column, verdict in enumerate(of_row):
            group, word = _group_of(verdict), verdict_word(verdict)
            cells.append(Cell(row, column, word, group))
    style = {"least": WIDE, "legend": LEGEND, "colormap": "verdicts", "groups": 4}
    return matrix(names, columns, cells, **style, **options)


def _group_of(verdict: Verdict) -> int:
    """Returns the colour group of a verdict."""
    # Several matches, and invalid patterns, are errors in Keras.
    if verdict.outcome in (*BROKEN_OUTCOMES, Outcome.SEVERAL, Outcome.INVALID):
        return BROKEN
    if verdict.decides:
        return DECIDES
    if verdict.outcome in _LOST:
        return LOST
    return OTHER


def verdict_word(verdict: Verdict) -> str:
    """Formats a verdict briefly enough for a cell."""
    word = _WORDS.get(verdict.outcome, verdict.kind)
    match verdict:
        case Applied(outcome=Outcome.APPLIED):
            word = ", ".join(verdict.axes)
        case MissingAxis(absent=absent):
            word = f"no axis {', '.join(absent)}"
        case Indivisible(misfit=misfit):
            word = wording.indivisible(misfit.parts)
        case Taken(taken=taken):
            dims = sorted({dim for _, dim, _ in taken})
            word = f"{word} by dimension {', '.join(map(str, dims))}"
        case DecidedBefore(by_rule=by) | Overridden(by_rule=by) | Shadowed(by_rule=by):
            word = f"{word} by {by + 1}"
    group = _group_of(verdict)
    return {DECIDES: "✓ ", BROKEN: "✗ "}.get(group, "") + word


def resolution_text(resolution: Resolution, width: int) -> str:
    """Formats the explanation of a resolution, then its problems."""
    problems = [f"✗ {problem}" for problem in resolution.problems]
    return paragraphs([resolution.explain(), *problems], width)
