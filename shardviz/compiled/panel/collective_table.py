"""The collectives of all stages as plain data, matched from stage to stage."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import lru_cache

from shardviz.base.collective import Collective, sent_in_all_text
from shardviz.base.format import plural
from shardviz.base.mesh import MeshSpec
from shardviz.base.typing import JsonDict
from shardviz.compiled.comparison import CollectiveChange, Comparison
from shardviz.compiled.panel.plain_names import PlainNames, function_of
from shardviz.compiled.words import stages as wording
from shardviz.hardware.interconnect import groups_over
from shardviz.move.movement_steps import PERMUTE
from shardviz.plans.plan import Plan

MOST_ROWS = 300
MOST_CAUSES = 8
MOST_STACK = 12
#: The page gets the groups of a collective if they have at most this many members.
MOST_MEMBERS = 2048

# (number of a stage, number of a collective at that stage)
_Node = tuple[int, int]


class CollectiveTable:
    """The collectives of all stages, matched from stage to stage.

    Args:
        stages: the propagated, partitioned and compiled collectives; None if unknown.
        comparisons: numbers of two stages -> their comparison.
        meshes: the mesh of each stage, with the host of every device.
        plan: the plan that names the values; None if unknown.

    Attributes:
        changes: the changes of all comparisons, as plain data.
        groups: per stage, the numbers of collectives that are alike, in groups. The
            groups with the most bytes in all come first.
        shown: per stage, the numbers of the collectives that the page gets.

    >>> reduce = Collective("all-reduce", ("data",), 1024, cause="It sums over rows.")
    >>> table = CollectiveTable([(reduce,), None, None], {})
    >>> table.shown, table.row(0, 0)["causes"]
    ([[0], [], []], ['It sums over rows.'])
    """

    def __init__(
        self,
        stages: Sequence[tuple[Collective, ...] | None],
        comparisons: Mapping[tuple[int, int], Comparison],
        meshes: Sequence[MeshSpec | None] = (None, None, None),
        plan: Plan | None = None,
    ):
        self._stages = [tuple(collectives or ()) for collectives in stages]
        self._meshes = meshes
        self._names = PlainNames(plan, _places(self._stages))
        # (stage, number) of a collective -> the numbers of its matches at each stage.
        # Matched collectives share these lists.
        self._cells: dict[_Node, list[list[int]]] = {}
        for stage, collectives in enumerate(self._stages):
            for number in range(len(collectives)):
                cells: list[list[int]] = [[], [], []]
                cells[stage].append(number)
                self._cells[stage, number] = cells
        # The change that leads to a collective, and the change that starts from it.
        self._before: dict[_Node, tuple[int, CollectiveChange]] = {}
        self._after: dict[_Node, CollectiveChange] = {}
        self.changes: list[JsonDict] = []
        for between, comparison in comparisons.items():
            for number, change in enumerate(comparison.ordered):
                self._join(between, change)
                if number < MOST_ROWS:
                    old, new = map(list, change.positions)
                    view = {"between": list(between), "kind": change.kind}
                    view.update(words=str(change), before=old, after=new)
                    self.changes.append(view)
        self.groups = [self._grouped(stage) for stage in range(len(self._stages))]
        self.shown = [_shown(groups) for groups in self.groups]
        totals = [
            self._bytes(stage, numbers)
            for stage, groups in enumerate(self.groups)
            for numbers in groups
        ]
        self._most = max(totals, default=1) or 1

    def _grouped(self, stage: int) -> list[list[int]]:
        """Groups the collectives of a stage that are alike, except for their line."""
        groups: dict[Hashable, list[int]] = {}
        for number, collective in enumerate(self._stages[stage]):
            cause = collective.cause
            key = (
                collective.kind, collective.mesh_axes, collective.bytes_per_device,
                collective.phase, type(cause), getattr(cause, "code", cause),
                len(collective.members), self._became(stage, number),
                tuple(_tags(collective, self._meshes[stage])), collective.trips,
            )  # fmt: skip
            groups.setdefault(key, []).append(number)
        return sorted(groups.values(), key=lambda group: -self._bytes(stage, group))

    def _bytes(self, stage: int, numbers: Sequence[int]) -> int:
        return sum(self._stages[stage][number].drawn_bytes for number in numbers)

    def _join(self, between: tuple[int, int], change: CollectiveChange) -> None:
        """Merges the lists of all collectives in a change."""
        nodes: list[_Node] = []
        for stage, numbers in zip(between, change.positions, strict=True):
            nodes += [(stage, number) for number in numbers]
        for node in nodes:
            if node[0] == between[1]:
                self._before[node] = between[0], change
            else:
                self._after[node] = change
            first, cells = self._cells[nodes[0]], self._cells[node]
            if cells is first:
                continue
            for stage, numbers in enumerate(cells):
                first[stage] += numbers
                for number in numbers:
                    self._cells[stage, number] = first

    def _became(self, stage: int, number: int) -> str:
        """Describes the changes of a collective from stage to stage."""
        words: list[str] = []
        node = stage, number
        estimated = stage == 0
        while node in self._before:
            earlier, change = self._before[node]
            words.insert(0, wording.became(change))
            if not change.before:
                break
            node = earlier, change.positions[0][0]
            estimated = node[0] == 0
        if (stage, number) in self._after:
            words.append(wording.becomes(self._after[stage, number]))
        words = list(dict.fromkeys(filter(None, words)))
        if not words and estimated and self._joined(stage, number):
            return wording.AS_PLANNED
        return ", ".join(words)

    def _joined(self, stage: int, number: int) -> bool:
        """Whether a collective is known at more than one stage."""
        return sum(map(bool, self._cells[stage, number])) > 1

    def group(self, stage: int, numbers: Sequence[int]) -> JsonDict:
        """Returns a group of collectives as the page shows it."""
        collectives = [self._stages[stage][number] for number in numbers]
        first, known = collectives[0], collectives[0].trips is not None
        count = sum(collective.execution_count for collective in collectives)
        # The forward pass is the usual one.
        words = [function_of(first.op), first.phase.replace("forward", "")]
        if first.members:
            words.insert(0, f"{plural(len(first.members), 'array')} combined")
        sent, became = set(self.shown[stage]), self._became(stage, numbers[0])
        # "now async" already contains the tag "async".
        tags = [t for t in _tags(first, self._meshes[stage]) if t not in became]
        return {
            "numbers": [number for number in numbers if number in sent],
            "members": len(numbers),
            "times": wording.times(count, known),
            "total": sent_in_all_text(collectives),
            "share": self._bytes(stage, numbers) / self._most,
            "lines": wording.lines([c.source for c in collectives]),
            "what": ", ".join(filter(None, words)),
            "became": became,
            "tags": tags,
        }

    def row(self, stage: int, number: int) -> JsonDict:
        """Returns one collective as the page shows it."""
        collective = self._stages[stage][number]
        # A cause that several members share is listed once.
        sentences = dict.fromkeys(
            self._names.cause(m.cause, collective.source)
            for m in (*collective.members, collective)
            if m.cause
        )
        causes = list(sentences) or [wording.NO_CAUSE]
        return {
            "number": number,
            "kind": collective.kind,
            "axes": list(collective.mesh_axes),
            "bytes": collective.sent_text(collective.bytes_per_device),
            "share": collective.drawn_bytes / self._most,
            "full": collective.rematerialises,
            "facts": wording.collective_facts(collective),
            "shape": collective.shape,
            "causes": causes[:MOST_CAUSES],
            "moreCauses": max(0, len(causes) - MOST_CAUSES),
            "moved": self._names.argument(collective.cause),
            "op": collective.op,
            "source": collective.source,
            "stack": list(collective.stack[:MOST_STACK]),
            "values": self._values(stage, number)[:MOST_CAUSES],
            "groups": _groups(collective),
        }

    def _values(self, stage: int, number: int) -> list[str]:
        """Returns the plan's values that need a collective."""
        collective = self._stages[stage][number]
        if collective.value:
            return [collective.value]
        # The values come from matched estimates of the same operations.
        ops = {(m.op, m.source) for m in (*collective.members, collective)}
        values = []
        for planned in self._cells[stage, number][0]:
            estimate = self._stages[0][planned]
            if estimate.value and (estimate.op, estimate.source) in ops:
                values.append(estimate.value)
        return list(dict.fromkeys(values))


