"""LinkPictures: the links of the chosen collective, drawn while the page goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardviz.core.errors import ShardvizError
from shardviz.core.program.costs.roofline import collective_links
from shardviz.core.program.report import Collective
from shardviz.picture.draw_position import draw_position
from shardviz.widgets.link_words import link_words
from shardviz.widgets.newest import Newest
from shardviz.widgets.pictures import wire
from shardviz.widgets.standing import Standing

Wanted = tuple[str, Collective, Standing]


class LinkPictures:
    """Draws the links of one collective at a time; the newest choice counts.

    Args:
        changed: called from the thread when there is another picture.

    Attributes:
        chosen: the rung and number of the collective that somebody chose, `"0:3"`; `""` for none.
        view: what the page takes: `key`, `words`, and `picture` where there is one.
    """

    def __init__(self, changed: Callable[[], None]):
        self.chosen = ""
        self.view: dict[str, Any] = {}
        self._changed = changed
        self._wanted: Wanted | None = None
        self._worker = Newest[Wanted]("shardviz-links", self._draw)

    def update(self, collective: Collective | None, there: Standing | None) -> None:
        """Draws what was chosen where devices stand; nothing where one of them is None."""
        wanted = None
        if self.chosen and collective is not None and there is not None:
            wanted = (self.chosen, collective, there)
        if _same(wanted, self._wanted):
            return
        self._wanted = wanted
        if wanted is None:
            self._worker.drop()
            self.view = {}
        else:
            self._worker.ask(wanted)

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until nothing is being drawn; for scripts and tests."""
        return self._worker.wait(timeout)

    def close(self) -> None:
        """Ends the thread."""
        self._worker.close()

    def _draw(self, wanted: Wanted, stop: Callable[[], bool]) -> None:
        view = links_view(*wanted)
        if not stop() and self._wanted is wanted:
            self.view = view
            self._changed()


def links_view(key: str, collective: Collective, there: Standing) -> dict[str, Any]:
    """The links of a collective for the page: their picture and a sentence.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.widgets.standing import standing
    >>> there = standing(make_mesh(data=4, model=4), "tpu:v5e:4x4")
    >>> view = links_view("0:0", Collective("all-gather", ("model",), 1 << 20), there)
    >>> view["words"]
    'Lines over model along x: each link carries 768 KiB each way, at least 16 µs.'
    """
    mesh, topology = there.mesh, there.topology
    try:
        links = collective_links(collective, mesh, topology)
        words, picture = link_words(collective, links), None
        if links is not None:
            drawn = draw_position(mesh, topology, collective, title="", links=links, bare=True)
            picture = wire(drawn)
    except ShardvizError as error:
        return {"key": key, "words": str(error)}
    return {"key": key, "words": words, "picture": picture}


def _same(one: Wanted | None, other: Wanted | None) -> bool:
    """By identity: collectives and meshes are large."""
    if one is None or other is None:
        return one is other
    return one[0] == other[0] and one[1] is other[1] and one[2] is other[2]
