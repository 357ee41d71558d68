"""How a collective or a reshard moves its data, as plain data for the player."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from shardviz.core.errors import ProgramError, ShardvizError
from shardviz.core.format import bytes_text
from shardviz.core.layout.layout import lay_out
from shardviz.core.program.movement import (
    Movement,
    groups_of,
    movement_of,
    reshard_movement,
)
from shardviz.core.program.movement_steps import MovementStep
from shardviz.core.program.plan import Plan
from shardviz.core.wording import movement as words
from shardviz.core.wording import stages as wording
from shardviz.widgets.stages_view import StageViews
from shardviz.widgets.targets import DevicePlacement

MOST_DRAWN = 16  # devices; as in movement_steps.js
MOST_GROUPS = 32  # that can be chosen
MOST_RESHARDED = 65536  # devices: beyond, the steps take seconds to make
MOST_SAVED = 3  # collectives of each stage in a saved page
SAVED_BYTES = 60_000  # of all of them
MOST_IDS = 6  # of a group that its label names
_VALUE = "value:"


def movement_view(
    key: str, stages: StageViews, placement: DevicePlacement | None
) -> dict[str, Any]:
    """What the player shows of a key: the steps, and the groups that can be chosen.

    Args:
        key: `"stage:number"` of a collective, with `"/group"` where one is chosen; or
            `"value:name"` of a value of the plan that is resharded.
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
        if key.startswith(_VALUE):
            movement = reshard_of(stages.results.plan, key.removeprefix(_VALUE))
            return {**view, "data": player_data(movement)}
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
        "end": None,
    }
    if not drawn:
        return {**data, "steps": [_step_data(*run) for run in m.runs()]}
    sizes = m.method.grid.shape
    at = np.stack(np.unravel_index(m.method.places, sizes), axis=1)
    data["grid"] = {"sizes": list(sizes), "at": at.tolist()}
    data["chunks"] = list(m.chunks.labels)
    data["start"], data["end"] = _held(m.start), _held(m.end)
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


def _held(matrix: np.ndarray | None) -> list[list[int]] | None:
    """The chunks of every device; None where each has all."""
    if matrix is None or matrix.all():
        return None
    return [np.flatnonzero(row).tolist() for row in matrix]


def reshard_of(plan: Plan | None, name: str) -> Movement:
    """The movement of a value of a plan that is what it reads, split in another way.

    Raises:
        ProgramError: if it is not, or has more devices than MOST_RESHARDED.
        LayoutError: if one of its shardings does not divide it.
    """
    known = {}
    if plan is not None:
        known = {op.name: op for op in plan.ops}
    after = known.get(name)
    before = None
    if after is not None and len(after.operands) == 1:
        before = known.get(after.operands[0])
    if plan is None or after is None or before is None or before.shape != after.shape:
        raise ProgramError(f"The value {name} is not a reshard of another one.")
    if plan.mesh.size > MOST_RESHARDED:
        raise ProgramError(
            f"A reshard is played on at most {MOST_RESHARDED:,} devices, and this mesh"
            f" has {plan.mesh.size:,}. Take a smaller mesh with the same axes."
        )
    return reshard_movement(
        lay_out(before.shape, before.spec, plan.mesh, before.dtype),
        lay_out(after.shape, after.spec, plan.mesh, after.dtype),
    )


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