def _shown(groups: Sequence[Sequence[int]]) -> list[int]:
    """Returns the numbers that the page gets: of each group the first, then others."""
    others = [number for group in groups for number in group[1:]]
    return [*(group[0] for group in groups), *others][:MOST_ROWS]


def _places(stages: Sequence[Sequence[Collective]]) -> Iterator[tuple[str, str]]:
    """Yields jax's name and the line of each operation that needs a collective."""
    for collectives in stages:
        for collective in collectives:
            for member in (*collective.members, collective):
                yield member.op, member.source


def _tags(collective: Collective, mesh: MeshSpec | None) -> list[str]:
    tags = []
    if collective.rematerialises:
        tags.append(wording.REMATERIALISED)
    if collective.is_partial:
        tags.append(wording.part_of_axis(collective.group_size))
    if crosses_hosts(collective, mesh):
        tags.append("crosses hosts")
    if collective.trips is None:
        tags.append(wording.UNKNOWN_TRIPS)
    if collective.is_async:
        tags.append("async")
    if collective.between_slices:
        tags.append("between slices")
    return tags


def _groups(collective: Collective) -> list[list[int]]:
    """Returns a collective's device groups; `[]` if its mesh axes determine them.

    Also returns `[]` if the groups have too many members.
    """
    # `data:(1)2` is only a part of an axis, so it does not determine the groups.
    parts = collective.is_partial or any(":(" in axis for axis in collective.mesh_axes)
    groups = [list(group) for group in collective.groups]
    if (collective.mesh_axes and not parts) or sum(map(len, groups)) > MOST_MEMBERS:
        return []
    return groups


def crosses_hosts(collective: Collective, mesh: MeshSpec | None) -> bool | None:
    """Whether a collective sends data between hosts; None if unknown."""
    if mesh is None:
        return None
    if len(mesh.processes) < 2:
        return False
    named = bool(collective.mesh_axes) and set(collective.mesh_axes) <= set(
        mesh.axis_names
    )
    if named and not collective.is_partial and collective.kind != PERMUTE:
        return _axes_cross(mesh, collective.mesh_axes)
    if not collective.groups:
        return None
    hosts = mesh.process_indices.reshape(-1)
    return any(len(set(hosts[list(group)].tolist())) > 1 for group in collective.groups)


@lru_cache(maxsize=64)
def _axes_cross(mesh: MeshSpec, axes: tuple[str, ...]) -> bool:
    hosts = mesh.process_indices.reshape(-1)[groups_over(mesh, axes)]
    return bool((hosts != hosts[:, :1]).any())
