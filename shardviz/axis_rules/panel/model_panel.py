"""The Model view: a model's leaves, their bytes, and the program's constraints."""

from __future__ import annotations

from collections.abc import Mapping

from shardviz.axis_rules.panel.model_view import Leaves, leaves_view, model_view
from shardviz.base.typing import JsonDict
from shardviz.explorer.document import Document
from shardviz.explorer.protocol import Event, Handler, Intent, Page, Panel
from shardviz.plans.plan import Plan


class ModelPanel(Panel):
    """Sends all leaves of a model; the Rules view also uses their paths."""

    name = "model"
    traits = {"leaves": {}, "model_data": {}}
    after = frozenset({Event.EDIT, Event.MESSAGE, Event.WORK})
    views = frozenset({"Rules", "Model"})

    def __init__(self, page: Page):
        super().__init__(page)
        self._leaves: tuple[Leaves, JsonDict] | None = None
        # The document and plan of the last view, and the view's data.
        self._shown: tuple[Document, Plan | None, JsonDict] | None = None

    def intents(self) -> Mapping[str, Handler]:
        return {"leaves": self._show_all}

    def refresh(self) -> None:
        if self.page.shows("Model"):
            self.page.show(**self.saved())
        elif self.page.session.now.model is not None:
            self.page.show(leaves=self._leaves_view()[1])

    def saved(self) -> Mapping[str, object]:
        document = self.page.session.now
        plan = self.page.planner.state.plan_of(document.revision)
        leaves, view = self._leaves_view()
        if self._shown is None or self._shown[:2] != (document, plan):
            data = model_view(document.program, document.target, leaves, plan)
            self._shown = (document, plan, data)
        return {"leaves": view, "model_data": self._shown[2]}

    def _show_all(self, intent: Intent) -> None:
        """Sends the leaves, so that any view of the page can search them."""
        self.page.show(**self.saved())

    def _leaves_view(self) -> tuple[Leaves, JsonDict]:
        """Returns the leaves and their data; cached until another model is loaded."""
        document = self.page.session.now
        arrays = (document.model or document).arrays
        if self._leaves is None or self._leaves[0].arrays != arrays:
            leaves = document.model or Leaves.of_rows(document.program.requests)
            self._leaves = (leaves, leaves_view(leaves))
        return self._leaves
