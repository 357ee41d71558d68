"""The links that a collective uses: a picture and a sentence for the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardviz.base.collective import Collective
from shardviz.base.errors import ShardvizError
from shardviz.base.format import error_text
from shardviz.base.typing import JsonDict
from shardviz.compiled.words import stages as wording
from shardviz.draw.serialization import edges_data
from shardviz.explorer.background import LatestView
from shardviz.explorer.targets import DevicePlacement
from shardviz.hardware.draw.topology import draw_position
from shardviz.hardware.interconnect import collective_link_use
from shardviz.hardware.words.links import links_in_words


@dataclass(frozen=True, eq=False)
class LinkRequest:
    """A collective to draw, its key on the page, and the placement of its devices."""

    key: str
    collective: Collective
    placement: DevicePlacement


class LinkPictures(LatestView[LinkRequest]):
    """Draws the links of the selected collective in the background.

    Attributes:
        chosen: stage and index of the selected collective, as `"0:3"`; `""` for none.
    """

    def __init__(self, changed: Callable[[], None]):
        super().__init__("shardviz-links", link_view, _not_drawn, changed)
        self.chosen = ""

    def update(
        self, collective: Collective | None, placement: DevicePlacement | None
    ) -> None:
        """Draws a collective on placed devices; clears the view if either is None."""
        # Links can be drawn only between devices with coordinates.
        if not self.chosen or collective is None or placement is None:
            self.requested, self.view = None, {}
            self.drop()
            return
        old = self.requested
        # This is called after every edit, so don't draw the same picture again.
        if old is not None and old.key == self.chosen:
            if old.collective is collective and old.placement is placement:
                return
        self.request(LinkRequest(self.chosen, collective, placement))


def _not_drawn(request: LinkRequest, error: BaseException) -> JsonDict:
    return {"key": request.key, "words": wording.not_drawn(error_text(error))}


def link_view(request: LinkRequest) -> JsonDict:
    """Returns page data for a collective's links: lines to draw, and a sentence.

    >>> from shardviz.base.mesh import make_mesh
    >>> from shardviz.explorer.targets import device_placement
    >>> placement = device_placement(make_mesh(data=4, model=4), "tpu:v5e:4x4")
    >>> gather = Collective("all-gather", ("model",), 1 << 20)
    >>> view = link_view(LinkRequest("0:0", gather, placement))
    >>> view["words"]
    'all-gather over model along x: busiest link 768 KiB one way, at least 19 µs.'
    """
    placement, collective = request.placement, request.collective
    mesh, topology = placement.mesh, placement.topology
    try:
        links = collective_link_use(collective, mesh, topology)
    except ShardvizError as error:
        return {"key": request.key, "words": str(error)}
    view: JsonDict = {
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
