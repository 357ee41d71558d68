"""The panel that searches for changes of a program, and applies one of them."""

from __future__ import annotations

from collections.abc import Mapping

from shardviz.advise.panel.changes_view import changes_view
from shardviz.explorer.planner import ChangesJob
from shardviz.explorer.protocol import Event, Handler, Intent, Page, Panel


class ChangesPanel(Panel):
    """The changes of the last search; empty until the user asks for one."""

    name = "changes"
    traits = {"changes_data": {}}
    after = frozenset({Event.WORK})

    def __init__(self, page: Page):
        super().__init__(page)
        self._search: ChangesJob | None = None

    def intents(self) -> Mapping[str, Handler]:
        return {"changes": self._start, "take": self._take}

    def refresh(self) -> None:
        job = self.page.planner.job
        if isinstance(job, ChangesJob):
            self._search = job
            self.page.show(changes_data=changes_view(job))

    def _start(self, intent: Intent) -> None:
        """Starts a search; the intent is a collective's key or `"memory"`."""
        document, key = self.page.session.now, intent.text
        collective = self.page.stages.collective(key)
        if key == "memory" or collective is not None:
            job = ChangesJob(
                "changes",
                document.program,
                document.revision,
                document.target,
                key=key,
                collective=collective,
            )
            self.page.planner.start(job)

    def _take(self, intent: Intent) -> None:
        """Applies the change in a row as an edit, unless the rows are outdated."""
        job, session, number = self._search, self.page.session, int(intent.text)
        if job is None or job.changes is None or job.revision != session.now.revision:
            return
        if changes_view(job)["rows"][number]["takes"]:
            change = job.changes[number]
            session.edit("change", change.program)
            # The search compiled the change for the target of its job.
            if session.now.target == job.target:
                self.page.show_report(change.report)
