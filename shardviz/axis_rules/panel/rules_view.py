"""The Rules view as plain data: the rules for one dimension, and its remedies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardviz.axis_rules.remedies import Remedy
from shardviz.axis_rules.requests import Request, kinds_of
from shardviz.axis_rules.rule_uses import RuleUse, rule_summary
from shardviz.axis_rules.verdicts import BROKEN, Outcome
from shardviz.axis_rules.words import cascade as wording
from shardviz.base.layout import Misfit
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.base.typing import JsonDict
from shardviz.explorer.document import Document
from shardviz.explorer.session import Session
from shardviz.explorer.session_view import filled

MOST_REMEDIES = 5
#: The most dimensions that a saved page explains, and the most with remedies.
MOST_SAVED_CELLS = 400
MOST_SAVED_REMEDIES = 24


# --- the effect of each rule -----------------------------------------------------------


def rule_rows(session: Session) -> JsonDict:
    """Returns the effect of every rule, with the number of its line in the text.

    There are rows only if the text has exactly one rule per line.
    """
    document = session.now
    # Use all leaves of the model, because a rule can be for any of them.
    kinds = [kind for kind, _ in kinds_of(session.audit.rows)]
    uses = rule_summary(kinds, document.rules)
    lines = []
    for number, line in enumerate(document.text["rules"].split("\n")):
        if line.strip() and not line.strip().startswith("#"):
            lines.append(number)
    if len(lines) != len(uses) or "rules" in document.errors:
        return {"aligned": False, "rows": []}
    rows = [{"line": n, **_row(use)} for n, use in zip(lines, uses, strict=True)]
    return {"aligned": True, "rows": rows}


def _row(use: RuleUse) -> JsonDict:
    """Returns notes on where a rule loses or fails, or why it decides nothing."""
    reasons = [
        f"{name}: {verdict.reason}" for name, verdict in (*use.broken, *use.lost)
    ]
    note = "\n".join(reasons) or str(use.never or "")
    idle = wording.idle(use.never) if use.never else ""
    return filled(idle=idle, note=note)


# --- the rules for one dimension ------------------------------------------------------

#: States of a dimension: those counted as failures, and those counted as losses.
_FAILS = ("fails", "axis missing", "axis twice", "unknown")
_LOSES = ("axis taken",)
#: Ranks of dimensions, by how likely they need an edit.
_FAILING, _MISSPELT, _FREE_AXIS, _UNSPLIT, _FINE = 4, 3, 2, 1, 0


def dimension_state(request: Request, dim: int, mesh: MeshSpec) -> str:
    """Returns the state of a dimension, a key of `wording.STATES`."""
    spec, resolution = request.spec, request.resolution
    if spec is None:
        return "unknown" if request.problem else "not split"
    dims = spec.padded(request.array.rank)
    axes = dims[dim]
    if axes and request.layout is None:
        return _failure(request, dim, mesh) or "split"
    if axes:
        return "split" if any(mesh.shape[axis] > 1 for axis in axes) else "size 1"
    if dim in spec.unconstrained:
        return "free"
    if request.spec_wins:
        return "own spec"
    if resolution is None:
        return "not split"
    name, winner = resolution.names[dim], resolution.winners[dim]
    if name is None:
        return "no name"
    if name not in resolution.rules.by_name:
        return "no rule"
    if winner is None:
        return "axis taken"
    unsplit = resolution.verdict(dim, winner).outcome is Outcome.UNSPLIT
    return "kept whole" if unsplit else "size 1"


def _failure(request: Request, dim: int, mesh: MeshSpec) -> str:
    """Returns the state if this dimension prevents a layout, else `""`."""
    spec, sizes = request.spec or Spec(), request.array.shape
    dims = spec.padded(len(sizes))
    if any(axis not in mesh.shape for axis in dims[dim]):
        return "axis missing"
    if any(spec.axes.count(axis) > 1 for axis in dims[dim]):
        return "axis twice"
    return "fails" if Misfit.find(sizes[dim], dims[dim], mesh, ()) else ""


def first_cell(document: Document, array: int | None = None) -> str:
    """Finds the dimension that most likely needs an edit, in one array or in all.

    Preferred are dimensions that fail, then those whose name looks misspelt, then
    unsplit ones that a free mesh axis could split. Larger arrays come first.
    """
    numbers = range(len(document.arrays))
    if array is not None:
        numbers = range(array, array + 1)
    best, chosen = (-1.0, 0.0), f"{numbers.start}:0"
    for number in numbers:
        request = document.program.requests[number]
        for dim in range(request.array.rank):
            urgency = _urgency(request, dim, document.mesh)
            if urgency > best:
                best, chosen = urgency, f"{number}:{dim}"
    return chosen


def looks_wrong(request: Request, mesh: MeshSpec) -> bool:
    """Whether an array fails, or has a name that looks misspelt."""
    dims = range(request.array.rank)
    return any(_urgency(request, dim, mesh)[0] >= _MISSPELT for dim in dims)


def _urgency(request: Request, dim: int, mesh: MeshSpec) -> tuple[float, float]:
    """Returns a sort key for how likely an edit is needed: (rank, bytes)."""
    state = dimension_state(request, dim, mesh)
    if state in _FAILS:
        return _FAILING, request.array.bytes
    size = request.bytes_per_device or 0
    resolution = request.resolution
    if resolution is None or request.spec_wins or state == "split":
        return _FINE, size
    if state == "no rule" and wording.near(resolution, dim):
        return _MISSPELT, size
    used = (request.spec or Spec()).axes
    for axis, parts in mesh.shape.items():
        fits = request.array.shape[dim] % parts == 0
        if parts > 1 and axis not in used and fits:
            return _FREE_AXIS, size
    return _UNSPLIT, size


class Cell(NamedTuple):
    """A dimension of an array, identified by array number and dimension number."""

    array: int
    dim: int

    @staticmethod
    def parse(text: str) -> Cell:
        """Parses the page's form of a cell, `array:dimension`; (-1, -1) if invalid."""
        array, _, dim = text.partition(":")
        if not (array.isdecimal() and dim.isdecimal()):
            return Cell(-1, -1)
        return Cell(int(array), int(dim))

    def request(self, document: Document) -> Request | None:
        """Returns the array's Request; None if the dimension no longer exists."""
        requests = document.program.requests
        if not 0 <= self.array < len(requests):
            return None
        # A scalar is addressed as dimension 0.
        if not 0 <= self.dim < max(1, requests[self.array].array.rank):
            return None
        return requests[self.array]


