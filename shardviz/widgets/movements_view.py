"""How a collective moves its data, as plain data for the player."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from shardviz.core.errors import ProgramError, ShardvizError
from shardviz.core.format import bytes_text
from shardviz.core.program.movement import Movement, groups_of, movement_of
from shardviz.core.program.movement_steps import MovementStep
from shardviz.core.wording import movement as words
from shardviz.core.wording import stages as wording
from shardviz.widgets.stages_view import StageViews
from shardviz.widgets.targets import DevicePlacement

# Devices; as in movement_steps.js.
MOST_DRAWN = 16
# That can be chosen.
MOST_GROUPS = 32
# Collectives of each stage in a saved page.
MOST_SAVED = 3
# Of all of them.
SAVED_BYTES = 60_000
# Of a group that its label names.
MOST_IDS = 6


def movement_view(
    key: str, stages: StageViews, placement: DevicePlacement | None
) -> dict[str, Any]:
    """What the player shows of a key: the steps, and the groups that can be chosen.

    Args:
        key: `"stage:number"` of a collective, with `"/group"` where one is chosen.
        stages: that the page shows.
        placement: of the mesh on described hardware, where there is one.

    >>> from shardviz.core.program.cache import ExecutableCache
    >>> from shardviz.widgets.planner import Planner
    >>> stages = StageViews(Planner(lambda: None, ExecutableCache()))
    >>> movement_view("0:0", stages, None)["error"]
    'This collective is not known any more. Choose one again.'
    """
    view: dict[str, Any] = {"data": None, "error": "", "groups": []}
    try:
        return {**view, **_collective_view(key, stages, placement)}
    except ShardvizError as error:
        return {**view, "error": str(error)}


def _collective_view(
    key: str, stages: StageViews, placement: DevicePlacement | None
) -> dict[str, Any]:
    """The steps of a collective, and the other groups that it has."""
    place, _, number = key.partition("/")
    collective = stages.collective(place)
    # The estimate is of the plan; the other stages are of the report.
    made_by: Any = stages.results.report
    if place.startswith("0:"):
        made_by = stages.results.plan
    if collective is None or made_by is None or made_by.mesh is None:
        raise ProgramError("This collective is not known any more. Choose one again.")
    mesh, topology = made_by.mesh, None
    if placement is not None and placement.mesh.shape == mesh.shape:
        mesh, topology = placement.mesh, placement.topology
    chosen = int(number) if number.isdecimal() and len(number) < 8 else 0
    movement = movement_of(collective, mesh, topology, chosen)
    every, ids = groups_of(collective, mesh), mesh.device_ids.reshape(-1)
    groups = []
    if 1 < len(every) <= MOST_GROUPS:
        for number, group in enumerate(every):
            label = ", ".join(str(ids[at]) for at in list(group)[:MOST_IDS])
            if len(group) > MOST_IDS:
                label += ", …"
            # The first has the short key, under which the page first asks.
            value = f"{place}/{number}" if number else place
            groups.append({"value": value, "label": f"devices {label}"})
    return {"data": player_data(movement), "groups": groups}


def player_data(movement: Movement) -> dict[str, Any]:
    """The JSON of a movement; `static/player_messages.d.ts` says what each field is.

    Of a group that is too large to be drawn, runs of steps that are alike.
    """
    m = movement
    drawn = m.size <= MOST_DRAWN
    data: dict[str, Any] = {
        "kind": m.kind,
        "title": words.title(m),
        "formula": words.formula(m),
        "filledIn": m.filled_in,
        "took": wording.least_time(m.seconds, m.rate_source),
        "notes": list(map(str, m.notes)),
        "size": m.size,
        "devices": m.devices[:MOST_DRAWN].tolist(),
        "hosts": m.hosts[:MOST_DRAWN].tolist(),
        "grid": {"sizes": [], "at": []},
        "chunks": [],
        "contributors": m.contributors,
        "start": None,
    }
    if not drawn:
        return {**data, "steps": [_step_data(*run) for run in m.runs()]}
    sizes = m.method.grid.shape
    at = np.stack(np.unravel_index(m.method.places, sizes), axis=1)
    data["grid"] = {"sizes": list(sizes), "at": at.tolist()}
    data["chunks"] = list(m.chunks.labels)
    if m.start is not None and not m.start.all():
        data["start"] = [np.flatnonzero(row).tolist() for row in m.start]
    return {**data, "steps": [_step_data(step) for step in m.steps]}


def _step_data(step: MovementStep, times: int = 1) -> dict[str, Any]:
    return {
        "words": step.words,
        "bytes": bytes_text(step.bytes),
        "adds": step.adds,
        "keeps": step.keeps,
        "times": times,
        "source": step.source.tolist(),
        "target": step.target.tolist(),
        "chunk": step.chunk.tolist(),
        "network": step.network.astype(int).tolist(),
    }


def saved_movements(
    stages: StageViews, shown: Mapping[str, Any], placement: DevicePlacement | None
) -> dict[str, Any]:
    """What a page without a kernel can play: the largest collectives, in one group."""
    movements: dict[str, Any] = {}
    left = SAVED_BYTES
    for key in _wanted(shown):
        view = movement_view(key, stages, placement)
        left -= len(json.dumps(view))
        if view["data"] is not None and view["data"]["steps"] and left >= 0:
            movements[key] = {**view, "groups": []}
    return movements


def _wanted(shown: Mapping[str, Any]) -> Iterator[str]:
    """The keys of what a saved page should play: what runs before what was estimated."""
    for stage in (2, 1, 0):
        for collective in shown["collectives"][stage][:MOST_SAVED]:
            yield f"{stage}:{collective['number']}"
