"""What each remedy that the page shows does to the whole step, by plans in the background."""

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
    """The remedies of a cell, and the program that each of them makes.

    Attributes:
        key: the revision and the cell that they are for.
        plan: of the program without them; None if it isn't planned yet.
        platform: that plans are lowered for.
        programs: without them, then with each.
    """

    key: tuple[int, str]
    plan: Plan | None
    platform: str
    programs: tuple[Program, ...]


class RemedyPlans(LatestWins[RemedySteps]):
    """Plans the program with each remedy of the latest cell; an edit never waits for it.

    Args:
        changed: called when another of the remedies is planned.

    Attributes:
        key: the revision and the cell that `steps` are of.
        steps: of each remedy what the page shows, as far as it is planned.
    """

    def __init__(self, changed: Callable[[], None]):
        super().__init__("shardviz-remedies", self._plan_all, self._failed, SETTLE_S)
        self.key: tuple[int, str] = (-1, "")
        self.steps: list[JsonDict] = []
        self._tell = changed

    def ask(
        self,
        document: Document,
        cell: str,
        remedies: tuple[Remedy, ...],
        results: StageResults,
    ) -> None:
        """Plans the program of a document with each of these remedies.

        A program that only places arrays has no step.
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

    def _plan_all(self, asked: RemedySteps, stop: Stop) -> None:
        before = asked.plan or plan_of(asked.programs[0], asked.platform)
        for number, program in enumerate(asked.programs[1:]):
            if stop():
                return
            step = _step_view(before, plan_of(program, asked.platform))
            self._show(asked, number, step)

    def _failed(self, asked: RemedySteps, error: BaseException) -> None:
        text = wording.remedy_refused(failure(error, "plan").message)
        for number, step in enumerate(self.steps):
            if step["text"] == wording.PLANNING:
                self._show(asked, number, {"text": text, "worse": True})

    def _show(self, asked: RemedySteps, number: int, step: JsonDict) -> None:
        if asked.key == self.key and not self.closed:
            self.steps = [*self.steps[:number], step, *self.steps[number + 1 :]]
            self._tell()


def _step_view(before: Plan, after: Plan) -> JsonDict:
    """A remedy's step for the page, and whether it sends or keeps more than before."""
    if before.error is not None:
        return {"text": wording.remedy_refused(before.error.message), "worse": False}
    if after.error is not None:
        return {"text": wording.remedy_refused(after.error.message), "worse": True}
    old, new = step_cost(before), step_cost(after)
    worse = new.moved > old.moved or new.alive > old.alive
    return {"text": remedy_step(old, new), "worse": worse}
