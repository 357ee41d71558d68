"""What every view of the Explorer shows: the problems, and the pinned state beside now.

Made once an edit has settled, so that none waits for it.
"""

from __future__ import annotations

from typing import Any

from shardviz.advise.panel.problems_view import (
    ListedProblem,
    array_problems,
    problems_view,
)
from shardviz.explorer.compare_view import State, compare_view
from shardviz.explorer.document import Document
from shardviz.explorer.planner import Planner, StageResults
from shardviz.explorer.session import Session


class Findings:
    """The problems of a session, and what changed since a pinned state.

    Args:
        session: what is edited.
        planner: of its plans and reports.
    """

    def __init__(self, session: Session, planner: Planner):
        self._session, self._planner = session, planner
        self._of_arrays: tuple[int, list[ListedProblem]] = (-1, [])
        self._pinned: State | None = None
        # What was made last, and of what.
        self._made: tuple[tuple[Any, ...], tuple[dict[str, Any], ...]] = ((), ())

    def views(self) -> tuple[dict[str, Any], ...]:
        """The problems, and what changed since the pinned state, if one is pinned.

        The same objects as last time where nothing changed.
        """
        now, results = self._session.now, self._planner.state
        pinned = None if self._pinned is None else self._pinned[0]
        key = (now, pinned, *results.shown())
        of, views = self._made
        if of != key:
            views = (self._problems(now, results), self._compared(now, results))
            self._made = (key, views)
        return views

    def compare(self, kind: str) -> None:
        """Pins the state as it is, unpins it, or goes back to it by an edit."""
        if kind == "pin":
            self._pinned = (self._session.now, self._planner.state)
        elif kind == "unpin":
            self._pinned = None
        elif self._pinned is not None:
            self._session.edit("back", self._pinned[0])

    def _problems(self, now: Document, results: StageResults) -> dict[str, Any]:
        audit = self._session.audit_of(now)
        # Plans and reports change nothing about arrays and rules.
        number, found = self._of_arrays
        if number != now.revision:
            found = [*array_problems(now, audit)]
            self._of_arrays = now.revision, found
        return problems_view(now, audit, results, found)

    def _compared(self, now: Document, results: StageResults) -> dict[str, Any]:
        pinned = self._pinned
        if pinned is None:
            return {}
        # What was under way when it was pinned is known by now.
        if (pinned[0].revision, pinned[0].target) == (now.revision, now.target):
            self._pinned = pinned = (pinned[0], results)
        return compare_view(pinned, (now, results))
