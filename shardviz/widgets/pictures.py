"""The pictures of the page: devices, arrays, links, and what moves in a collective or a reshard.

Devices and arrays are drawn only where they changed; what is played is made when it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np

from shardviz.core.errors import ProgramError, ShardvizError
from shardviz.core.format import bytes_text, error_text, plural, seconds_text
from shardviz.core.hardware.interconnect import LinkUse, groups_over
from shardviz.core.layout.layout import Layout, lay_out
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.resolution import Request
from shardviz.core.program.movement import (
    ALGORITHMS,
    PERMUTE,
    Movement,
    movement_of,
    reshard_movement,
)
from shardviz.core.program.movement_steps import chains_of
from shardviz.core.program.plan import Plan, PlannedOp
from shardviz.core.program.report import Collective
from shardviz.core.program.roofline import collective_link_use
from shardviz.picture.blocks import MOST_TILES
from shardviz.picture.layout import draw_layout_array
from shardviz.picture.mesh import draw_mesh
from shardviz.picture.palette import THEMES, palette
from shardviz.picture.picture import NO_DEVICE, Picture
from shardviz.picture.serialization import column, movement_data, serialize
from shardviz.picture.topology import draw_position
from shardviz.widgets.background import LatestWins
from shardviz.widgets.session import Session
from shardviz.widgets.stages_view import StageResults, StageViews
from shardviz.widgets.targets import DevicePlacement, why_no_placement

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
        return self._device_view(session, placement), self._array_pictures(session, placement)

    def _device_view(self, session: Session, placement: DevicePlacement | None) -> dict[str, Any]:
        by, note = session.look["by"], ""
        mesh = session.mesh if placement is None else placement.mesh  # with its ids and hosts
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

    def _array_pictures(
        self, session: Session, placement: DevicePlacement | None
    ) -> list[dict[str, Any]]:
        requests = [_placed(request, placement) for request in session.program.requests]
        keys = [
            _key(request, session.look if i == session.selected else None)
            for i, request in enumerate(requests)
        ]
        if self._shown[0] == keys:
            return self._shown[1]
        pictures: list[dict[str, Any]] = []
        drawn: dict[Any, dict[str, Any]] = {}
        for index, (key, request) in enumerate(zip(keys, requests, strict=True)):
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


def _placed(request: Request, placement: DevicePlacement | None) -> Request:
    """The request on the devices of the target, which have ids of their own."""
    if placement is None or request.layout is None:
        return request
    return replace(request, layout=replace(request.layout, mesh=placement.mesh))


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
        try:
            view = link_view(*request)
        except Exception as error:  # noqa: BLE001  a thread must not end without a result
            view = {"key": request[0], "words": f"The links cannot be drawn: {error_text(error)}"}
        if not stop() and self._requested is request:
            self.view = view
            self._changed()


def link_view(key: str, collective: Collective, placement: DevicePlacement) -> dict[str, Any]:
    """The links of a collective for the page: their picture and a sentence.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.widgets.targets import device_placement
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


AXES = ("x", "y", "z")
_RINGS = ("all-gather", "reduce-scatter", "all-reduce", "collective-broadcast")


def link_words(collective: Collective, links: LinkUse | None) -> str:
    """The direction of the bytes, the bytes on each link, and the least time that takes.

    Args:
        collective: of a Report or Plan.
        links: from `collective_link_use`; None where its groups are not known.

    >>> from shardviz.core.hardware.topology import Topology
    >>> from shardviz.core.hardware.interconnect import route
    >>> links = route(Topology.parse("tpu:v5p:4x4x4"), [range(64)], "all-gather")
    >>> link_words(Collective("all-gather", ("data",), 64 << 20), links)
    'Rings over data along x, y and z: each link carries 10.5 MiB each way, at least 110 µs.'
    """
    if links is None:
        return "Which devices take part is not known, so no links are drawn."
    size = collective.bytes_per_device
    carried = list(filter(None, [_ici(links, size), *_network(links, size)]))
    if not carried:
        return "No bytes leave a chip."
    seconds = links.seconds(size)
    least = "at a rate that is not published" if seconds is None else ""
    if seconds is not None:
        trips = collective.execution_count
        times = f", {plural(trips, 'time')}" if trips > 1 else ""
        least = f"at least {seconds_text(seconds)}{times}"
    over = " × ".join(collective.mesh_axes)
    head = _way(collective.kind, links) + (f" over {over}" if over else "") + _along(links)
    return f"{head}: {' and '.join(carried)}, {least}."


def _way(kind: str, links: LinkUse) -> str:
    used = _used_axes(links)
    if kind not in _RINGS or not used:
        return {"all-to-all": "Exchange", "collective-permute": "Sends"}.get(
            kind, kind.capitalize()
        )
    closed = [_closes(links, axis) for axis in used]
    return "Rings" if all(closed) else "Rings and lines" if any(closed) else "Lines"


