"""The view Rules as plain data: the grid of rules and dimensions, its cells, remedies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from shardviz.core.layout.rules.remedies import Remedy
from shardviz.core.layout.rules.requests import Request, kinds_of
from shardviz.core.layout.rules.rule_uses import RuleUse, rule_summary
from shardviz.core.layout.rules.verdicts import Outcome
from shardviz.core.wording import explorer as wording
from shardviz.widgets.document import Document
from shardviz.widgets.session import Session
from shardviz.widgets.session_view import filled

MOST_REMEDIES = 5
#: A saved page holds the sentences of so many cells.
MOST_SAVED_CELLS = 400
NOTHING = "."
#: A letter for each outcome; the page has its sign, words and colour (`rule_table.js`).
LETTERS = {
    Outcome.APPLIED: "s",
    Outcome.UNSPLIT: "u",
    Outcome.SIZE_ONE: "1",
    Outcome.INDIVISIBLE: "x",
    Outcome.MISSING_AXIS: "x",
    Outcome.REPEATED: "x",
    Outcome.OTHER_NAME: NOTHING,
    Outcome.DECIDED: "d",
    Outcome.TAKEN: "t",
    Outcome.PART_TAKEN: "t",
    Outcome.OVERRIDDEN: "o",
}


# --- the grid -------------------------------------------------------------------------


class _Column(NamedTuple):
    """The arrays of the same names, shape and spec: one column of the grid."""

    array: int  # the number of the first of them
    more: int  # how many others there are
    request: Request


def rule_grid(session: Session) -> dict[str, Any]:
    """The effect of every rule, each with the number of its line of text.

    A row is shown beside its line only where the text has one rule per line.
    """
    document = session.now
    columns = _columns(document)
    grid: dict[str, Any] = {
        "aligned": False,
        "rows": [],
        "columns": [_column_view(column) for column in columns],
    }
    # Over the whole model: what no opened array needs may be for another leaf.
    kinds = [kind for kind, _ in kinds_of(session.audit.rows)]
    uses = rule_summary(kinds, document.rules)
    lines = []
    for number, line in enumerate(document.text["rules"].split("\n")):
        if line.strip() and not line.strip().startswith("#"):
            lines.append(number)
    if len(lines) != len(uses) or "rules" in document.errors:
        return grid
    letters = [_letters(column.request, len(uses)) for column in columns]
    for rule, (line, use) in enumerate(zip(lines, uses, strict=True)):
        cells = "".join(of_column[rule] for of_column in letters)
        grid["rows"].append({"line": line, **_row(use), "cells": cells})
    return {**grid, "aligned": True}


def _columns(document: Document) -> list[_Column]:
    """The arrays with logical names; those that are alike share a column."""
    alike: dict[Any, list[int]] = {}
    requests = document.program.requests
    for number, request in enumerate(requests):
        array = request.array
        if array.rank and array.logical is not None:
            key = (array.logical, array.shape, array.spec)
            alike.setdefault(key, []).append(number)
    return [_Column(n[0], len(n) - 1, requests[n[0]]) for n in alike.values()]


def _column_view(column: _Column) -> dict[str, Any]:
    """One array in the head of the grid, and in its last row how it is split."""
    request = column.request
    unmatched = []
    if request.resolution is not None and not request.spec_wins:
        unmatched = [dim for dim, _, _ in request.resolution.unmatched()]
    return {
        "array": column.array,
        "name": request.array.name,
        "dims": ["_" if n is None else str(n) for n in request.array.logical or ()],
        "spec": str(request.spec or ""),
        **filled(
            more=column.more,
            problem=request.problem,
            typed=request.spec_wins,
            unmatched=unmatched,
        ),
    }


def _letters(request: Request, rules: int) -> list[str]:
    """For every rule a text with a letter for each dimension."""
    found = request.resolution
    if found is None:
        return [NOTHING * request.array.rank] * rules
    rows = []
    for rule, entry in enumerate(found.rules):
        row = ""
        for dim, name in enumerate(found.names):
            # Most rules are for another name, which needs no verdict.
            if entry.logical == name:
                row += LETTERS[found.verdict(dim, rule).outcome]
            else:
                row += NOTHING
        rows.append(row)
    return rows


def _row(use: RuleUse) -> dict[str, Any]:
    """Whether a rule is ever used, and which arrays it does not decide, and why."""
    reasons = [f"{name}: {one.reason}" for name, one in (*use.broken, *use.lost)]
    note = "\n".join(reasons) or str(use.never or "")
    return filled(never=use.never is not None, note=note)


# --- one cell -------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A cell of the grid.

    Attributes:
        rule: the number of the rule; -1 for the whole dimension.
        array: the number of the array.
        dim: the dimension.
    """

    rule: int
    array: int
    dim: int

    @staticmethod
    def parse(text: str) -> Cell:
        """A cell as the page names it: `rule:array:dimension`; `""` where there is none."""
        rule, array, dim = map(int, (text or "-1:-1:-1").split(":"))
        return Cell(rule, array, dim)

    def request(self, document: Document) -> Request | None:
        """The array that it is of; None where there is no such cell any more."""
        requests = document.program.requests
        if not 0 <= self.array < len(requests):
            return None
        request = requests[self.array]
        if not 0 <= self.dim < request.array.rank:
            return None
        return request

    def words(self, document: Document) -> tuple[str, str]:
        """What the rule did, in a few words and in a sentence."""
        request = document.program.requests[self.array]
        where = wording.where_in_rules(request, self.dim)
        found = request.resolution
        if found is None:
            return where, wording.why_split(request, self.dim, _by_path(document, self))
        if self.rule >= len(found.rules):
            return where, wording.GONE_RULE
        if self.rule < 0:
            said = found.explain_dimension(self.dim)
            return where, wording.with_own_spec(said, request)
        verdict = found.verdict(self.dim, self.rule)
        head = wording.RULE_HEAD.format(self.rule + 1, where, verdict.kind)
        return head, wording.with_own_spec(str(verdict), request)


