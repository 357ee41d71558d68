"""The panel that plays the steps of a collective."""

from __future__ import annotations

from collections.abc import Mapping

from shardviz.explorer.protocol import Event, Handler, Intent, Page, Panel
from shardviz.move.panel.movements_view import movement_view, saved_movements


class MovementsPanel(Panel):
    """The steps of the last played collective or, in a saved page, of the largest."""

    name = "movements"
    traits = {"movements": {}}
    after = frozenset({Event.WORK})

    def __init__(self, page: Page):
        super().__init__(page)
        self._stages: object = None

    def intents(self) -> Mapping[str, Handler]:
        return {"play": self._play}

    def refresh(self) -> None:
        stages = self.page.stages.views().stages
        if stages is not self._stages:
            # The steps on the page are outdated; the page requests them again.
            self._stages = stages
            self.page.show(movements={})

    def saved(self) -> Mapping[str, object]:
        stages = self.page.stages
        shown = stages.saved_stages()
        return {"movements": saved_movements(stages, shown, self.page.placement())}

    def _play(self, intent: Intent) -> None:
        view = movement_view(intent.text, self.page.stages, self.page.placement())
        self.page.show(movements={intent.text: view})
