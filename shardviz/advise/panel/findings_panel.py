"""The panel with the list of problems and the comparison with a pinned state.

The planning thread computes both, so that edits do not wait for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardviz.advise.panel.problems_view import of_document, problems_view
from shardviz.advise.problems import Problem
from shardviz.base.typing import JsonDict
from shardviz.explorer.compare_view import State, compare_view
from shardviz.explorer.document import Document
from shardviz.explorer.planner import StageResults
from shardviz.explorer.protocol import Event, Handler, Intent, Page, Panel


@dataclass(frozen=True)
class Findings:
    """The panel's data: the problems, and the comparison with the pinned state."""

    problems: JsonDict
    comparison: JsonDict


class FindingsPanel(Panel):
    """The problems of a session, and what changed since the pinned state."""

    name = "problems"
    traits = {"problems_data": {}, "compare_data": {}}
    after = frozenset({Event.WORK})
    slow = True

    def __init__(self, page: Page):
        super().__init__(page)
        self._array_problems: tuple[int, list[Problem]] = (-1, [])
        self._pinned: State | None = None
        # The last findings, and a key of the state that they were computed from.
        self._key: tuple[Any, ...] = ()
        self._findings = Findings({}, {})

    def intents(self) -> Mapping[str, Handler]:
        return {"pin": self._pin, "unpin": self._unpin, "back": self._go_back}

    def refresh(self) -> None:
        self.findings()
        # Get the findings again under the lock, so that a slower thread can't overwrite
        # newer findings with older ones.
        with self.page.lock:
            findings = self.findings()
            self.page.show(
                problems_data=findings.problems, compare_data=findings.comparison
            )

    def saved(self) -> Mapping[str, object]:
        return {"problems_data": self.findings().problems}

    def findings(self) -> Findings:
        """The current findings: the same object as last time if nothing changed."""
        document, results = self.page.session.now, self.page.planner.state
        pinned = None if self._pinned is None else self._pinned.document
        key = (document, pinned, *results.shown())
        if self._key != key:
            problems = self._problems(document, results)
            comparison = self._comparison(document, results)
            self._key, self._findings = key, Findings(problems, comparison)
        return self._findings

    def _pin(self, intent: Intent) -> None:
        self._pinned = State(self.page.session.now, self.page.planner.state)
        self.refresh()

    def _unpin(self, intent: Intent) -> None:
        self._pinned = None
        self.refresh()

    def _go_back(self, intent: Intent) -> None:
        """Restores the pinned state, as an edit."""
        if self._pinned is not None:
            self.page.session.edit("back", self._pinned.document)
        self.refresh()

    def _problems(self, document: Document, results: StageResults) -> JsonDict:
        audit = self.page.session.audit_of(document)
        # Problems of arrays and rules do not depend on plans and reports.
        revision, problems = self._array_problems
        if revision != document.revision:
            problems = [*of_document(document, audit)]
            self._array_problems = document.revision, problems
        return problems_view(document, audit, results, problems)

    def _comparison(self, document: Document, results: StageResults) -> JsonDict:
        pinned = self._pinned
        if pinned is None:
            return {}
        # Results that were missing when the state was pinned may have arrived since.
        then = pinned.document
        if (then.revision, then.target) == (document.revision, document.target):
            self._pinned = pinned = State(then, results)
        return compare_view(pinned, State(document, results))
