"""Pictures of devices and arrays for the page, redrawn only when they change."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardviz.axis_rules.requests import Request
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.base.typing import JsonDict
from shardviz.draw.blocks import MOST_TILES
from shardviz.draw.layout import draw_layout_array
from shardviz.draw.palette import THEMES
from shardviz.draw.picture import NO_GROUP, Picture
from shardviz.draw.serialization import column, serialize
from shardviz.explorer.document import Document
from shardviz.explorer.session_view import layout_numbers
from shardviz.explorer.targets import DevicePlacement, why_no_placement
from shardviz.explorer.words import explorer as wording
from shardviz.hardware.draw.mesh import draw_mesh
from shardviz.hardware.draw.topology import draw_position

# Arrays with more blocks than this have no thumbnail.
MAX_THUMB_BLOCKS = 4096


class PictureCache:
    """Keeps the pictures of the last edit, so that only changed ones are redrawn."""

    def __init__(self) -> None:
        self._devices: tuple[Hashable, JsonDict] = (None, {})
        self._arrays: dict[_ArrayKey, JsonDict] = {}
        self._shown: tuple[Sequence[_ArrayKey | None], list[JsonDict]] = ([], [])
        self._last: dict[int, JsonDict] = {}

    def update(
        self, document: Document, placement: DevicePlacement | None = None
    ) -> tuple[JsonDict, list[JsonDict]]:
        """Returns the picture of the devices, and the pictures of all arrays.

        If the selected array has no layout, its last picture is kept. `pictured` then
        has the numbers of that picture's layout. Other arrays without a layout have no picture.
        """
        devices = self._device_view(document, placement)
        return devices, self._array_pictures(document, placement)

    def _device_view(
        self, document: Document, placement: DevicePlacement | None
    ) -> JsonDict:
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
    ) -> list[JsonDict]:
        requests, keys = [], []
        for number, request in enumerate(document.program.requests):
            # Described targets have their own device ids.
            if placement is not None and request.layout is not None:
                layout = replace(request.layout, mesh=placement.mesh)
                request = replace(request, layout=layout)
            requests.append(request)
            keys.append(_key(request, document, number == document.selected))
        if self._shown[0] == keys:
            return self._shown[1]
        pictures: list[JsonDict] = []
        drawn: dict[_ArrayKey, JsonDict] = {}
        for number, (key, request) in enumerate(zip(keys, requests, strict=True)):
            picture: JsonDict = {}
            if key is not None and request.layout is not None:
                # Layers of a model share a key, so their picture is drawn once.
                if key not in drawn:
                    drawn[key] = self._arrays.get(key) or _drawn_array(
                        request.layout, key
                    )
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
    """Whether the page shows mesh positions, because it can't hold all device ids."""
    return mesh.size > MOST_TILES and not mesh.ids_are_positions


def _drawn_devices(
    mesh: MeshSpec, by: str, placement: DevicePlacement | None
) -> JsonDict:
    """Draws the devices, and adds their ids and hosts in mesh order."""
    if placement is not None:
        picture = draw_position(mesh, placement.topology, title="", bare=True)
    else:
        if _numbered_by_position(mesh):
            mesh = MeshSpec(mesh.axis_names, mesh.axis_sizes, mesh.axis_types)
        picture = draw_mesh(mesh, by=by, title="")
    # The page itself colours devices by the blocks they hold.
    group = np.full(len(picture.tiles), NO_GROUP, np.int32)
    tiles = replace(picture.tiles, group=group)
    picture = replace(picture, tiles=tiles, groups=1, shades=None)
    # With more devices than tiles, the notes explain which devices a tile shows.
    notes = [v.text.strip() for v in picture.labels if v.role == "note"]
    view = {"picture": serialized_devices(picture), "size": mesh.size}
    view["note"] = " ".join(notes) if placement is None else ""
    buffers: list[bytes] = []
    if not mesh.ids_are_positions:
        view["ids"] = column(mesh.device_ids.ravel(), buffers)
    # For larger meshes, the tooltips show the hosts.
    if mesh.processes != (0,) and mesh.size <= MOST_TILES:
        view["hosts"] = column(mesh.process_indices.ravel(), buffers)
    if buffers:
        view["buffers"] = buffers
    return view


@dataclass(frozen=True)
class _ArrayKey:
    """Everything that the picture of an array depends on.

    Attributes:
        dims, at: the shown dimensions and blocks; None unless the array is selected.
        ids: the device ids as bytes, or the mesh if there are many; None if they equal
            the mesh positions.
    """

    shape: tuple[int, ...]
    dtype: str
    block_counts: tuple[int, ...]
    spec: Spec | None
    names: tuple[str | None, ...] | None
    axes: tuple[tuple[str, ...], tuple[int, ...]]
    ids: bytes | MeshSpec | None
    dims: tuple[int, ...] | None
    at: tuple[int, ...] | None


def _key(request: Request, document: Document, selected: bool) -> _ArrayKey | None:
    """Returns the cache key of an array's picture; None if the array isn't drawn."""
    layout = request.layout
    if layout is None:
        return None
    if not selected and layout.num_blocks > MAX_THUMB_BLOCKS:
        return None
    mesh = layout.mesh
    # Meshes with the same axes may have different devices.
    ids: bytes | MeshSpec | None = None
    if mesh.size > MOST_TILES and not mesh.ids_are_positions:
        ids = mesh
    elif not mesh.ids_are_positions:
        ids = mesh.device_ids.tobytes()
    return _ArrayKey(
        shape=layout.shape,
        dtype=layout.dtype,
        block_counts=layout.block_counts,
        spec=layout.spec,
        names=request.array.logical,
        axes=(mesh.axis_names, mesh.axis_sizes),
        ids=ids,
        dims=document.dims if selected else None,
        at=document.at if selected else None,
    )


def _drawn_array(layout: Layout, key: _ArrayKey) -> JsonDict:
    picture = draw_layout_array(
        layout, key.dims, key.at, "", key.names, title="", legible=False
    )
    # With two dimensions, the user has no dimensions to choose.
    facts = {}
    if len(layout.shape) > 2 or picture.facts["note"]:
        facts = {name: picture.facts[name] for name in ("dims", "steps", "note")}
    # The page scales the tiles, so it draws rulers instead of these labels.
    return serialized(replace(picture, labels=(), facts=facts))


def serialized_devices(picture: Picture) -> JsonDict:
    """Serializes a picture of devices without tile texts, which the page adds."""
    tiles = replace(picture.tiles, text=())
    labels = picture.labels
    # The page's rulers show the axes, and its frames show the hosts.
    if picture.facts["by"] != "position":
        labels = ()
    return serialized(replace(picture, tiles=tiles, labels=labels, facts={}))


def serialized(picture: Picture) -> JsonDict:
    """Serializes a Picture for the page: JSON data, and buffers if it has any."""
    data, buffers = serialize(picture)
    if not buffers:
        return {"data": data}
    return {"data": data, "buffers": buffers}


def palettes() -> dict[str, JsonDict]:
    """Returns the colours of both themes for the page."""
    themes = {}
    for name, theme in THEMES.items():
        themes[name] = {
            "paper": theme.paper,
            "text": theme.text,
            "muted": theme.muted,
            "groups": list(theme.groups),
            "ladders": [list(row) for row in theme.ladders],
        }
    return themes
