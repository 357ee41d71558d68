"""The Values tab: the values of a plan, and the explanation of the selected value."""

from __future__ import annotations

from collections.abc import Mapping

from shardviz.explorer.protocol import Event, Handler, Intent, Panel
from shardviz.plans.panel.values_view import explanation_view


class ValuesPanel(Panel):
    """Shows the values of the last plan; explains one value at a time, on request."""

    name = "values"
    traits = {"plan_data": {}, "explanation": {}}
    after = frozenset({Event.WORK})
    slow = True

    def intents(self) -> Mapping[str, Handler]:
        return {"why": self._explain}

    def refresh(self) -> None:
        values = self.page.stages.views().values
        with self.page.lock:
            if values is not self.current()["plan_data"]:
                self.page.show(plan_data=values, explanation={})

    def saved(self) -> Mapping[str, object]:
        return {"plan_data": self.page.stages.saved_values()}

    def _explain(self, intent: Intent) -> None:
        plan = self.page.planner.state.plan
        self.page.show(explanation=explanation_view(plan, intent.text))
