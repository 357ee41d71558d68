"""The links that the chosen collective uses, as a picture and a sentence for the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardviz.core.errors import ShardvizError
from shardviz.core.format import error_text
from shardviz.core.program.report import Collective
from shardviz.core.program.roofline import collective_link_use
from shardviz.core.wording import stages as wording
from shardviz.core.wording.links import links_in_words
from shardviz.picture.serialization import edges_data
from shardviz.picture.topology import draw_position
from shardviz.widgets.background import LatestWins, Stop
from shardviz.widgets.targets import DevicePlacement


@dataclass(frozen=True, eq=False)
class LinkRequest:
    """A collective whose links are drawn, its number on the page, and its devices."""

    key: str
    collective: Collective
    placement: DevicePlacement


class LinkPictures:
    """Draws the links of the collective that was chosen last.

    Attributes:
        chosen: the stage and number of the collective, `"0:3"`; `""` for none.
        view: for the page: `key`, `words`, and `edges` where there are some.
    """

    def __init__(self, changed: Callable[[], None]):
        self.chosen = ""
        self.view: dict[str, Any] = {}
        self._changed = changed
        self._requested: LinkRequest | None = None
        self._worker = LatestWins[LinkRequest](
            "shardviz-links", self._draw, self._failed
        )

    def update(
        self, collective: Collective | None, placement: DevicePlacement | None
    ) -> None:
        """Draws the chosen collective on the placed devices; nothing where one is None."""
        # Only devices that stand by position have links to draw.
        if not self.chosen or collective is None or placement is None:
            self._requested, self.view = None, {}
            self._worker.drop()
            return
        old = self._requested
        # Every edit asks; the same picture is not drawn again.
        if old is not None and old.key == self.chosen:
            if old.collective is collective and old.placement is placement:
                return
        self._requested = LinkRequest(self.chosen, collective, placement)
        self._worker.request(self._requested)

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until nothing is being drawn; for scripts and tests."""
        return self._worker.wait(timeout)

    def close(self) -> None:
        """Ends the thread."""
        self._worker.close()

    def _draw(self, request: LinkRequest, stop: Stop) -> None:
        view = link_view(request)
        if not stop():
            self._show(request, view)

    def _failed(self, request: LinkRequest, error: BaseException) -> None:
        words = wording.not_drawn(error_text(error))
        self._show(request, {"key": request.key, "words": words})

    def _show(self, request: LinkRequest, view: dict[str, Any]) -> None:
        # Another collective may have been chosen meanwhile.
        if self._requested is request:
            self.view = view
            self._changed()


def link_view(request: LinkRequest) -> dict[str, Any]:
    """The links of a collective for the page: their lines and a sentence.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.widgets.targets import device_placement
    >>> placement = device_placement(make_mesh(data=4, model=4), "tpu:v5e:4x4")
    >>> gather = Collective("all-gather", ("model",), 1 << 20)
    >>> view = link_view(LinkRequest("0:0", gather, placement))
    >>> view["words"]
    'all-gather over model along x: busiest link 768 KiB one way, at least 16 µs.'
    """
    placement, collective = request.placement, request.collective
    mesh, topology = placement.mesh, placement.topology
    try:
        links = collective_link_use(collective, mesh, topology)
    except ShardvizError as error:
        return {"key": request.key, "words": str(error)}
    view: dict[str, Any] = {
        "key": request.key,
        "words": links_in_words(collective, links),
    }
    if links is None:
        return view
    drawn = draw_position(mesh, topology, collective, title="", links=links, bare=True)
    buffers: list[bytes] = []
    view["edges"] = edges_data(drawn.edges, buffers)
    if buffers:
        view["buffers"] = buffers
    return view
