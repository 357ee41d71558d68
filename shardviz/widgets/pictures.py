"""The pictures of the page: devices, arrays and links, drawn only where they changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from shardviz.core.errors import ShardvizError
from shardviz.core.format import bytes_text
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.resolution import Request
from shardviz.core.program.report import Collective
from shardviz.core.program.roofline import collective_link_use
from shardviz.picture.blocks import MOST_TILES
from shardviz.picture.layout import draw_layout_array
from shardviz.picture.mesh import draw_mesh
from shardviz.picture.palette import THEMES, palette
from shardviz.picture.picture import NO_DEVICE, Picture
from shardviz.picture.serialization import column, serialize
from shardviz.picture.topology import draw_position
from shardviz.widgets.background import LatestWins
from shardviz.widgets.device_placement import DevicePlacement, link_words, why_no_placement
from shardviz.widgets.session import Session

# A small picture beside the main one shows an array only up to so many blocks.
MAX_THUMB_BLOCKS = 4096


class PictureCache:
    """The pictures of the last edit, so that the next one draws only what it changes."""

    def __init__(self) -> None:
        self._devices: tuple[Any, dict[str, Any]] = (None, {})
        self._arrays: dict[Any, dict[str, Any]] = {}  # by what is drawn
        self._shown: tuple[Any, list[dict[str, Any]]] = (None, [])
        self._last: dict[int, dict[str, Any]] = {}

    def update(
        self, session: Session, placement: DevicePlacement | None = None
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The pictures of the devices and of each array.

        An array without a layout, if selected, keeps its last picture, with the numbers of the
        layout that it shows as `pictured`. Nothing is there for an array that cannot be drawn.

        Args:
            session: whose mesh and arrays are drawn.
            placement: of the mesh on the target; None where that has no coordinates.
        """
        return self._device_view(session, placement), self._array_pictures(session)

    def _device_view(self, session: Session, placement: DevicePlacement | None) -> dict[str, Any]:
        mesh, by, note = session.mesh, session.look["by"], ""
        if by == "position" and placement is None:
            by, note = "mesh", f"By mesh axes: {why_no_placement(mesh, session.target)}"
        elif mesh.size > MOST_TILES and not mesh.ids_are_positions:
            note = "Numbers are positions in the mesh: it has too many device ids for this page."
        known, view = self._devices
        shown = placement if by == "position" else None
        key = (mesh, by, note, shown, placement is not None)
        if known is None or known[1:] != key[1:] or known[0] != mesh:
            view = {
                **_drawn(mesh, by, shown),
                "by": by,
                "has_positions": placement is not None,
                "note": note,
                "count": shown.words if shown is not None else "",
            }
            self._devices = (key, view)
        return view

    def _array_pictures(self, session: Session) -> list[dict[str, Any]]:
        keys = [
            _key(request, session.look if i == session.selected else None)
            for i, request in enumerate(session.program.requests)
        ]
        if self._shown[0] == keys:
            return self._shown[1]
        pictures: list[dict[str, Any]] = []
        drawn: dict[Any, dict[str, Any]] = {}
        for index, (key, request) in enumerate(zip(keys, session.program.requests, strict=True)):
            picture: dict[str, Any] = {}
            if key is not None and request.layout is not None:
                # The layers of a model look alike: each look is drawn once.
                drawn[key] = drawn.get(key) or self._arrays.get(key) or _draw(request, key)
                picture = {"picture": drawn[key]}
                self._last[index] = {**picture, "pictured": layout_numbers(request.layout)}
            elif index == session.selected and request.layout is None:
                picture = self._last.get(index, {})  # the last good picture stays
            pictures.append(picture)
        self._arrays = drawn
        self._shown = (keys, pictures)
        return self._shown[1]


def layout_numbers(layout: Layout) -> dict[str, Any]:
    """What the page says about the blocks of an array."""
    return {
        "counts": list(layout.block_counts),
        "shard": list(layout.shard_shape),
        "replicas": layout.replicas,
        "shardBytes": bytes_text(layout.bytes_per_device),
    }


def _drawn(mesh: MeshSpec, by: str, placement: DevicePlacement | None) -> dict[str, Any]:
    """The picture of the devices, and the id and host of each in mesh order."""
    if placement is None and mesh.size > MOST_TILES and not mesh.ids_are_positions:
        # The page would need the id of every device; in the place of these it shows positions.
        mesh = MeshSpec(mesh.axis_names, mesh.axis_sizes, mesh.axis_types)
    if placement is None:
        picture = draw_mesh(mesh, by=by, title="")
    else:
        mesh = placement.mesh
        picture = draw_position(mesh, placement.topology, title="", bare=True)
    buffers: list[bytes] = []
    ids = {} if mesh.ids_are_positions else {"ids": column(mesh.device_ids.ravel(), buffers)}
    hosts = {}
    if mesh.processes != (0,) and mesh.size <= MOST_TILES:  # else the tooltips have the hosts
        hosts["hosts"] = column(mesh.process_indices.ravel(), buffers)
    # The page colours devices by what they hold.
    tiles = replace(picture.tiles, group=np.zeros(len(picture.tiles.x), np.int32))
    picture = replace(picture, tiles=tiles, groups=1)
    view = {"picture": _serialized_devices(picture), **ids, **hosts, "size": mesh.size}
    return {**view, "buffers": buffers} if buffers else view


