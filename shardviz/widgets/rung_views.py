"""RungViews: which plan and which report the page shows, and their views, each made once."""

from __future__ import annotations

import threading
from typing import Any

from shardviz.core.program.propagation.plan import Plan
from shardviz.core.program.report import Report
from shardviz.widgets.planner import Answer, Planner
from shardviz.widgets.view_rungs import Side, rungs_view
from shardviz.widgets.view_values import values_view

MOST_STORIES = 300  # values of a saved page that bring their story


class RungViews:
    """Chooses between what was found out in the background and what somebody pressed for.

    Args:
        planner: what is found out in the background.
    """

    def __init__(self, planner: Planner):
        self._planner = planner
        self._asked: tuple[Report, int, str] | None = None
        self._making = threading.Lock()
        self._side: Side | None = None
        self._rungs: dict[str, Any] = {}
        self._plan: Plan | None = None
        self._values = values_view(None)

    def take(self, report: Report, revision: int, target: str) -> None:
        """Takes the report of a compile or run that somebody pressed for."""
        self._asked = (report, revision, target)

    def views(
        self, revision: int, target: str
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The rungs, the values, and what is under way; the same objects where nothing changed."""
        answer = self._planner.answer
        report, of, for_ = self._chosen(answer, revision, target)
        side = Side(answer.plan, answer.plan_revision, report, of, for_, answer.reason)
        with self._making:
            if self._side is None or not _same(self._side, side):
                self._side, self._rungs = side, rungs_view(side)
            if self._plan is not answer.plan:
                self._plan, self._values = answer.plan, values_view(answer.plan)
            return self._rungs, self._values, {"stage": answer.stage}

    def saved_plan(self) -> dict[str, Any]:
        """The values for a page without a kernel: their stories come with them."""
        plan = self._planner.answer.plan
        return values_view(plan) if plan is None else values_view(plan, stories=MOST_STORIES)

    def _chosen(self, answer: Answer, revision: int, target: str) -> tuple[Report | None, int, str]:
        """What was pressed for where it is of this program; else what the background knows."""
        background = (answer.report, answer.report_revision, answer.report_target)
        if self._asked is None:
            return background
        now, pressed = (revision, target), self._asked
        if answer.report is None or pressed[1:] == now:
            return pressed
        newer = background[1:] == now or background[1] > pressed[1]
        return background if newer else pressed


def _same(one: Side, other: Side) -> bool:
    """Whether both hold the same: plans and reports by identity, as they are large."""
    plain = lambda s: (s.plan_revision, s.report_revision, s.target, s.reason)  # noqa: E731
    same = one.plan is other.plan and one.report is other.report
    return same and plain(one) == plain(other)
