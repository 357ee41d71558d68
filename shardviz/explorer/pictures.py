"""The pictures of the page: devices and arrays, drawn only where they changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from shardviz.axis_rules.requests import Request
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec
from shardviz.draw.blocks import MOST_TILES
from shardviz.draw.layout import draw_layout_array
from shardviz.draw.palette import THEMES, ladder
from shardviz.draw.picture import NO_GROUP, Picture
from shardviz.draw.serialization import column, serialize
from shardviz.explorer.document import Document
from shardviz.explorer.session_view import layout_numbers
from shardviz.explorer.targets import DevicePlacement, why_no_placement
from shardviz.explorer.words import explorer as wording
from shardviz.hardware.draw.mesh import draw_mesh
from shardviz.hardware.draw.topology import draw_position

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
        self, document: Document, placement: DevicePlacement | None = None
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The pictures of the devices and of each array.

        An array without a layout, if selected, keeps its last picture, with the numbers
        of the layout that it shows as `pictured`. Nothing is there for an array that
        cannot be drawn.
        """
        devices = self._device_view(document, placement)
        return devices, self._array_pictures(document, placement)

    def _device_view(
        self, document: Document, placement: DevicePlacement | None
    ) -> dict[str, Any]:
        by, note = document.by, ""
        mesh = document.mesh
        if placement is not None:
            mesh = placement.mesh
        why = ""
        if placement is None:
            why = why_no_placement(mesh, document.target)
        if by == "position" and why:
            by, note = "mesh", wording.NOT_BY_POSITION.format(why)
        elif _numbered_by_position(mesh):
            note = wording.TOO_MANY_IDS
        key = (mesh, by, note, why, placement)
        if self._devices[0] != key:
            at, count = None, ""
            if by == "position" and placement is not None:
                order = wording.ID_ORDER
                if placement.compiled:
                    order = wording.COMPILED_ORDER
                at, count = placement, order.format(mesh.size)
            view = _drawn_devices(mesh, by, at)
            view.update(by=by, no_positions=why)
            view.update(note=note or view["note"], count=count)
            self._devices = (key, view)
        return self._devices[1]

    def _array_pictures(
        self, document: Document, placement: DevicePlacement | None
    ) -> list[dict[str, Any]]:
        requests, keys = [], []
        for number, request in enumerate(document.program.requests):
            # The devices of a described target have ids of their own.
            if placement is not None and request.layout is not None:
                layout = replace(request.layout, mesh=placement.mesh)
                request = replace(request, layout=layout)
            shown = None
            if number == document.selected:
                shown = document.dims, document.at
            requests.append(request)
            keys.append(_key(request, shown))
        if self._shown[0] == keys:
            return self._shown[1]
        pictures: list[dict[str, Any]] = []
        drawn: dict[Any, dict[str, Any]] = {}
        for number, (key, request) in enumerate(zip(keys, requests, strict=True)):
            picture: dict[str, Any] = {}
            if key is not None and request.layout is not None:
                # The layers of a model look alike: each is drawn once.
                if key not in drawn:
                    drawn[key] = self._arrays.get(key) or _drawn_array(request, key)
                picture = {"picture": drawn[key]}
                numbers = layout_numbers(request.layout)
                self._last[number] = {**picture, "pictured": numbers}
            elif number == document.selected and request.layout is None:
                picture = self._last.get(number, {})
            pictures.append(picture)
        self._arrays = drawn
        self._shown = (keys, pictures)
        return pictures


def _numbered_by_position(mesh: MeshSpec) -> bool:
    """Whether the page, which would need the id of every device, shows positions."""
    return mesh.size > MOST_TILES and not mesh.ids_are_positions


def _drawn_devices(
    mesh: MeshSpec, by: str, placement: DevicePlacement | None
) -> dict[str, Any]:
    """The picture of the devices, and the id and host of each in mesh order."""
    if placement is not None:
        picture = draw_position(mesh, placement.topology, title="", bare=True)
    else:
        if _numbered_by_position(mesh):
            mesh = MeshSpec(mesh.axis_names, mesh.axis_sizes, mesh.axis_types)
        picture = draw_mesh(mesh, by=by, title="")
    # The page colours devices by what they hold.
    group = np.full(len(picture.tiles), NO_GROUP, np.int32)
    tiles = replace(picture.tiles, group=group)
    picture = replace(picture, tiles=tiles, groups=1, shades=None)
    # What a tile is, where there are more devices than tiles.
    notes = [v.text.strip() for v in picture.labels if v.role == "note"]
    view = {"picture": serialized_devices(picture), "size": mesh.size}
    view["note"] = " ".join(notes) if placement is None else ""
    buffers: list[bytes] = []
    if not mesh.ids_are_positions:
        view["ids"] = column(mesh.device_ids.ravel(), buffers)
    # Of larger meshes the tooltips have the hosts.
    if mesh.processes != (0,) and mesh.size <= MOST_TILES:
        view["hosts"] = column(mesh.process_indices.ravel(), buffers)
    if buffers:
        view["buffers"] = buffers
    return view


def _key(request: Request, shown: tuple[Any, Any] | None) -> Any:
    """What the picture of an array depends on; None where there is nothing to draw.

    Args:
        request: the array.
        shown: the dimensions and blocks of the selected array; None for any other.
    """
    layout = request.layout
    if layout is None or (shown is None and layout.num_blocks > MAX_THUMB_BLOCKS):
        return None
    mesh = layout.mesh
    # Two meshes may have the same sizes and other devices.
    ids: Any = None
    if mesh.size > MOST_TILES and not mesh.ids_are_positions:
        ids = mesh
    elif not mesh.ids_are_positions:
        ids = mesh.device_ids.tobytes()
    return (
        (layout.shape, layout.dtype),
        layout.block_counts,
        layout.spec,
        request.array.logical,
        (mesh.axis_names, mesh.axis_sizes),
        ids,
        shown or (None, None),
    )


def _drawn_array(request: Request, key: Any) -> dict[str, Any]:
    dims, at = key[-1]
    layout: Layout = request.layout  # type: ignore[assignment]
    names = request.array.logical
    picture = draw_layout_array(layout, dims, at, "", names, title="", legible=False)
    # Of two dimensions there are none to choose.
    facts = {}
    if len(layout.shape) > 2 or picture.facts["note"]:
        facts = {name: picture.facts[name] for name in ("dims", "steps", "note")}
    # What is written around the tiles is in the rulers, and the page knows its scale.
    return serialized(replace(picture, labels=(), facts=facts))


def serialized_devices(picture: Picture) -> dict[str, Any]:
    """A picture of devices without the texts of tiles, which the page writes itself."""
    tiles = replace(picture.tiles, text=())
    labels = picture.labels
    # Those of axes are in the rulers; frames have the names of hosts.
    if picture.facts["by"] != "position":
        labels = ()
    return serialized(replace(picture, tiles=tiles, labels=labels, facts={}))


def serialized(picture: Picture) -> dict[str, Any]:
    """A Picture for the page: the JSON and its buffers."""
    data, buffers = serialize(picture)
    if not buffers:
        return {"data": data}
    return {"data": data, "buffers": buffers}


def palettes() -> dict[str, dict[str, Any]]:
    """The colours of both themes for the page."""
    themes = {}
    for name, theme in THEMES.items():
        themes[name] = {
            "paper": theme.paper,
            "text": theme.text,
            "muted": theme.muted,
            "groups": list(theme.groups),
            "tints": [list(ladder(row)) for row in theme.tints],
        }
    return themes
