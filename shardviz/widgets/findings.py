"""What every view of the Explorer shows: the problems, and the pinned state beside now.

Made once an edit has settled, so that none waits for it.
"""

from __future__ import annotations

from typing import Any

from shardviz.widgets.compare_view import State, compare_view
from shardviz.widgets.planner import Planner
from shardviz.widgets.problems_view import (
    ListedProblem,
    array_problems,
    problems_view,
)
from shardviz.widgets.session import Session


class Findings:
    """The problems of a session, and what changed since a pinned state.

    Args:
        session: what is edited.
        planner: of its plans and reports.
    """

    def __init__(self, session: Session, planner: Planner):
        self._session, self._planner = session, planner
        self._view: dict[str, Any] = {}
        self._view_of: tuple[Any, ...] = ()
        self._of_arrays: tuple[int, list[ListedProblem]] = (-1, [])
        self._pinned: State | None = None

    def problems(self) -> dict[str, Any]:
        """The list of problems; the same object as last time where nothing changed."""
        now, results = self._session.now, self._planner.state
        key = (now, *results.shown())
        if key != self._view_of:
            audit = self._session.audit_of(now)
            # Plans and reports change nothing about arrays and rules.
            if self._of_arrays[0] != now.revision:
                self._of_arrays = now.revision, [*array_problems(now, audit)]
            self._view = problems_view(now, audit, results, self._of_arrays[1])
            self._view_of = key
        return self._view

    def compare(self, kind: str) -> None:
        """Pins the state as it is, unpins it, or goes back to it by an edit."""
        if kind == "pin":
            self._pinned = (self._session.now, self._planner.state)
        elif kind == "unpin":
            self._pinned = None
        elif self._pinned is not None:
            self._session.edit("back", self._pinned[0])

    def compared(self) -> dict[str, Any]:
        """What changed since the pinned state; empty where none is pinned."""
        if self._pinned is None:
            return {}
        then, _ = self._pinned
        now, results = self._session.now, self._planner.state
        # What was under way when it was pinned is known by now.
        if (then.revision, then.target) == (now.revision, now.target):
            self._pinned = (then, results)
        return compare_view(self._pinned, (now, results))
