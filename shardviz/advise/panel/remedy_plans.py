"""Plans the program with each shown remedy in the background."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shardviz.advise.words.candidates import remedy_step
from shardviz.axis_rules.remedies import Remedy
from shardviz.axis_rules.words import cascade as wording
from shardviz.base.typing import JsonDict
from shardviz.compiled.op_costs import step_cost
from shardviz.explorer.background import LatestWins, Stop, failure
from shardviz.explorer.document import DEVICE_PUT, Document
from shardviz.explorer.edits import apply
from shardviz.explorer.planner import SETTLE_S, StageResults, plan_of
from shardviz.plans.plan import Plan
from shardviz.programs.program import Program


class RemedySteps(NamedTuple):
    """The programs to plan for the remedies of one cell.

    Attributes:
        key: the document's revision, and the cell.
        plan: the plan of the program without remedies; None if it isn't planned yet.
        platform: the platform that plans are lowered for.
        programs: the program without remedies, then the program with each remedy.
    """

    key: tuple[int, str]
    plan: Plan | None
    platform: str
    programs: tuple[Program, ...]


class RemedyPlans(LatestWins[RemedySteps]):
    """Plans the program with each remedy of the latest cell, in the background.

    Args:
        changed: called after each remedy is planned.

    Attributes:
        key: the document revision and the cell that `steps` belongs to.
        steps: one entry per remedy for the page: its effect, or a note that it is being
            planned.
    """

    def __init__(self, changed: Callable[[], None]):
        super().__init__("shardviz-remedies", self._plan_all, self._failed, SETTLE_S)
        self.key: tuple[int, str] = (-1, "")
        self.steps: list[JsonDict] = []
        self._changed_step = changed

    def ask(
        self,
        document: Document,
        cell: str,
        remedies: tuple[Remedy, ...],
        results: StageResults,
    ) -> None:
        """Starts to plan a document's program with each of these remedies.

        A program that only places arrays is not planned.
        """
        self.key, self.steps = (document.revision, cell), []
        self.drop()
        if not remedies or document.entry == DEVICE_PUT:
            return
        index = int(cell.partition(":")[0])
        programs = [document.program]
        for remedy in remedies:
            programs.append(apply(document, "remedy", (index, remedy)).program)
        self.steps = [{"text": wording.PLANNING, "worse": False} for _ in remedies]
        plan = results.plan_of(document.revision)
        self.request(
            RemedySteps(self.key, plan, results.plan_platform, tuple(programs))
        )

    def _plan_all(self, steps: RemedySteps, stop: Stop) -> None:
        before = steps.plan or plan_of(steps.programs[0], steps.platform)
        for number, program in enumerate(steps.programs[1:]):
            if stop():
                return
            step = _step_view(before, plan_of(program, steps.platform))
            self._show(steps, number, step)

    def _failed(self, steps: RemedySteps, error: BaseException) -> None:
        text = wording.remedy_refused(failure(error, "plan").message)
        for number, step in enumerate(self.steps):
            if step["text"] == wording.PLANNING:
                self._show(steps, number, {"text": text, "worse": True})

    def _show(self, steps: RemedySteps, number: int, step: JsonDict) -> None:
        if steps.key == self.key and not self.closed:
            self.steps = [*self.steps[:number], step, *self.steps[number + 1 :]]
            self._changed_step()


def _step_view(before: Plan, after: Plan) -> JsonDict:
    """Returns a remedy's effect, and whether it sends or keeps alive more bytes."""
    if before.error is not None:
        return {"text": wording.remedy_refused(before.error.message), "worse": False}
    if after.error is not None:
        return {"text": wording.remedy_refused(after.error.message), "worse": True}
    old, new = step_cost(before), step_cost(after)
    worse = new.sent > old.sent or new.alive > old.alive
    return {"text": remedy_step(old, new), "worse": worse}