def _key(request: Request, look: dict[str, Any] | None) -> Any:
    """What a picture depends on; None where there is nothing to draw."""
    layout = request.layout
    if layout is None or (look is None and layout.num_blocks > MAX_THUMB_BLOCKS):
        return None
    shown = (look["dims"], look["at"]) if look else (None, None)
    mesh = layout.mesh
    # Two meshes may have the same sizes and other devices.
    ids: Any = None
    if not mesh.ids_are_positions:
        large = mesh.size > MOST_TILES
        ids = mesh if large else mesh.device_ids.tobytes()
    return (
        (layout.shape, layout.dtype),
        layout.block_counts,
        layout.spec,
        request.array.logical,
        (mesh.axis_names, mesh.axis_sizes),
        ids,
        shown,
    )


def _draw(request: Request, key: Any) -> dict[str, Any]:
    dims, at = key[-1]
    layout: Layout = request.layout  # type: ignore[assignment]
    picture = draw_layout_array(layout, dims, at, "", request.array.logical, title="")
    # `holders` says which devices a block has; of two dimensions there are none to choose.
    tiles = replace(picture.tiles, device=np.full(len(picture.tiles), NO_DEVICE))
    facts = picture.facts if len(layout.shape) > 2 else {}
    return serialized(replace(picture, tiles=tiles, facts=facts))


def _serialized_devices(picture: Picture) -> dict[str, Any]:
    """Without the texts of tiles: the page knows what to write into devices."""
    tiles = replace(picture.tiles, text=(), columns={})
    return serialized(replace(picture, tiles=tiles, facts={}))


def serialized(picture: Picture) -> dict[str, Any]:
    """A Picture for the page: the JSON and its buffers.

    Without what the page has or knows: colours, and what a tooltip says; and without what it does
    not show.
    """
    tiles = replace(picture.tiles, hint=(), radius=0, align="middle")
    bare = replace(picture, alt="", legend=(), tiles=tiles)
    data, buffers = serialize(bare, with_palette=False)
    return {"data": data, **({"buffers": buffers} if buffers else {})}


def palettes() -> dict[str, dict[str, Any]]:
    """The colours of both themes for the page."""
    return {
        name: {
            "paper": theme.paper,
            "text": theme.text,
            "muted": theme.muted,
            "groups": list(theme.groups),
            "ramp": [
                "#" + "".join(f"{int(v):02x}" for v in row[:3])
                for row in palette(72, "ramp", theme, "strong")[8:]  # the first are nearly white
            ],
        }
        for name, theme in THEMES.items()
    }


LinkRequest = tuple[str, Collective, DevicePlacement]


class LinkPictures:
    """Draws the links of the collective that was chosen last.

    Args:
        changed: called from the thread when there is another picture.

    Attributes:
        chosen: the stage and number of the collective, `"0:3"`; `""` for none.
        view: for the page: `key`, `words`, and `picture` where there is one.
    """

    def __init__(self, changed: Callable[[], None]):
        self.chosen = ""
        self.view: dict[str, Any] = {}
        self._changed = changed
        self._requested: LinkRequest | None = None
        self._worker = LatestWins[LinkRequest]("shardviz-links", self._draw)

    def update(self, collective: Collective | None, placement: DevicePlacement | None) -> None:
        """Draws the chosen collective on the placed devices; nothing where one of them is None."""
        request = None
        if self.chosen and collective is not None and placement is not None:
            request = (self.chosen, collective, placement)
        if _same(request, self._requested):
            return
        self._requested = request
        if request is None:
            self._worker.drop()
            self.view = {}
        else:
            self._worker.request(request)

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until nothing is being drawn; for scripts and tests."""
        return self._worker.wait(timeout)

    def close(self) -> None:
        """Ends the thread."""
        self._worker.close()

    def _draw(self, request: LinkRequest, stop: Callable[[], bool]) -> None:
        view = link_view(*request)
        if not stop() and self._requested is request:
            self.view = view
            self._changed()


def link_view(key: str, collective: Collective, placement: DevicePlacement) -> dict[str, Any]:
    """The links of a collective for the page: their picture and a sentence.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.widgets.device_placement import device_placement
    >>> placement = device_placement(make_mesh(data=4, model=4), "tpu:v5e:4x4")
    >>> view = link_view("0:0", Collective("all-gather", ("model",), 1 << 20), placement)
    >>> view["words"]
    'Lines over model along x: each link carries 768 KiB each way, at least 16 µs.'
    """
    mesh, topology = placement.mesh, placement.topology
    try:
        links = collective_link_use(collective, mesh, topology)
        words, picture = link_words(collective, links), None
        if links is not None:
            drawn = draw_position(mesh, topology, collective, title="", links=links, bare=True)
            picture = _serialized_devices(drawn)
    except ShardvizError as error:
        return {"key": key, "words": str(error)}
    return {"key": key, "words": words, "picture": picture}


def _same(one: LinkRequest | None, other: LinkRequest | None) -> bool:
    """By identity: collectives and meshes are large."""
    if one is None or other is None:
        return one is other
    return one[0] == other[0] and one[1] is other[1] and one[2] is other[2]