def _by_path(document: Document, cell: Cell) -> bool:
    """Whether the spec of a cell's array comes from a path table."""
    model = document.model
    return model is not None and document.arrays[cell.array].name in model.by_path


@dataclass(frozen=True)
class CellRemedies:
    """The smallest edits that split a dimension, and their data for the page.

    Attributes:
        edits: the edits, best first.
        views: each edit as data for the page.
        reason: why there is no edit; `""` if the dimension is already split.
    """

    edits: tuple[Remedy, ...] = ()
    views: tuple[JsonDict, ...] = ()
    reason: str = ""


def cell_view(
    document: Document,
    text: str,
    remedies: CellRemedies | None = None,
    applied: str = "",
    steps: Sequence[JsonDict] = (),
) -> JsonDict:
    """Explains a dimension's split: a sentence, and every rule for its name.

    Args:
        document: the current document.
        text: the dimension, as `array:dimension`.
        remedies: the edits that split the dimension; None if not searched.
        applied: a sentence about the last applied remedy.
        steps: the effect of each remedy on the program's plan; empty if unknown.
    """
    cell = Cell.parse(text)
    request = cell.request(document)
    if request is None:
        return {"text": wording.CHOOSE if document.arrays else wording.NO_ARRAYS}
    array = request.array
    cards = [_card(request, dim, document.mesh) for dim in range(array.rank)]
    view: JsonDict = {"key": text, "dims": cards, **filled(done=applied)}
    if not cards:
        return {**view, "text": wording.SCALAR}
    by_path = _by_path(document, cell)
    head, sentence = wording.reason(request, cell.dim, by_path)
    view.update(head=head, text=sentence, lines=_lines(request, cell.dim, by_path))
    view["name"] = wording.title(array.logical, cell.dim)
    if remedies is not None:
        view["remedies"] = list(remedies.views)
        if steps:
            paired = zip(remedies.views, steps, strict=True)
            view["remedies"] = [
                {**remedy, "step": dict(step)} for remedy, step in paired
            ]
        view.update(filled(reason=remedies.reason))
    return view


