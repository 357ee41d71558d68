"""The Timeline tab: the least time of each operation and collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardviz.compiled.panel.timeline_view import (
    NOT_YET,
    TimelineMaker,
    TimelineRequest,
    timeline_view,
)
from shardviz.explorer.protocol import Event, Page, Panel


class TimelinePanel(Panel):
    """The latest plan's timeline, computed in the background."""

    name = "timeline"
    traits = {"timeline": NOT_YET}
    after = frozenset({Event.EDIT, Event.MESSAGE, Event.WORK, Event.PLACEMENT})
    views = frozenset({"Program"})

    def __init__(self, page: Page):
        super().__init__(page)
        self._maker = TimelineMaker(lambda: page.refresh(self))

    def works(self) -> Sequence[TimelineMaker]:
        return (self._maker,)

    def refresh(self) -> None:
        self._maker.request(self._request())
        if self._maker.view:
            self.page.show(timeline=self._maker.view)

    def saved(self) -> Mapping[str, object]:
        return {"timeline": timeline_view(self._request())}

    def _request(self) -> TimelineRequest:
        document, results = self.page.session.now, self.page.stages.results
        placement = self.page.placement()
        return TimelineRequest(results, document.mesh, document.target, placement)
