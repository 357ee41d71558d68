"""Compile, Run and Cancel, the last job's report, and the program's effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardviz.compiled.panel.report_view import report_view, was_cancelled
from shardviz.explorer.protocol import Event, Handler, Intent, Page, Panel
from shardviz.programs.panel.effects_view import EffectsReader


class ReportPanel(Panel):
    """The last report and the running job."""

    name = "report"
    traits = {"report_data": {}}
    after = frozenset({Event.EDIT, Event.MESSAGE, Event.WORK})

    def __init__(self, page: Page):
        super().__init__(page)
        self._effects = EffectsReader(lambda: page.refresh(self))

    def intents(self) -> Mapping[str, Handler]:
        return {
            "compile": lambda _: self.page.compile(),
            "run": lambda _: self.page.run(),
            "measure": lambda _: self.page.run(measure=True),
            "cancel": lambda _: self.page.cancel(),
            "effects": self._read_effects,
        }

    def works(self) -> Sequence[EffectsReader]:
        return (self._effects,)

    def refresh(self) -> None:
        page = self.page
        job = page.planner.job
        if job is not None and job.report is not None and job.kind != "changes":
            if job.report is not page.report and not was_cancelled(job.report):
                page.report, page.report_revision = job.report, job.revision
                page.report_target = job.target
        of = page.report_revision, page.report_target
        view = report_view(job, page.report, *of)
        page.show(report_data={**view, "effects": self._effects.view})

    def saved(self) -> Mapping[str, object]:
        return self.current()

    def _read_effects(self, intent: Intent) -> None:
        document = self.page.session.now
        self._effects.read(document.program, document.revision)
