"""RungViews: which plan and which report the page shows, and their views, each made once."""

from __future__ import annotations

import importlib.util
import threading
from typing import Any

from shardviz.core.program.program import Program
from shardviz.core.program.propagation.plan import Plan
from shardviz.core.program.report import Collective, Report
from shardviz.widgets.planner import Answer, Planner
from shardviz.widgets.view_report import was_cancelled
from shardviz.widgets.view_rungs import Side, rungs_view, saved_rungs
from shardviz.widgets.view_values import values_view

PLAN_S = 5.0  # how long a saved page waits for its plan
MOST_STORIES = 300  # values of a saved page that bring their story


class RungViews:
    """Chooses between what was found out in the background and what somebody pressed for.

    Args:
        planner: what is found out in the background.
    """

    def __init__(self, planner: Planner):
        self._planner = planner
        self._asked: tuple[Report, int, str] | None = None
        self._early: tuple[Report, int, str] | None = None
        self._making = threading.Lock()
        self._side: Side | None = None
        self._rungs: dict[str, Any] = {}
        self._plan: Plan | None = None
        self._values = values_view(None)

    def take(self, report: Report, revision: int, target: str) -> None:
        """Takes the report of a compile or run that somebody pressed for.

        One that was cancelled is no answer: what was known before it stays, and where that was
        nothing, what the partitioner had said by then.
        """
        early, self._early = self._early, None
        if not was_cancelled(report):
            self._asked = (report, revision, target)
        elif self._asked is None:
            self._asked = early

    def take_early(self, report: Report, revision: int, target: str) -> None:
        """Takes what is known of a compile that is under way."""
        self._early = (report, revision, target)

    def collective(self, key: str) -> Collective | None:
        """The collective that the page calls `rung:number`; None where there is none.

        >>> from shardviz.core.program.cache import ExecutableCache
        >>> RungViews(Planner(lambda: None, ExecutableCache())).collective("0:3") is None
        True
        """
        rung, _, number = key.partition(":")
        if self._side is None or not (rung in ("0", "1", "2") and number.isdecimal()):
            return None
        known = self._side.collectives()[int(rung)] or ()
        return known[int(number)] if len(number) < 9 and int(number) < len(known) else None

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

    def saved(
        self, program: Program, revision: int, target: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The rungs, and the values with their stories, for a page without a kernel.

        The program is planned for it first. A plan that takes too long is left out, and so it is
        where jax is missing.
        """
        if importlib.util.find_spec("jax") is not None:
            self._planner.plan_now(program, revision, target, PLAN_S)
        rungs, _, _ = self.views(revision, target)
        plan = self._planner.answer.plan
        stories = 0 if plan is None else MOST_STORIES
        return saved_rungs(rungs), values_view(plan, stories)

    def _chosen(self, answer: Answer, revision: int, target: str) -> tuple[Report | None, int, str]:
        """What was pressed for where it is of this program; else what the background knows."""
        background = (answer.report, answer.report_revision, answer.report_target)
        pressed = self._early or self._asked
        if pressed is None:
            return background
        now = (revision, target)
        if answer.report is None or pressed[1:] == now:
            return pressed
        newer = background[1:] == now or background[1] > pressed[1]
        return background if newer else pressed


def _same(one: Side, other: Side) -> bool:
    """Whether both hold the same: plans and reports by identity, as they are large."""
    plain = lambda s: (s.plan_revision, s.report_revision, s.target, s.reason)  # noqa: E731
    same = one.plan is other.plan and one.report is other.report
    return same and plain(one) == plain(other)
