"""The row of stages, with each stage's collectives, memory and least times."""

from __future__ import annotations

from collections.abc import Mapping

from shardviz.explorer.protocol import Event, Panel


class StagesPanel(Panel):
    """The planner's results by stage, and its current work."""

    name = "stages"
    traits = {"stages_data": {}, "background": {}}
    after = frozenset({Event.WORK})
    slow = True

    def refresh(self) -> None:
        views = self.page.stages.views()
        running = {"stage": views.running}
        self.page.show(stages_data=views.stages, background=running)

    def saved(self) -> Mapping[str, object]:
        return {"stages_data": self.page.stages.saved_stages()}