def _used_axes(links: LinkUse) -> list[int]:
    return [axis for axis in range(len(links.torus.shape)) if links.ici[:, axis].any()]


def _closes(links: LinkUse, axis: int) -> bool:
    """Whether the link from the last chip of an axis to its first is in use."""
    torus = links.torus
    following = torus.next_chip(axis)
    here = np.flatnonzero(following >= 0)
    around = here[torus.coords[following[here], axis] < torus.coords[here, axis]]
    return bool(links.ici[around, axis, 0].any())


def _along(links: LinkUse) -> str:
    used = [AXES[axis] for axis in _used_axes(links)]
    if len(used) < 2:
        return "".join(f" along {axis}" for axis in used)
    return f" along {', '.join(used[:-1])} and {used[-1]}"


def _ici(links: LinkUse, size: int) -> str:
    loads = links.ici[links.ici > 0]
    if not len(loads):
        return ""
    most = bytes_text(round(float(loads.max()) * size))
    # Every link is used in both directions, with the same bytes.
    equal = float(loads.min()) > 0.99 * float(loads.max()) and len(loads) == 2 * links.used
    return f"each link carries {most} each way" if equal else f"links carry up to {most} one way"


def _network(links: LinkUse, size: int) -> list[str]:
    one = "chip" if links.torus.shape else "GPU"
    names = (("NVLink", links.nvlink), ("the network", links.network))
    return [
        f"a {one} sends {bytes_text(round(float(load.max()) * size))} over {name}"
        for name, load in names
        if load.any()
    ]


MOST_DRAWN = 16  # devices; as in movement_steps.js
MOST_GROUPS = 32  # that can be chosen
MOST_RESHARDED = 65536  # devices: beyond, the steps take seconds to make
MOST_SAVED = 3  # collectives of each stage in a saved page
SAVED_BYTES = 60_000  # of all of them
_IDS = 6  # of a group that its label names


def movement_view(
    key: str, stages: StageViews, placement: DevicePlacement | None
) -> dict[str, Any]:
    """What the player shows of a key: the steps, and what else can be chosen.

    Args:
        key: `"stage:number"` of a collective, with `"/algorithm/group"` where they are chosen; or
            `"value:name"` of a value of the plan that is resharded.
        stages: that the page shows.
        placement: of the mesh on described hardware, where there is one.

    >>> from shardviz.core.program.cache import ExecutableCache
    >>> from shardviz.widgets.background import Planner
    >>> stages = StageViews(Planner(lambda: None, ExecutableCache()))
    >>> movement_view("0:0", stages, None)["error"]
    'This collective is not known any more. Choose one again.'
    """
    try:
        if key.startswith("value:"):
            return _played(reshard_of(stages.results.plan, key.removeprefix("value:")))
        return _collective_view(key, stages, placement)
    except ShardvizError as error:
        return {"data": None, "error": str(error), "algorithms": [], "groups": []}


def reshard_of(plan: Plan | None, name: str) -> Movement:
    """The movement of a value of a plan that is what it reads, split in another way.

    Raises:
        ProgramError: if it is not, or has more devices than MOST_RESHARDED.
        LayoutError: if one of its shardings does not divide it.
    """
    pair = {} if plan is None else _one_shape(plan)
    if plan is None or name not in pair:
        raise ProgramError(f"The value {name} is not a reshard of another one.")
    if plan.mesh.size > MOST_RESHARDED:
        raise ProgramError(
            f"A reshard is played on at most {MOST_RESHARDED:,} devices, and this mesh has"
            f" {plan.mesh.size:,}. Take a smaller mesh with the same axes."
        )
    old, new = (lay_out(op.shape, op.spec, plan.mesh, op.dtype) for op in pair[name])
    return reshard_movement(old, new)


def _one_shape(plan: Plan) -> dict[str, tuple[PlannedOp, PlannedOp]]:
    """The values that read one other of their own shape: by name, that one and the value."""
    by_name = {op.name: op for op in plan.ops}
    single = {op.name: by_name.get(op.operands[0]) for op in plan.ops if len(op.operands) == 1}
    return {
        name: (before, by_name[name])
        for name, before in single.items()
        if before is not None and before.shape == by_name[name].shape
    }


def _collective_view(
    key: str, stages: StageViews, placement: DevicePlacement | None
) -> dict[str, Any]:
    place, _, chosen = key.partition("/")
    algorithm, _, number = chosen.partition("/")
    collective, mesh = stages.collective(place), _mesh_of(place, stages.results)
    if collective is None or mesh is None:
        raise ProgramError("This collective is not known any more. Choose one again.")
    placed = placement if placement is not None and placement.mesh.shape == mesh.shape else None
    options: dict[str, Any] = {"topology": placed and placed.topology}
    mesh = mesh if placed is None else placed.mesh
    group = int(number) if number.isdecimal() and len(number) < 8 else 0
    movement = movement_of(collective, mesh, group=group, algorithm=algorithm or None, **options)
    usual = movement_of(collective, mesh, group=group, **options).algorithm
    names = _algorithms(collective, mesh, group, options)

    def key_of(words: str, at: int) -> str:
        name = names.get(words, "")
        return place if words == usual and not at else f"{place}/{name}/{at}"

    groups = _group_labels(collective, mesh)
    return {
        **_played(movement),
        "algorithms": [{"value": key_of(words, group), "label": words} for words in names],
        "groups": [
            {"value": key_of(movement.algorithm, n), "label": label}
            for n, label in enumerate(groups)
        ],
    }


