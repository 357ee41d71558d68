"""The pictures that the page paints: devices, and one an array; drawn only where they changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from shardviz.core.errors import ShardvizError
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.request import Request
from shardviz.core.program.report import Collective
from shardviz.core.program.roofline import collective_link_use
from shardviz.picture.layout import draw_layout_array
from shardviz.picture.mesh import draw_mesh
from shardviz.picture.palette import THEMES, palette
from shardviz.picture.picture import Picture
from shardviz.picture.serialization import serialize
from shardviz.picture.topology import draw_position
from shardviz.widgets.background import LatestWins
from shardviz.widgets.device_placement import DevicePlacement, link_words, why_no_placement
from shardviz.widgets.session import Session

# A small picture beside the main one shows an array only up to so many blocks.
MAX_THUMB_BLOCKS = 4096
NAME = "\u2060"  # stands for a name until a picture gets one


class PictureCache:
    """What was drawn last, so that an edit draws and sends no more than what it changed."""

    def __init__(self) -> None:
        self._devices: tuple[Any, dict[str, Any]] = (None, {})
        self._arrays: dict[Any, dict[str, Any]] = {}  # by what is drawn, whatever its name
        self._named: dict[Any, dict[str, Any]] = {}
        self._shown: tuple[Any, list[dict[str, Any] | None]] = (None, [])
        self._last: dict[int, dict[str, Any]] = {}

    def update(
        self, session: Session, there: DevicePlacement | None = None
    ) -> tuple[dict[str, Any], list[dict[str, Any] | None]]:
        """The devices and the arrays, as the page takes them; None for what cannot be drawn.

        Args:
            session: what is shown.
            there: where the devices stand on the target; None where that is not known.
        """
        return self._device_part(session, there), self._array_part(session)

    def _device_part(self, session: Session, there: DevicePlacement | None) -> dict[str, Any]:
        mesh, by, note = session.mesh, session.look["by"], ""
        if by == "position" and there is None:
            by, note = "mesh", f"By mesh axes: {why_no_placement(mesh, session.target)}"
        known, part = self._devices
        place = there if by == "position" else None
        key = (mesh, by, note, place, there is not None)
        if known is None or known[1:] != key[1:] or known[0] != mesh:
            part = {
                **_drawn(mesh, by, place),
                "by": by,
                "has_positions": there is not None,
                "note": note,
                "count": place.words if place is not None else "",
            }
            self._devices = (key, part)
        return part

    def _array_part(self, session: Session) -> list[dict[str, Any] | None]:
        keys = [
            (_key(asked, session.look if i == session.selected else None), asked.array.name)
            for i, asked in enumerate(session.program.requests)
        ]
        if self._shown[0] == keys:
            return self._shown[1]
        pictures, drawn, named = [], {}, {}
        for index, (both, asked) in enumerate(zip(keys, session.program.requests, strict=True)):
            picture, (key, name) = None, both
            if key is not None:
                # The layers of a model look alike: each kind is drawn once.
                drawn[key] = drawn.get(key) or self._arrays.get(key) or _draw(asked, key)
                picture = self._named.get(both) or _with_name(drawn[key], name)
                named[both] = picture
                self._last[index] = picture
            elif index == session.selected and asked.layout is None:
                picture = self._last.get(index)  # the last good picture stays
            pictures.append(picture)
        self._arrays, self._named = drawn, named
        self._shown = (keys, pictures)
        return self._shown[1]


def _drawn(mesh: MeshSpec, by: str, place: DevicePlacement | None) -> dict[str, Any]:
    """The picture of the devices, and the id and host of each in mesh order."""
    if place is None:
        picture = draw_mesh(mesh, by=by, title="")
    else:
        mesh = place.mesh
        picture = draw_position(mesh, place.topology, title="", bare=True)
    return {
        "picture": serialized(picture),
        "ids": b"" if mesh.ids_are_positions else _numbers(mesh.device_ids),
        "hosts": b"" if mesh.processes == (0,) else _numbers(mesh.process_indices),
        "size": mesh.size,
    }


def _numbers(values: np.ndarray) -> bytes:
    return values.astype("<i4").tobytes()


def _key(asked: Request, look: dict[str, Any] | None) -> Any:
    """What a picture depends on; None where there is nothing to draw."""
    layout = asked.layout
    if layout is None or (look is None and layout.num_blocks > MAX_THUMB_BLOCKS):
        return None
    shown = (look["dims"], look["at"]) if look else (None, None)
    kind, counts, mesh = (layout.shape, layout.dtype), layout.block_counts, layout.mesh
    # Two meshes may have the same sizes and other devices.
    ids = None if mesh.ids_are_positions else mesh.device_ids.tobytes()
    return (
        kind,
        counts,
        layout.spec,
        asked.array.logical,
        (mesh.axis_names, mesh.axis_sizes),
        ids,
        shown,
    )


def _draw(asked: Request, key: Any) -> dict[str, Any]:
    dims, at = key[-1]
    layout: Layout = asked.layout  # type: ignore[assignment]
    return serialized(draw_layout_array(layout, dims, at, NAME, asked.array.logical, title=""))


def _with_name(drawn: dict[str, Any], name: str) -> dict[str, Any]:
    """A picture that stands for one of the arrays that look so; only words differ."""
    data = drawn["data"]
    hint = [name, *data["tiles"]["hint"][1:]]
    alt = data["alt"].replace(NAME, name, 1)
    named = {**data, "alt": alt, "tiles": {**data["tiles"], "hint": hint}}
    return {"data": named, "buffers": drawn["buffers"]}


def serialized(picture: Picture) -> dict[str, Any]:
    """A Picture for the page, which brings its own colours: the JSON and its buffers."""
    data, buffers = serialize(picture, with_palette=False)
    return {"data": data, "buffers": buffers}


def palettes() -> dict[str, dict[str, Any]]:
    """Both themes' colours, as the page takes them."""
    return {
        name: {
            "paper": theme.paper,
            "ink": theme.ink,
            "muted": theme.muted,
            "groups": list(theme.groups),
            "ramp": [
                "#" + "".join(f"{int(v):02x}" for v in row[:3])
                for row in palette(72, "ramp", theme, "strong")[8:]  # the first are nearly paper
            ],
        }
        for name, theme in THEMES.items()
    }


