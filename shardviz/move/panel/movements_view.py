"""Converts the steps of a collective to plain data for the player."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from shardviz.base.errors import ProgramError, ShardvizError
from shardviz.base.mesh import MeshSpec
from shardviz.base.typing import JsonDict
from shardviz.compiled.panel.stages_view import StageViews
from shardviz.explorer.targets import DevicePlacement
from shardviz.move.movement import Movement, movement_of
from shardviz.move.movement_steps import MovementStep
from shardviz.move.words import movement as words

# The most devices in a group that is drawn.
MOST_DRAWN = 16
# The most devices in one row; a longer ring is drawn as a loop.
MOST_IN_ROW = 8
# The most collectives per stage that a saved page can play.
MOST_SAVED = 3
# The most bytes of data for all saved collectives.
SAVED_BYTES = 60_000


def movement_view(
    key: str, stages: StageViews, placement: DevicePlacement | None
) -> JsonDict:
    """Returns the steps of a collective in its first replica group, for the player.

    Args:
        key: `"stage:number"` of a collective.
        stages: the stages that the page shows.
        placement: the mesh on described hardware; None for other targets.

    >>> from shardviz.runs.cache import ExecutableCache
    >>> from shardviz.explorer.planner import Planner
    >>> stages = StageViews(Planner(lambda: None, ExecutableCache()))
    >>> movement_view("0:0", stages, None)["error"]
    'This collective no longer exists. Choose another one.'
    """
    try:
        return {"data": _collective_data(key, stages, placement), "error": ""}
    except ShardvizError as error:
        return {"data": None, "error": str(error)}


def _collective_data(
    key: str, stages: StageViews, placement: DevicePlacement | None
) -> JsonDict:
    """Returns the steps in the first replica group; all groups have the same steps."""
    collective = stages.collective(key)
    # Stage 0 is the plan's estimate; the other stages are from the report.
    mesh, results = None, stages.results
    if key.startswith("0:") and results.plan is not None:
        mesh = results.plan.mesh
    elif results.report is not None:
        mesh = results.report.without_error.mesh
        # While XLA still compiles, the report has no mesh.
        if mesh is None and results.program is not None:
            mesh = results.program.mesh
    if collective is None or mesh is None:
        raise ProgramError("This collective no longer exists. Choose another one.")
    topology = None
    if placement is not None and placement.mesh.shape == mesh.shape:
        mesh, topology = placement.mesh, placement.topology
    return player_data(movement_of(collective, mesh, topology), mesh)


def player_data(m: Movement, mesh: MeshSpec | None = None) -> JsonDict:
    """Returns a movement as JSON; `static/movement_steps.js` declares the fields."""
    axes: list[list[str | int]] = []
    for name in m.mesh_axes:
        # A sub-axis has the colour of its axis.
        number = mesh.positions.get(name.split(":(")[0], -1) if mesh else -1
        axes.append([name, number])
    drawn = m.size <= MOST_DRAWN
    data: JsonDict = {
        "kind": m.kind,
        "title": list(words.title_parts(m)),
        "axes": axes,
        "facts": words.player_facts(m),
        "before": words.before_first(m),
        "lines": [] if drawn else words.too_many_to_draw(m, MOST_DRAWN),
        "devices": m.devices[:MOST_DRAWN].tolist(),
        "hosts": m.hosts[:MOST_DRAWN].tolist(),
        "cells": [],
        "chunks": [],
        "contributors": m.contributors,
        "start": None,
        "steps": [],
    }
    if not drawn:
        return data
    data["cells"], data["chunks"] = cells_of(m).tolist(), list(m.chunks.labels)
    if m.start is not None and not m.start.all():
        data["start"] = [np.flatnonzero(row).tolist() for row in m.start]
    for number, step in enumerate(m.steps, 1):
        sent = words.sent_so_far(m, number)
        data["steps"].append(_step_data(step, sent, _axis_of(m, step, mesh)))
    return data


def cells_of(m: Movement) -> np.ndarray:
    """Returns the column and row of each device of a small group: int64 [devices, 2].

    On described hardware, the cells follow the chips' coordinates. Otherwise, a torus
    is drawn as a grid, as are hosts with their devices, and a ring is drawn as a loop
    of two rows.

    >>> from shardviz.move.movement import collective_movement
    >>> cells_of(collective_movement("all-gather", 4, 4096)).tolist()
    [[0, 0], [1, 0], [1, 1], [0, 1]]
    """
    sizes = m.method.grid.shape
    at = np.stack(np.unravel_index(m.method.places, sizes))
    stands = _coordinates(m)
    if stands is not None:
        at, sizes = stands, tuple((stands.max(axis=1) + 1).tolist())
    elif len(sizes) == 1:
        number, upper = np.arange(m.size), m.size
        if m.size >= 4:
            upper = -(-m.size // 2)
        low = number >= upper
        return np.stack([np.where(low, m.size - 1 - number, number), low], axis=1)
    column, row = at[-1], np.zeros(m.size, np.int64)
    for size, along in zip(sizes[:-1], at[:-1], strict=True):
        row = row * size + along
    # Transpose a grid with many rows and few columns.
    if row.max() + 1 > max(4, sizes[-1]):
        column, row = row, column
    return np.stack([column, row], axis=1)


def _coordinates(m: Movement) -> np.ndarray | None:
    """Returns device coordinates along each axis they span: int64 [axes, devices].

    Gaps between devices are closed. Returns None if the devices do not fill a block, if
    they form a long row, or if their hardware is not described.
    """
    topology = m.topology
    if topology is None:
        return None
    rows = np.flatnonzero(np.isin(topology.device_ids, m.devices))
    if len(rows) != m.size:
        return None
    # Put the rows in the order of the group.
    rows = rows[np.argsort(topology.device_ids[rows])][
        np.argsort(np.argsort(m.devices))
    ]
    x, y, z = topology.coords[rows].T
    axes, cells = [], 1
    for along in (topology.slice_indices[rows], z, y, x, topology.cores[rows]):
        values, at = np.unique(along, return_inverse=True)
        if len(values) > 1:
            axes.append(at)
            cells *= len(values)
    if not axes or cells != m.size or (len(axes) == 1 and m.size > MOST_IN_ROW):
        return None
    return np.stack(axes)


def _axis_of(m: Movement, step: MovementStep, mesh: MeshSpec | None) -> int:
    """Returns the index of the mesh axis that a step sends along; -1 for several."""
    if mesh is None:
        return -1
    ids = mesh.device_ids.reshape(-1)
    order = np.argsort(ids)
    positions = order[np.searchsorted(ids[order], m.devices)]
    where = np.stack(np.unravel_index(positions, mesh.axis_sizes))
    differ = (where[:, step.source] != where[:, step.target]).any(axis=1)
    if differ.sum() != 1:
        return -1
    return int(differ.argmax())


def _step_data(step: MovementStep, sent: str, axis: int) -> JsonDict:
    # Group the chunks by sender and receiver.
    sends: dict[tuple[int, int], tuple[int, int, int, list[int]]] = {}
    columns = (step.source, step.target, step.network.astype(int), step.chunk)
    for source, target, network, chunk in np.stack(columns, axis=1).tolist():
        send = sends.setdefault((source, target), (source, target, network, []))
        send[3].append(chunk)
    return {
        "words": step.words,
        "sent": sent,
        "axis": axis,
        "adds": step.adds,
        "keeps": step.keeps,
        "sends": list(sends.values()),
    }


def saved_movements(
    stages: StageViews, shown: JsonDict, placement: DevicePlacement | None
) -> JsonDict:
    """Returns the steps of the largest collectives, for a page without a kernel."""
    movements: JsonDict = {}
    bytes_left = SAVED_BYTES
    for key in _keys_to_save(shown):
        view = movement_view(key, stages, placement)
        bytes_left -= len(json.dumps(view))
        if view["data"] is not None and view["data"]["steps"] and bytes_left >= 0:
            movements[key] = view
    return movements


def _keys_to_save(shown: JsonDict) -> Iterator[str]:
    """Yields the keys of collectives to save: compiled ones before estimated ones."""
    for stage in (2, 1, 0):
        for collective in shown["collectives"][stage][:MOST_SAVED]:
            yield f"{stage}:{collective['number']}"
