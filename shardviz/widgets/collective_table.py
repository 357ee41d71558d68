"""The collectives of all stages as plain data, matched into rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from shardviz.core.format import bytes_text
from shardviz.core.hardware.interconnect import groups_over
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.comparison import (
    CollectiveChange,
    Comparison,
    total_bytes,
)
from shardviz.core.program.movement_steps import PERMUTE
from shardviz.core.program.report import Collective
from shardviz.core.wording import stages as wording

MOST_ROWS = 300
MOST_CAUSES = 8
MOST_STACK = 12
#: The members of groups that are sent where the collective has no mesh axes.
MOST_MEMBERS = 2048

# The number of a stage, and of one of its collectives.
_Node = tuple[int, int]


class CollectiveTable:
    """The collectives of all stages, matched into rows.

    Attributes:
        changes: of all comparisons, as plain data.
        shown: the numbers of the collectives of each stage that the page shows, the
            most bytes first.

    >>> one = Collective("all-reduce", ("data",), 1024, cause="It sums over rows.")
    >>> table = CollectiveTable([(one,), None, None], {})
    >>> table.rows()[0]["cells"], table.row(0, 0)["causes"]
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
        # Matched collectives share the cells of a row.
        self._cells: dict[_Node, list[list[int]]] = {}
        self._most = 1
        for stage, collectives in enumerate(self._known):
            for number, one in enumerate(collectives):
                cells: list[list[int]] = [[], [], []]
                cells[stage].append(number)
                self._cells[stage, number] = cells
                self._most = max(self._most, one.bytes_in_all)
        self._how: dict[_Node, str] = {}
        self.changes: list[dict[str, Any]] = []
        for between, comparison in comparisons.items():
            for number, change in enumerate(comparison.ordered):
                self._join(between, change)
                if number < MOST_ROWS:
                    old, new = map(list, change.positions)
                    view = {"between": list(between), "kind": change.kind}
                    view.update(words=str(change), before=old, after=new)
                    self.changes.append(view)

    def _join(self, between: tuple[int, int], change: CollectiveChange) -> None:
        """Joins the collectives of a change into one row."""
        nodes: list[_Node] = []
        for stage, numbers in zip(between, change.positions, strict=True):
            nodes += [(stage, number) for number in numbers]
        for node in nodes:
            if node[0] == between[1] and change.kind != "kept":
                self._how[node] = change.kind
            first, cells = self._cells[nodes[0]], self._cells[node]
            if cells is first:
                continue
            for stage, numbers in enumerate(cells):
                first[stage] += numbers
                for number in numbers:
                    self._cells[stage, number] = first

    def rows(self) -> list[dict[str, Any]]:
        """One row per match, the most bytes first: its collectives on each stage."""
        matched = {id(cells): cells for cells in self._cells.values()}.values()
        rows = []
        for cells in sorted(matched, key=self._row_bytes, reverse=True)[:MOST_ROWS]:
            kept = []
            for numbers, shown in zip(cells, self.shown, strict=True):
                kept.append(sorted(set(numbers).intersection(shown)))
            size = self._row_bytes(cells)
            share = size / self._most
            rows.append({"cells": kept, "bytes": bytes_text(size), "share": share})
        return rows

    def _row_bytes(self, cells: Sequence[Sequence[int]]) -> int:
        """The bytes of a row on the stage where it has the most."""
        sizes = []
        for known, numbers in zip(self._known, cells, strict=True):
            sizes.append(total_bytes(known[number] for number in numbers))
        return max(sizes)

    def row(self, stage: int, number: int) -> dict[str, Any]:
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
            "share": one.bytes_in_all / self._most,
            "tags": _tags(one, self._how.get((stage, number), ""), self._meshes[stage]),
            "full": one.rematerialises,
            "phase": one.phase,
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


def _tags(one: Collective, how: str, mesh: MeshSpec | None) -> list[str]:
    tags = []
    if one.is_partial:
        tags.append(wording.part_of_axis(one.group_size))
    if crosses_hosts(one, mesh):
        tags.append("between hosts")
    if one.in_loop:
        tags.append(f"× {one.trips:,}" if one.trips else "in loop, × ?")
    if one.is_async and how != "made asynchronous":
        tags.append("async")
    if one.between_slices:
        tags.append("between slices")
    if how:
        tags.append(wording.HOW.get(how, how))
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
