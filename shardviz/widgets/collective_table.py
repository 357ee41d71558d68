"""The collectives of all stages as plain data, matched into rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from shardviz.core.format import bytes_text
from shardviz.core.hardware.interconnect import groups_over
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.comparison import Comparison
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
        # Equal collectives may be one object: each occurrence has a number of its own.
        self._numbers: dict[_Node, list[int]] = {}
        # Matched collectives have the same root, as in a union of sets.
        self._parent: dict[_Node, _Node] = {}
        self._most = 1
        for stage, collectives in enumerate(self._known):
            for number, one in enumerate(collectives):
                self._numbers.setdefault((stage, id(one)), []).append(number)
                self._parent[stage, number] = (stage, number)
                self._most = max(self._most, one.bytes_in_all)
        self._how: dict[_Node, str] = {}
        self.changes: list[dict[str, Any]] = []
        for (before, after), comparison in comparisons.items():
            self._match(before, after, comparison)
        self._cells: dict[_Node, list[list[int]]] = {}
        for node in self._parent:
            cells = self._cells.setdefault(self._root(node), [[], [], []])
            cells[node[0]].append(node[1])

    def _match(self, before: int, after: int, comparison: Comparison) -> None:
        """Joins the collectives that a comparison matched, and notes its changes."""
        for number, change in enumerate(comparison.ordered):
            olds = [self._take(before, one) for one in change.before]
            news = [self._take(after, one) for one in change.after]
            for node in news:
                if change.kind != "kept":
                    self._how[node] = change.kind
            for node in (*olds, *news):
                self._parent[self._root(node)] = self._root((*olds, *news)[0])
            if number < MOST_ROWS:
                view = {"between": [before, after], "kind": change.kind}
                view["words"] = str(change)
                view["before"] = [number for _, number in olds]
                self.changes.append({**view, "after": [number for _, number in news]})

    def _take(self, stage: int, one: Collective) -> _Node:
        """The node of a collective; equal ones take turns, so each is matched once."""
        numbers = self._numbers[stage, id(one)]
        numbers.append(numbers.pop(0))
        return stage, numbers[-1]

    def _root(self, node: _Node) -> _Node:
        while self._parent[node] != node:
            node = self._parent[node]
        return node

    def rows(self) -> list[dict[str, Any]]:
        """One row per match, the most bytes first: its collectives on each stage."""
        matched = sorted(self._cells.values(), key=self._row_bytes, reverse=True)
        rows = []
        for cells in matched[:MOST_ROWS]:
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
            sizes.append(sum(known[number].bytes_in_all for number in numbers))
        return max(sizes)

    def row(self, stage: int, number: int) -> dict[str, Any]:
        """One collective as the page shows it."""
        one = self._known[stage][number]
        # A sentence that several members share is said once.
        causes = list(
            dict.fromkeys(str(m.cause) for m in (*one.members, one) if m.cause)
        )
        if not causes:
            causes = [wording.NO_CAUSE]
        size, total = one.group_size, ""
        if not size and one.groups:
            size = len(one.groups[0])
        if one.execution_count > 1:
            total = bytes_text(one.bytes_in_all)
        how = self._how.get((stage, number), "")
        return {
            "number": number,
            "kind": one.kind,
            "axes": list(one.mesh_axes),
            "bytes": bytes_text(one.bytes_per_device),
            "share": one.bytes_in_all / self._most,
            "total": total,
            "tags": _tags(one, how, self._meshes[stage]),
            "full": one.rematerialises,
            "phase": one.phase,
            "size": size,
            "causes": causes[:MOST_CAUSES],
            "moreCauses": max(0, len(causes) - MOST_CAUSES),
            "op": one.op,
            "shape": one.shape,
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
        for planned in self._cells[self._root((stage, number))][0]:
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