def _mesh_of(place: str, results: StageResults) -> MeshSpec | None:
    """The mesh that a collective is of, with the ids that it was compiled for."""
    of = results.plan if place.startswith("0:") else results.report
    return of.mesh if of is not None else None


def _algorithms(
    collective: Collective, mesh: MeshSpec, group: int, options: dict[str, Any]
) -> dict[str, str]:
    """The algorithms that a group has the devices for: their words, and how they are written."""
    if collective.kind == PERMUTE:
        return {}
    found = {}
    for name in ALGORITHMS:
        try:
            made = movement_of(collective, mesh, group=group, algorithm=name, **options)
        except ProgramError:
            continue
        found.setdefault(made.algorithm, name)
    return found


def _group_labels(collective: Collective, mesh: MeshSpec) -> list[str]:
    """The devices of each group in words; none where one cannot choose."""
    axes, ids = collective.mesh_axes, mesh.device_ids.reshape(-1)
    groups: Any = collective.groups
    if groups and collective.kind == PERMUTE:
        groups = chains_of(groups)
    elif not groups:
        groups = groups_over(mesh, axes)
    if not 1 < len(groups) <= MOST_GROUPS:
        return []
    labels = []
    for group in groups:
        listed = ", ".join(str(ids[at]) for at in list(group)[:_IDS])
        labels.append(f"devices {listed}{', …' if len(group) > _IDS else ''}")
    return labels


def _played(movement: Movement) -> dict[str, Any]:
    return {"data": player_data(movement), "error": "", "algorithms": [], "groups": []}


def player_data(movement: Movement) -> dict[str, Any]:
    """The JSON of a movement, with bytes and time in words.

    Of a group that is too large to be drawn, runs of steps that are alike.
    """
    data = movement_data(movement)
    if movement.size > MOST_DRAWN and data["routes"]:
        data |= {"routes": [], "start": None, "end": None, "steps": _runs(movement)}
        data["chunks"] = {**data["chunks"], "labels": [], "bytes": 0}
    seconds = movement.seconds
    took = "" if seconds is None else f"at least {seconds_text(seconds)}, {movement.rate_source}"
    texts = [bytes_text(step["bytes"]) for step in data["steps"]]
    return {**data, "bytesText": texts, "took": took}


def _runs(movement: Movement) -> list[dict[str, Any]]:
    return [
        {
            "words": step.words, "bytes": step.bytes, "adds": step.adds, "keeps": step.keeps,
            "chunk": [], **({"times": times} if times > 1 else {}),
        }
        for step, times in movement.runs()
    ]  # fmt: skip


def saved_movements(
    stages: StageViews, shown: dict[str, Any], placement: DevicePlacement | None
) -> dict[str, Any]:
    """The movements that a page without a kernel can play: of the largest collectives.

    Args:
        stages: that the page shows.
        shown: their view, whose collectives are listed with the largest first.
        placement: as of `movement_view`.
    """
    largest = [
        [f"{stage}:{one['number']}" for one in some[:MOST_SAVED]]
        for stage, some in reversed(list(enumerate(shown["collectives"])))
    ]
    plan = stages.results.plan
    values = [f"value:{name}" for name in _resharded(plan)[:MOST_SAVED]] if plan else []
    wanted = [key for some in largest for key in some] + values
    found: dict[str, Any] = {}
    left = SAVED_BYTES
    while wanted:
        key = wanted.pop(0)
        view = movement_view(key, stages, placement)
        left -= len(json.dumps(view))
        if view["data"] is None or not view["data"]["steps"] or left < 0:
            continue
        found[key] = view
        wanted += [o["value"] for o in view["algorithms"] if "/" not in key and "/" in o["value"]]
    for view in found.values():
        for name in ("algorithms", "groups"):
            view[name] = [o for o in view[name] if o["value"] in found]
    return found


def _resharded(plan: Plan) -> list[str]:
    """The values for which devices need more than what they hold of the value read."""
    if plan.mesh.size > MOST_RESHARDED:
        return []
    pairs = _one_shape(plan).items()
    return [name for name, (before, after) in pairs if not _within(after.spec, before.spec)]


def _within(after: Spec, before: Spec) -> bool:
    """Whether every block of a sharding is a part of the device's own of another one."""
    both = zip_longest(before.dims, after.dims, fillvalue=())
    return all(new[: len(old)] == old for old, new in both)