def _card(request: Request, dim: int, mesh: MeshSpec) -> JsonDict:
    """Returns a dimension's name, size, state and mesh axes."""
    state = dimension_state(request, dim, mesh)
    loses = state in _LOSES
    if state == "no rule" and request.resolution is not None:
        loses = wording.near(request.resolution, dim) is not None
    axes = (request.spec or Spec()).padded(request.array.rank)[dim]
    return {
        "name": wording.title(request.array.logical, dim),
        "size": request.array.shape[dim],
        "state": wording.STATES[state],
        **filled(axes=list(axes), fails=state in _FAILS, loses=loses),
    }


def _lines(request: Request, dim: int, by_path: bool) -> list[JsonDict]:
    """Returns the rules for a dimension's name, in order, each with its verdict.

    The array's own spec comes first, because it overrides all rules.
    """
    lines: list[JsonDict] = []
    if request.spec_wins:
        words = wording.BY_PATH if by_path else wording.OWN_SPEC
        lines.append({"text": str(request.spec), "words": words, "wins": True})
    resolution = request.resolution
    if resolution is None:
        return lines
    for rule in resolution.rules.by_name.get(resolution.names[dim] or "", ()):
        fact = resolution.verdict(dim, rule)
        words = wording.verdict(fact, resolution)
        if request.spec_wins:
            words = wording.OVERRULED
        wins = fact.decides and not request.spec_wins
        line = {"rule": rule, "text": str(fact.line), "words": words, "kind": fact.kind}
        fails = wins and fact.outcome in BROKEN
        lines.append({**line, **filled(wins=wins, fails=fails)})
    return lines


def cell_remedies(session: Session, text: str) -> CellRemedies:
    """Finds edits that split a dimension, checked on all arrays of the model."""
    document, cell = session.now, Cell.parse(text)
    request = cell.request(document)
    if request is None or not request.array.rank:
        return CellRemedies()
    name = request.array.name
    row = next(row for row in session.audit.rows if row.path == name)
    if row.layout is not None and row.layout.block_counts[cell.dim] > 1:
        return CellRemedies()
    if document.model is not None and _by_path(document, cell):
        leaf = [array.name for array in document.model.arrays].index(name)
        return CellRemedies(reason=wording.PATHS_NOT_EDITABLE.format(leaf, cell.dim))
    if request.spec_wins:
        return CellRemedies(reason=wording.SPEC_NOT_EDITED)
    # The view's sentence already explains that there are no names.
    if request.array.logical is None and not (request.problem or document.rules):
        return CellRemedies()
    search = row.remedies(f"split {cell.dim}")
    remedies, views = search.items[:MOST_REMEDIES], []
    # Always offer the remedy that leaves a failing dimension unsplit.
    for remedy in search.items[MOST_REMEDIES:]:
        if remedy.leaves_unsplit:
            remedies = (*remedies[:-1], remedy)
    for remedy in remedies:
        saves = row.layout is not None and (remedy.bytes_saved or 0) > 0
        view = {
            "edit": wording.remedy_edit(remedy),
            "spec": str(remedy.spec),
            "saves": saves,
        }
        view["memory"] = wording.remedy_memory(remedy, row)
        views.append({**view, "others": wording.remedy_others(remedy, row)})
    return CellRemedies(remedies, tuple(views), search.reason or "")


def saved_cells(session: Session, first: str) -> JsonDict:
    """Returns cell views for a saved page, starting with the chosen dimension."""
    document = session.now
    keys = {first: None}
    for number, array in enumerate(document.arrays):
        for dim in range(max(1, array.rank)):
            keys[f"{number}:{dim}"] = None
    cells = {}
    for key in list(keys)[:MOST_SAVED_CELLS]:
        remedies = None
        if len(cells) < MOST_SAVED_REMEDIES:
            remedies = cell_remedies(session, key)
        cells[key] = cell_view(document, key, remedies)
    return cells
