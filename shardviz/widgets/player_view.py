"""How a collective or a reshard moves its data, for the player; made when it is asked for."""

from __future__ import annotations

import json
from typing import Any

from shardviz.core.errors import ProgramError, ShardvizError
from shardviz.core.format import bytes_text, seconds_text
from shardviz.core.hardware.interconnect import groups_over
from shardviz.core.layout.layout import lay_out
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.movement import (
    ALGORITHMS,
    PERMUTE,
    Movement,
    movement_of,
    reshard_movement,
)
from shardviz.core.program.movement_steps import chains_of
from shardviz.core.program.plan import Plan
from shardviz.core.program.report import Collective
from shardviz.picture.serialization import movement_data
from shardviz.widgets.device_placement import DevicePlacement
from shardviz.widgets.stages_view import StageResults, StageViews

MOST_DRAWN = 16  # devices; as in movement_steps.js
MOST_GROUPS = 32  # that can be chosen
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
        ProgramError: if it is not.
        LayoutError: if one of its shardings does not divide it.
    """
    by_name = {} if plan is None else {op.name: op for op in plan.ops}
    after = by_name.get(name)
    before = by_name.get(after.operands[0]) if after and len(after.operands) == 1 else None
    if plan is None or after is None or before is None or before.shape != after.shape:
        raise ProgramError(f"The value {name} is not a reshard of another one.")
    old, new = (lay_out(op.shape, op.spec, plan.mesh, op.dtype) for op in (before, after))
    return reshard_movement(old, new)


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
    values = [f"value:{op.name}" for op in plan.ops if _is_reshard(plan, op)] if plan else []
    wanted = [key for some in largest for key in some] + values[:MOST_SAVED]
    found: dict[str, Any] = {}
    left = SAVED_BYTES
    while wanted:
        key = wanted.pop(0)
        view = movement_view(key, stages, placement)
        left -= len(json.dumps(view))
        if view["data"] is None or left < 0:
            continue
        found[key] = view
        wanted += [o["value"] for o in view["algorithms"] if "/" not in key and "/" in o["value"]]
    for view in found.values():
        for name in ("algorithms", "groups"):
            view[name] = [o for o in view[name] if o["value"] in found]
    return found


def _is_reshard(plan: Plan, op: Any) -> bool:
    try:
        return bool(reshard_of(plan, op.name).steps)
    except ShardvizError:
        return False