LinkRequest = tuple[str, Collective, DevicePlacement]


class LinkPictures:
    """Draws the links of one collective at a time; the newest choice counts.

    Args:
        changed: called from the thread when there is another picture.

    Attributes:
        chosen: the stage and number of the collective that somebody chose, `"0:3"`; `""` for none.
        view: what the page takes: `key`, `words`, and `picture` where there is one.
    """

    def __init__(self, changed: Callable[[], None]):
        self.chosen = ""
        self.view: dict[str, Any] = {}
        self._changed = changed
        self._wanted: LinkRequest | None = None
        self._worker = LatestWins[LinkRequest]("shardviz-links", self._draw)

    def update(self, collective: Collective | None, there: DevicePlacement | None) -> None:
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

    def _draw(self, wanted: LinkRequest, stop: Callable[[], bool]) -> None:
        view = links_view(*wanted)
        if not stop() and self._wanted is wanted:
            self.view = view
            self._changed()


def links_view(key: str, collective: Collective, there: DevicePlacement) -> dict[str, Any]:
    """The links of a collective for the page: their picture and a sentence.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.widgets.device_placement import device_placement
    >>> there = device_placement(make_mesh(data=4, model=4), "tpu:v5e:4x4")
    >>> view = links_view("0:0", Collective("all-gather", ("model",), 1 << 20), there)
    >>> view["words"]
    'Lines over model along x: each link carries 768 KiB each way, at least 16 µs.'
    """
    mesh, topology = there.mesh, there.topology
    try:
        links = collective_link_use(collective, mesh, topology)
        words, picture = link_words(collective, links), None
        if links is not None:
            drawn = draw_position(mesh, topology, collective, title="", links=links, bare=True)
            picture = serialized(drawn)
    except ShardvizError as error:
        return {"key": key, "words": str(error)}
    return {"key": key, "words": words, "picture": picture}


def _same(one: LinkRequest | None, other: LinkRequest | None) -> bool:
    """By identity: collectives and meshes are large."""
    if one is None or other is None:
        return one is other
    return one[0] == other[0] and one[1] is other[1] and one[2] is other[2]
