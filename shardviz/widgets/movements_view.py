"""How a collective or a reshard moves its data, as plain data for the player."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from shardviz.core.errors import ProgramError, ShardvizError
from shardviz.core.format import bytes_text
from shardviz.core.hardware.interconnect import groups_over
from shardviz.core.layout.layout import lay_out
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.movement import (
    PERMUTE,
    Movement,
    movement_of,
    reshard_movement,
)
from shardviz.core.program.movement_steps import ALGORITHMS, chains_of
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_values import PlannedOp
from shardviz.core.program.report import Collective
from shardviz.core.wording import stages as wording
from shardviz.picture.serialization import movement_data
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
    """What the player shows of a key: the steps, and what else can be chosen.

    Args:
        key: `"stage:number"` of a collective, with `"/algorithm/group"` where they are
            chosen; or `"value:name"` of a value of the plan that is resharded.
        stages: that the page shows.
        placement: of the mesh on described hardware, where there is one.

    >>> from shardviz.core.program.cache import ExecutableCache
    >>> from shardviz.widgets.planner import Planner
    >>> stages = StageViews(Planner(lambda: None, ExecutableCache()))
    >>> movement_view("0:0", stages, None)["error"]
    'This collective is not known any more. Choose one again.'
    """
    view: dict[str, Any] = {"data": None, "error": "", "algorithms": [], "groups": []}
    try:
        if key.startswith(_VALUE):
            movement = reshard_of(stages.results.plan, key.removeprefix(_VALUE))
            return {**view, "data": player_data(movement)}
        return {**view, **_collective_view(key, stages, placement)}
    except ShardvizError as error:
        return {**view, "error": str(error)}


# --- a collective ---------------------------------------------------------------------


def _collective_view(
    key: str, stages: StageViews, placement: DevicePlacement | None
) -> dict[str, Any]:
    """The steps of a collective, and the other algorithms and groups that it has."""
    place, _, chosen = key.partition("/")
    algorithm, _, number = chosen.partition("/")
    group = int(number) if number.isdecimal() and len(number) < 8 else 0
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

    def made(algorithm: str | None) -> Movement:
        return movement_of(
            collective, mesh, group=group, algorithm=algorithm, topology=topology
        )

    movement, usual = made(algorithm or None), made(None).method.name
    options: dict[str, str] = {}  # the words of each algorithm
    for name in ALGORITHMS if collective.kind != PERMUTE else ():
        try:
            options[name] = made(name).algorithm
        except ProgramError:
            continue  # the group has not the devices for it

    def key_of(name: str, group: int) -> str:
        # The usual choice has the short key, under which the page first asks.
        if name == usual and group == 0:
            return place
        return f"{place}/{name if name in options else ''}/{group}"

    algorithms = []
    for name, words in options.items():
        algorithms.append({"value": key_of(name, group), "label": words})
    groups = []
    for number, label in enumerate(_group_labels(collective, mesh)):
        groups.append({"value": key_of(movement.method.name, number), "label": label})
    return {"data": player_data(movement), "algorithms": algorithms, "groups": groups}


def _group_labels(collective: Collective, mesh: MeshSpec) -> list[str]:
    """The devices of each group in words; none where one cannot choose."""
    ids = mesh.device_ids.reshape(-1)
    groups: Any = collective.groups
    if groups and collective.kind == PERMUTE:
        groups = chains_of(groups)
    elif not groups:
        groups = groups_over(mesh, collective.mesh_axes)
    if not 1 < len(groups) <= MOST_GROUPS:
        return []
    labels = []
    for group in groups:
        shown = ", ".join(str(ids[at]) for at in list(group)[:MOST_IDS])
        more = ", …" if len(group) > MOST_IDS else ""
        labels.append(f"devices {shown}{more}")
    return labels


def player_data(movement: Movement) -> dict[str, Any]:
    """The JSON of a movement, with bytes and time in words.

    Of a group that is too large to be drawn, runs of steps that are alike.
    """
    data = movement_data(movement, MOST_DRAWN)
    sizes = [bytes_text(step["bytes"]) for step in data["steps"]]
    took = wording.least_time(movement.seconds, movement.rate_source)
    return {**data, "bytesText": sizes, "took": took}


# --- a reshard ------------------------------------------------------------------------


def reshard_of(plan: Plan | None, name: str) -> Movement:
    """The movement of a value of a plan that is what it reads, split in another way.

    Raises:
        ProgramError: if it is not, or has more devices than MOST_RESHARDED.
        LayoutError: if one of its shardings does not divide it.
    """
    if plan is None or name not in _one_shape(plan):
        raise ProgramError(f"The value {name} is not a reshard of another one.")
    if plan.mesh.size > MOST_RESHARDED:
        raise ProgramError(
            f"A reshard is played on at most {MOST_RESHARDED:,} devices, and this mesh"
            f" has {plan.mesh.size:,}. Take a smaller mesh with the same axes."
        )
    before, after = _one_shape(plan)[name]
    return reshard_movement(
        lay_out(before.shape, before.spec, plan.mesh, before.dtype),
        lay_out(after.shape, after.spec, plan.mesh, after.dtype),
    )


def _one_shape(plan: Plan) -> dict[str, tuple[PlannedOp, PlannedOp]]:
    """The values that read one other of their own shape: by name, that one and the
    value.
    """
    by_name = {op.name: op for op in plan.ops}
    pairs = {}
    for op in plan.ops:
        if len(op.operands) != 1:
            continue
        before = by_name.get(op.operands[0])
        if before is not None and before.shape == op.shape:
            pairs[op.name] = (before, op)
    return pairs


def _resharded(plan: Plan | None) -> list[str]:
    """The values for which devices need more than what they hold of the value read."""
    if plan is None or plan.mesh.size > MOST_RESHARDED:
        return []
    names = []
    for name, (before, after) in _one_shape(plan).items():
        if not _within(after.spec, before.spec):
            names.append(name)
    return names


def _within(after: Spec, before: Spec) -> bool:
    """Whether every shard of a spec is a part of the device's own shard of another one."""
    for old, new in zip_longest(before.dims, after.dims, fillvalue=()):
        if new[: len(old)] != old:
            return False
    return True


# --- a saved page ---------------------------------------------------------------------


def saved_movements(
    stages: StageViews, shown: Mapping[str, Any], placement: DevicePlacement | None
) -> dict[str, Any]:
    """The movements that a page without a kernel can play: of the largest collectives."""
    movements: dict[str, Any] = {}
    left = SAVED_BYTES
    wanted = list(_wanted(stages, shown))
    while wanted:
        key = wanted.pop(0)
        view = movement_view(key, stages, placement)
        left -= len(json.dumps(view))
        if view["data"] is None or not view["data"]["steps"] or left < 0:
            continue
        movements[key] = view
        if "/" not in key:
            # Then the other algorithms of the same collective.
            options = [option["value"] for option in view["algorithms"]]
            wanted += [value for value in options if "/" in value]
    for view in movements.values():
        for name in ("algorithms", "groups"):
            view[name] = [o for o in view[name] if o["value"] in movements]
    return movements


def _wanted(stages: StageViews, shown: Mapping[str, Any]) -> Iterator[str]:
    """The keys of what a saved page should play, the most important first."""
    # What runs comes before what was estimated.
    for stage in (2, 1, 0):
        for collective in shown["collectives"][stage][:MOST_SAVED]:
            yield f"{stage}:{collective['number']}"
    for name in _resharded(stages.results.plan)[:MOST_SAVED]:
        yield f"{_VALUE}{name}"
