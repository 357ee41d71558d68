"""The view Rules as plain data: every rule for every dimension of every array, and one cell of it.

Arrays with the same names and shape have the same verdicts, so they share a column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardviz.core.format import bytes_text, joined
from shardviz.core.layout.array_spec import format_names
from shardviz.core.layout.audit import Audit, RuleUse, rule_summary
from shardviz.core.layout.resolution import Request
from shardviz.core.layout.verdicts import Outcome
from shardviz.widgets.session import Session

SHOWN_NAMES = 3
MOST_REMEDIES = 5
MOST_SAVED_CELLS = 400  # whose sentences a saved page holds
NOTHING = "."
#: A letter for each kind of verdict; the page has its sign, words and colour (`rule_table.js`).
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


def rule_grid(session: Session) -> dict[str, Any]:
    """The effect of every rule, each with the number of its line of text.

    A row is shown beside its line only where the text has one rule per line.
    """
    summary = rule_summary(session.program.requests, session.rules)
    lines = session.text["rules"].split("\n")
    numbers = [
        i for i, line in enumerate(lines) if line.strip() and not line.strip().startswith("#")
    ]
    aligned = len(numbers) == len(summary) and "rules" not in session.errors
    columns = tuple(_columns(session))
    shown = {"columns": [_column(index, more, request) for index, more, request in columns]}
    if not aligned:
        return {"aligned": False, "rows": [], **shown}
    cells = [_letters(request, len(summary)) for _, _, request in columns]
    rows = [
        {"line": line, **_row(use), "cells": "".join(letters[rule] for letters in cells)}
        for rule, (line, use) in enumerate(zip(numbers, summary, strict=True))
    ]
    return {"aligned": True, "rows": rows, **shown}


def _columns(session: Session) -> Iterator[tuple[int, int, Request]]:
    """The arrays with verdicts: the number of the first of those alike, how many more, and it."""
    alike: dict[Any, list[int]] = {}
    requests = session.program.requests
    for i, request in enumerate(requests):
        array = request.array
        if array.rank and array.logical is not None:
            alike.setdefault((array.logical, array.shape, array.spec), []).append(i)
    for numbers in alike.values():
        yield numbers[0], len(numbers) - 1, requests[numbers[0]]


def _column(index: int, more: int, request: Request) -> dict[str, Any]:
    """One array in the head of the grid, and in its last row how it is split."""
    names = request.array.logical or ()
    column: dict[str, Any] = {
        "array": index,
        "name": request.array.name,
        "dims": ["_" if n is None else str(n) for n in names],
        "spec": "" if request.spec is None else str(request.spec),
    }
    if more:
        column["more"] = more
    if request.problem:
        column["problem"] = request.problem
    if request.spec_wins:
        column["typed"] = True
    missing = [] if request.resolution is None else [d for d, *_ in request.resolution.unmatched()]
    if missing and not request.spec_wins:
        column["unmatched"] = missing
    return column


def _letters(request: Request, rules: int) -> list[str]:
    """For every rule a text with a letter for each dimension."""
    found = request.resolution
    if found is None:  # the names cannot be resolved: no rule has anything to say
        return [NOTHING * request.array.rank] * rules
    return [
        "".join(
            LETTERS[found.verdict(d, rule).outcome] if entry.logical == name else NOTHING
            for d, name in enumerate(found.names)
        )
        for rule, entry in enumerate(found.rules)
    ]


def _row(use: RuleUse) -> dict[str, Any]:
    """Which arrays a rule decides, and why not others."""
    reasons = [f"{name}: {text}" for name, text in (*use.broken, *use.lost)]
    note = reasons[0] if reasons else (use.never or "").removeprefix("never fires: ")
    if not use.broken and len(use.lost) > 1:
        note += f" (+{len(use.lost) - 1})"
    found = {
        "decides": _few(use.decides),
        "not_split": _few(use.leaves_unsplit),
        "never": bool(use.never),
        "broken": bool(use.broken),
        "note": note,
        "more": "\n".join(reasons) if len(reasons) > 1 else "",
    }
    return {name: value for name, value in found.items() if value}


def _few(names: tuple[str, ...]) -> str:
    extra = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" +{extra}" if extra > 0 else "")


def read_cell(text: Any) -> tuple[int, int, int] | None:
    """A cell of the grid as the page names it, `rule:array:dimension`; -1 is no rule.

    >>> read_cell("2:0:1"), read_cell("-1:0:1"), read_cell("2:0")
    ((2, 0, 1), (-1, 0, 1), None)
    """
    parts = text.split(":") if isinstance(text, str) and len(text) < 40 else []
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        return None
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def cell_sentence(session: Session, rule: int, array: int, dim: int) -> tuple[str, str]:
    """What a rule did for a dimension: a few words, then a sentence; `-1` is the whole dimension.

    Both are empty where there is no such cell any more.
    """
    requests = session.program.requests
    if not 0 <= array < len(requests) or not 0 <= dim < requests[array].array.rank:
        return "", ""
    request = requests[array]
    name = (request.array.logical or ())[dim : dim + 1]
    where = f"{request.array.name}.{format_names(name)}"
    found = request.resolution
    if found is None or rule >= len(found.rules):
        return where, request.problem or "No rules are in force for it."
    typed = " Its own PartitionSpec wins over the rules." if request.spec_wins else ""
    if rule < 0:
        return where, f"{found.explain_dimension(dim)}{typed}"
    verdict = found.verdict(dim, rule)
    return f"Rule {rule + 1} for {where}: {verdict.kind}", f"R{str(verdict)[1:]}{typed}"


def cell_view(session: Session, text: str) -> dict[str, Any]:
    """The chosen cell: what the rule did there, and why. Empty where there is none."""
    cell = read_cell(text)
    if cell is None:
        return {}
    head, sentence = cell_sentence(session, *cell)
    return {"key": text, "head": head, "text": sentence} if head else {}


def cell_remedies(session: Session, text: str) -> Sequence[Any]:
    """The smallest edits that split the dimension of a cell, found by resolving all arrays again.

    None where it is split already, and where the array has a spec of its own.
    """
    cell, requests = read_cell(text), session.program.requests
    if cell is None or not cell_sentence(session, *cell)[1]:
        return ()
    _, array, dim = cell
    one = requests[array]
    split = one.spec is not None and one.layout is not None and bool(one.spec.dims[dim])
    if split or one.spec_wins or one.resolution is None:
        return ()
    program = session.program
    known = {row.path for row in requests}
    kinds = session.model.kinds if session.model else ()
    others = program.replace(arrays=[kind for kind in kinds if kind.name not in known]).requests
    found = Audit((*requests, *others), program.mesh, session.rules, program.dialect)
    return tuple(found.rows[array].remedies(f"split {dim}"))[:MOST_REMEDIES]


def remedy_view(remedy: Any) -> dict[str, Any]:
    """A remedy: what to do, and what that does to this array, to memory and to the others."""
    saved, others = remedy.bytes_saved, remedy.others
    memory = "" if saved is None else "same memory"
    if saved:
        memory = f"{'−' if saved > 0 else '+'} {bytes_text(abs(saved))} per device"
    return {
        "edit": remedy.edit,
        "spec": str(remedy.spec),
        "memory": memory,
        "saves": bool(saved and saved > 0),
        "others": f"also changes {joined(others, limit=3)}" if others else "changes no other array",
    }


def saved_cells(session: Session) -> dict[str, list[str]]:
    """The sentences of the cells that have something to say, for a page without a kernel."""
    cells: dict[str, list[str]] = {}
    for index, _, request in _columns(session):
        letters = _letters(request, len(session.rules))
        for dim in range(request.array.rank):
            rules = [r for r in range(len(session.rules)) if letters[r][dim] != NOTHING]
            for rule in (-1, *rules):
                if len(cells) >= MOST_SAVED_CELLS:
                    return cells
                cells[f"{rule}:{index}:{dim}"] = list(cell_sentence(session, rule, index, dim))
    return cells
