"""The panel of the links that the selected collective uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardviz.explorer.links_view import LinkPictures
from shardviz.explorer.protocol import Event, Handler, Intent, Page, Panel


class LinksPanel(Panel):
    """Shows the links of the selected collective, if devices are shown by position.

    Attributes:
        pictures: draws the links in the background.
    """

    name = "links"
    traits = {"link_data": {}}
    after = frozenset({Event.EDIT, Event.MESSAGE, Event.WORK, Event.PLACEMENT})

    def __init__(self, page: Page):
        super().__init__(page)
        self.pictures = LinkPictures(lambda: page.refresh(self))

    def intents(self) -> Mapping[str, Handler]:
        return {"links": self._choose}

    def works(self) -> Sequence[LinkPictures]:
        return (self.pictures,)

    def refresh(self) -> None:
        placement = collective = None
        if self.pictures.chosen and self.page.session.now.by == "position":
            placement = self.page.placement()
            collective = self.page.stages.collective(self.pictures.chosen)
        self.pictures.update(collective, placement)
        self.page.show(link_data=self.pictures.view)

    def _choose(self, intent: Intent) -> None:
        self.pictures.chosen = intent.text
