"""The collectives of all stages as plain data, each with what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from shardviz.base.collective import Collective
from shardviz.base.format import bytes_text
from shardviz.base.mesh import MeshSpec
from shardviz.base.typing import JsonDict
from shardviz.compiled.comparison import CollectiveChange, Comparison
from shardviz.compiled.words import stages as wording
from shardviz.hardware.interconnect import groups_over
from shardviz.move.movement_steps import PERMUTE

MOST_ROWS = 300
MOST_CAUSES = 8
MOST_STACK = 12
#: The members of groups that are sent where the collective has no mesh axes.
MOST_MEMBERS = 2048

# The number of a stage, and of one of its collectives.
_Node = tuple[int, int]


class CollectiveTable:
    """The collectives of all stages, matched.

    Attributes:
        changes: of all comparisons, as plain data.
        shown: the numbers of the collectives of each stage that the page shows, the
            most bytes first.

    >>> one = Collective("all-reduce", ("data",), 1024, cause="It sums over rows.")
    >>> table = CollectiveTable([(one,), None, None], {})
    >>> table.shown, table.row(0, 0)["causes"]
    ([[0], [], []], ['It sums over rows.'])
    """

    def __init__(
        self,
        known: Sequence[tuple[Collective, ...] | None],
        comparisons: Mapping[tuple[int, int], Comparison],
        meshes: Sequence[MeshSpec | None] = (None, None, None),
    ):
        self._known = [tuple(collectives or ()) for collectives in known]
        self._meshes = meshes
        self.shown = [_by_bytes(collectives) for collectives in self._known]
        # Matched collectives share their cells.
        self._cells: dict[_Node, list[list[int]]] = {}
        self._most = 1
        for stage, collectives in enumerate(self._known):
            for number, one in enumerate(collectives):
                cells: list[list[int]] = [[], [], []]
                cells[stage].append(number)
                self._cells[stage, number] = cells
                self._most = max(self._most, one.bytes_in_all)
        # The change that led to a collective, and the one that it is the start of.
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

    def _join(self, between: tuple[int, int], change: CollectiveChange) -> None:
        """Joins the collectives of a change."""
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
        """What became of a collective, from stage to stage; of an estimate what will."""
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
        words = list(filter(None, words))
        if not words and estimated and self._joined(stage, number):
            return wording.AS_ESTIMATED
        return ", ".join(words)

    def _joined(self, stage: int, number: int) -> bool:
        """Whether a collective is known on more stages than one."""
        return sum(map(bool, self._cells[stage, number])) > 1

    def row(self, stage: int, number: int) -> JsonDict:
        """One collective as the page shows it."""
        one = self._known[stage][number]
        # A sentence that several members share is said once.
        said = dict.fromkeys(str(m.cause) for m in (*one.members, one) if m.cause)
        causes = list(said) or [wording.NO_CAUSE]
        return {
            "number": number,
            "kind": one.kind,
            "axes": list(one.mesh_axes),
            "bytes": bytes_text(one.bytes_per_device),
            "times": f"× {one.execution_count}" if one.execution_count > 1 else "",
            "share": one.bytes_in_all / self._most,
            "became": self._became(stage, number),
            "tags": _tags(one, self._meshes[stage]),
            "full": one.rematerialises,
            "facts": wording.collective_facts(one),
            "causes": causes[:MOST_CAUSES],
            "moreCauses": max(0, len(causes) - MOST_CAUSES),
            "op": one.op,
            "source": one.source,
            "stack": list(one.stack[:MOST_STACK]),
            "values": self._values(stage, number)[:MOST_CAUSES],
            "groups": _groups(one),
        }

    def _values(self, stage: int, number: int) -> list[str]:
        """The values of the plan that a collective is for."""
        one = self._known[stage][number]
        if one.value:
            return [one.value]
        # Of the estimates in its row, those of the same operations.
        ops = {(m.op, m.source) for m in (*one.members, one)}
        values = []
        for planned in self._cells[stage, number][0]:
            estimate = self._known[0][planned]
            if estimate.value and (estimate.op, estimate.source) in ops:
                values.append(estimate.value)
        return list(dict.fromkeys(values))


def _by_bytes(collectives: Sequence[Collective]) -> list[int]:
    """The numbers of the largest collectives, the most bytes first."""
    numbers = range(len(collectives))
    ordered = sorted(numbers, key=lambda n: -collectives[n].bytes_in_all)
    return ordered[:MOST_ROWS]


def _tags(one: Collective, mesh: MeshSpec | None) -> list[str]:
    tags = []
    if one.rematerialises:
        tags.append(wording.REMATERIALISED)
    if one.is_partial:
        tags.append(wording.part_of_axis(one.group_size))
    if crosses_hosts(one, mesh):
        tags.append("between hosts")
    if one.in_loop:
        tags.append(f"× {one.trips:,}" if one.trips else "in loop, × ?")
    if one.is_async:
        tags.append("async")
    if one.between_slices:
        tags.append("between slices")
    return tags


def _groups(one: Collective) -> list[list[int]]:
    """The groups of devices, where mesh axes do not say them and they are not too many."""
    # `data:(1)2` is a part of an axis, which says no groups.
    parts = one.is_partial or any(":(" in axis for axis in one.mesh_axes)
    groups = [list(group) for group in one.groups]
    if (one.mesh_axes and not parts) or sum(map(len, groups)) > MOST_MEMBERS:
        return []
    return groups


def crosses_hosts(one: Collective, mesh: MeshSpec | None) -> bool | None:
    """Whether a collective goes from host to host; None where that is not known."""
    if mesh is None:
        return None
    if len(mesh.processes) < 2:
        return False
    named = bool(one.mesh_axes) and set(one.mesh_axes) <= set(mesh.axis_names)
    if named and not one.is_partial and one.kind != PERMUTE:
        return _axes_cross(mesh, one.mesh_axes)
    if not one.groups:
        return None
    hosts = mesh.process_indices.reshape(-1)
    return any(len(set(hosts[list(group)].tolist())) > 1 for group in one.groups)


@lru_cache(maxsize=64)
def _axes_cross(mesh: MeshSpec, axes: tuple[str, ...]) -> bool:
    hosts = mesh.process_indices.reshape(-1)[groups_over(mesh, axes)]
    return bool((hosts != hosts[:, :1]).any())