def _by_path(document: Document, cell: Cell) -> bool:
    """Whether the spec of a cell's array comes from a table of paths."""
    model = document.model
    return model is not None and document.arrays[cell.array].name in model.by_path


@dataclass(frozen=True)
class CellRemedies:
    """The smallest edits that split the dimension of a cell, and what the page shows.

    The reason says why there are none; `""` also where the dimension is split already.
    """

    found: tuple[Remedy, ...] = ()
    views: tuple[dict[str, Any], ...] = ()
    reason: str = ""


def cell_view(
    document: Document, text: str, remedies: CellRemedies | None = None
) -> dict[str, Any]:
    """The chosen cell: what the rule did there, and why. Empty where there is none."""
    cell = Cell.parse(text)
    if cell.request(document) is None:
        return {}
    head, sentence = cell.words(document)
    view: dict[str, Any] = {"key": text, "head": head, "text": sentence}
    if remedies is not None:
        view["remedies"] = list(remedies.views)
        view.update(filled(reason=remedies.reason))
    return view


def cell_remedies(session: Session, text: str) -> CellRemedies:
    """The edits that split the dimension of a cell, by resolving the whole model again."""
    document, cell = session.now, Cell.parse(text)
    if cell.request(document) is None:
        return CellRemedies()
    name = document.arrays[cell.array].name
    row = next(row for row in session.audit.rows if row.path == name)
    if row.layout is not None and row.layout.block_counts[cell.dim] > 1:
        return CellRemedies()
    if document.model is not None and _by_path(document, cell):
        leaf = [array.name for array in document.model.arrays].index(name)
        return CellRemedies(reason=wording.PATHS_NOT_EDITABLE.format(leaf, cell.dim))
    search = row.remedies(f"split {cell.dim}")
    found, views = tuple(search.items[:MOST_REMEDIES]), []
    for remedy in found:
        saves = row.layout is not None and (remedy.bytes_saved or 0) > 0
        view = {"edit": remedy.edit, "spec": str(remedy.spec), "saves": saves}
        view["memory"] = wording.remedy_memory(remedy, row)
        views.append({**view, "others": wording.remedy_others(remedy)})
    return CellRemedies(found, tuple(views), search.reason or "")


def saved_cells(document: Document) -> dict[str, list[str]]:
    """The sentences of the cells that have something to say, for a saved page."""
    cells: dict[str, list[str]] = {}
    rules = range(len(document.rules))
    for column in _columns(document):
        letters = _letters(column.request, len(document.rules))
        for dim in range(column.request.array.rank):
            speaking = [rule for rule in rules if letters[rule][dim] != NOTHING]
            for rule in (-1, *speaking):
                if len(cells) >= MOST_SAVED_CELLS:
                    return cells
                words = Cell(rule, column.array, dim).words(document)
                cells[f"{rule}:{column.array}:{dim}"] = list(words)
    return cells
