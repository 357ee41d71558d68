"""The Rules view: the effect of each rule, a chosen dimension, and its remedies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardviz.advise.panel.remedy_plans import RemedyPlans
from shardviz.axis_rules.panel.rules_view import (
    Cell,
    CellRemedies,
    cell_remedies,
    cell_view,
    first_cell,
    rule_rows,
    saved_cells,
)
from shardviz.axis_rules.words import cascade
from shardviz.explorer.protocol import Event, Handler, Intent, Page, Panel


@dataclass(frozen=True)
class _ShownRemedies:
    """The remedies of one dimension, and the document revision that they are for."""

    revision: int = -1
    cell: str = ""
    remedies: CellRemedies = field(default_factory=CellRemedies)


class RulesPanel(Panel):
    """Every rule with its effect, and why the chosen dimension is split or not.

    Attributes:
        cell: the chosen dimension, as `array:dimension`.
        shown: the remedies that the page shows.
    """

    name = "rules"
    traits = {"rule_use": {}, "cell": {}}
    after = frozenset({Event.EDIT, Event.MESSAGE})
    views = frozenset({"Rules"})

    def __init__(self, page: Page):
        super().__init__(page)
        self.cell = ""
        self.shown = _ShownRemedies()
        # The array that was selected when the dimension was chosen.
        self._selected = page.session.now.selected
        # The revision after the last applied remedy, its array, and a sentence about it.
        self._applied = (-1, -1, "")
        self._remedy_plans = RemedyPlans(lambda: page.refresh(self))

    def intents(self) -> Mapping[str, Handler]:
        return {"cell": lambda intent: self._choose(intent.text), "apply": self._apply}

    def works(self) -> Sequence[RemedyPlans]:
        return (self._remedy_plans,)

    def refresh(self) -> None:
        self._keep_cell()
        document = self.page.session.now
        revision, array, sentence = self._applied
        remedies, steps = None, []
        # Remedies are only valid for the revision that they were searched for.
        if (self.shown.revision, self.shown.cell) == (document.revision, self.cell):
            remedies, steps = self.shown.remedies, self._remedy_plans.steps
        if (revision, array) != (document.revision, Cell.parse(self.cell).array):
            sentence = ""
        self.page.show(
            rule_use=rule_rows(self.page.session),
            cell=cell_view(document, self.cell, remedies, sentence, steps),
        )

    def saved(self) -> Mapping[str, object]:
        self._keep_cell()
        cells = saved_cells(self.page.session, self.cell)
        return {
            "rule_use": {**rule_rows(self.page.session), "saved": cells},
            "cell": cells[self.cell],
        }

    def _choose(self, cell: str) -> None:
        """Chooses a dimension, and searches for edits that would split it."""
        document = self.page.session.now
        # If the cell is just an array, choose the dimension likeliest to need an edit.
        if cell.isdecimal() and int(cell) < len(document.arrays):
            cell = first_cell(document, int(cell))
        self.cell = cell
        # Set `shown` before the search, so that a search that fails is not repeated.
        self.shown = _ShownRemedies(document.revision, cell)
        remedies = cell_remedies(self.page.session, cell)
        self.shown = _ShownRemedies(document.revision, cell, remedies)
        self._remedy_plans.ask(document, cell, remedies.edits, self.page.planner.state)

    def _keep_cell(self) -> None:
        """Chooses a new dimension if there is none or another array was selected."""
        document, cell = self.page.session.now, Cell.parse(self.cell)
        if document.selected not in (self._selected, cell.array):
            self._choose(first_cell(document, document.selected))
        elif cell.request(document) is None:
            self._choose(first_cell(document))
        self._selected = document.selected

    def _apply(self, intent: Intent) -> None:
        """Applies a remedy, given as `cell number`, if it is still current."""
        session, shown = self.page.session, self.shown
        cell, number = intent.text.split(" ")
        if (shown.revision, shown.cell) != (session.now.revision, cell):
            return
        remedy, array = shown.remedies.edits[int(number)], Cell.parse(cell).array
        memory = shown.remedies.views[int(number)]["memory"]
        sentence = cascade.applied(remedy, session.arrays[array].name, memory)
        session.edit("remedy", (array, remedy))
        if session.now.revision != shown.revision:
            self._applied = (session.now.revision, array, sentence)
