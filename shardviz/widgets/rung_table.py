"""RungTable: the collectives of three rungs, matched into rows, as plain data for the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardviz.core.program.report import Collective
from shardviz.core.program.rungs import Comparison
from shardviz.picture.units import bytes_text
from shardviz.widgets.view_report import cause

MOST_ROWS = 300
MOST_CAUSES = 8
MOST_MEMBERS = 2048  # group members that are sent where no mesh axes say who is in a group


class RungTable:
    """What belongs together stands together: the collectives of the rungs, matched into rows.

    Args:
        known: the collectives of propagated, partitioned and compiled; None where not known.

    >>> one = Collective("all-reduce", ("data",), 1024, cause="It sums over rows.")
    >>> table = RungTable([(one,), None, None])
    >>> table.join()
    >>> table.rows()[0]["cells"], table.row(0, 0)["causes"]
    ([[0], [], []], ['It sums over rows.'])
    """

    def __init__(self, known: Sequence[tuple[Collective, ...] | None]):
        self.known = [tuple(some or ()) for some in known]
        self.orders = [
            sorted(range(len(some)), key=lambda k, some=some: -some[k].bytes_in_all)[:MOST_ROWS]
            for some in self.known
        ]
        self._place = {
            (i, id(c)): [k for k, other in enumerate(some) if other is c]
            for i, some in enumerate(self.known)
            for c in some
        }
        self._parent = {
            (i, k): (i, k) for i, some in enumerate(self.known) for k in range(len(some))
        }
        self._cells: dict[tuple[int, int], list[list[int]]] = {}
        self._how: dict[tuple[int, int], str] = {}
        self._most = max((c.bytes_in_all for some in self.known for c in some), default=0) or 1

    def link(self, i: int, j: int, found: Comparison) -> list[dict[str, Any]]:
        """Joins what a comparison found to belong together; its changes as plain data."""
        changes = []
        for change in sorted(found.changes, key=lambda c: (c.kind == "kept", -c.bytes_per_device)):
            before = [self._take(i, c) for c in change.before]
            after = [self._take(j, c) for c in change.after]
            for one in (*before, *after):
                self._join((*before, *after)[0], one)
            if change.kind != "kept":
                self._how.update(dict.fromkeys(after, change.kind))
            changes.append(
                {
                    "between": [i, j],
                    "kind": change.kind,
                    "words": change.words,
                    "before": [k for _, k in before],
                    "after": [k for _, k in after],
                }
            )
        return changes[:MOST_ROWS]

    def _take(self, rung: int, one: Collective) -> tuple[int, int]:
        """The place of a collective; each place is taken once for each comparison it is in."""
        places = self._place[rung, id(one)]
        places.append(places.pop(0))
        return rung, places[-1]

    def _root(self, node: tuple[int, int]) -> tuple[int, int]:
        while self._parent[node] != node:
            node = self._parent[node]
        return node

    def _join(self, one: tuple[int, int], other: tuple[int, int]) -> None:
        self._parent[self._root(other)] = self._root(one)

    def join(self) -> None:
        """Gathers what was linked; every link must have been made."""
        for node in self._parent:
            cells = self._cells.setdefault(self._root(node), [[], [], []])
            cells[node[0]].append(node[1])

    def rows(self) -> list[dict[str, Any]]:
        """One row for what belongs together, the most bytes first: its members on each rung."""
        sent = [set(order) for order in self.orders]
        rows = sorted(self._cells.values(), key=lambda cells: -self._row_bytes(cells))[:MOST_ROWS]
        return [
            {
                "cells": [[k for k in cell if k in sent[i]] for i, cell in enumerate(row)],
                "bytes": bytes_text(self._row_bytes(row)),
                "share": self._row_bytes(row) / self._most,
            }
            for row in rows
        ]

    def _row_bytes(self, cells: list[list[int]]) -> int:
        return max(sum(self.known[i][k].bytes_in_all for k in cell) for i, cell in enumerate(cells))

    def _planned(self, rung: int, number: int) -> list[Collective]:
        """What the plan has in the place of a collective."""
        return [self.known[0][k] for k in self._cells[self._root((rung, number))][0]]

    def row(self, rung: int, number: int) -> dict[str, Any]:
        """One collective as the page shows it."""
        one = self.known[rung][number]
        planned = self._planned(rung, number) if rung else []
        # The plan knows the reason in words of the program; the compiled text only names.
        causes = [one.cause] if one.cause else list(dict.fromkeys(c.cause for c in planned))
        causes = [words for words in causes if words] or [cause(one.op)]
        values = [one.value] if one.value else list(dict.fromkeys(c.value for c in planned))
        return {
            "number": number,
            "kind": one.kind,
            "axes": list(one.mesh_axes),
            "bytes": bytes_text(one.bytes_per_device),
            "share": one.bytes_in_all / self._most,
            "total": bytes_text(one.bytes_in_all) if one.turns > 1 else "",
            "tags": _tags(one, self._how.get((rung, number), "")),
            "full": one.rematerialises,
            "phase": one.phase,
            "size": one.group_size or (len(one.groups[0]) if one.groups else 0),
            "causes": causes[:MOST_CAUSES],
            "moreCauses": max(0, len(causes) - MOST_CAUSES),
            "op": one.op,
            "shape": one.shape,
            "source": one.source,
            "stack": list(one.stack[:12]),
            "values": [name for name in values if name][:MOST_CAUSES],
            "groups": _groups(one),
        }


def _tags(one: Collective, how: str) -> list[str]:
    tags = []
    if one.in_loop:
        tags.append(f"× {one.trips:,}" if one.trips else "in loop, × ?")
    if one.is_async and how != "made asynchronous":
        tags.append("async")
    if one.between_slices:
        tags.append("between slices")
    if how:
        tags.append(_HOW.get(how, how))
    return tags


_HOW = {"made asynchronous": "now async", "added": "new"}


def _groups(one: Collective) -> list[list[int]]:
    """Who is in which group, where no mesh axes say so and there are not too many."""
    if one.mesh_axes and all(":(" not in axis for axis in one.mesh_axes):
        return []
    groups = [list(group) for group in one.groups]
    return groups if sum(map(len, groups)) <= MOST_MEMBERS else []
