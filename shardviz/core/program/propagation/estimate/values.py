"""Which value of a plan stands behind an operation or an operand of the planned module.

The plan is read off one run of Shardy's passes and the collectives off another, so values are
matched: arguments by name, operations by what they are, where they stand, and in which order.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from shardviz.core.program.propagation.estimate.walk import Site, argument_number
from shardviz.core.program.propagation.planned import PlannedOp
from shardviz.core.program.propagation.texts import Texts

# An operation with several results is matched by its first.
_LATER = re.compile(r"\[[1-9]\d*\]$")

Key = tuple[str, tuple[int, ...]]


class Values:
    """The values of a plan, found by sites of the planned module."""

    def __init__(self, ops: Sequence[PlannedOp], sites: Sequence[Site], texts: Texts) -> None:
        self._texts = texts
        self.by_name = {op.name: op for op in ops}
        self._arguments = [op for op in ops if op.kind == "argument"]
        self._by_label = {_label(op.name): op for op in self._arguments}
        self._readers: dict[str, list[PlannedOp]] = defaultdict(list)
        for op in ops:
            for name in op.operands:
                self._readers[name].append(op)
        self._planned, self._sites = _by_opcode(ops), sites
        self._of_op: dict[str, dict[int, PlannedOp]] = {}

    def of(self, site: Site, number: int = 0) -> PlannedOp | None:
        """A result of an operation, or None where the plan has no such."""
        opcode = site.opcode
        if opcode not in self._of_op:
            same = [s for s in self._sites if s.opcode == opcode]
            self._of_op[opcode] = _matched(self._planned[opcode], same)
        first = self._of_op[opcode].get(id(site))
        if first is None or not first.name.endswith("[0]"):
            return first
        return self.by_name.get(f"{first.name.removesuffix('[0]')}[{number}]")

    def readers(self, op: PlannedOp) -> Sequence[PlannedOp]:
        """The values made from one."""
        return self._readers.get(op.name, ())

    def argument(self, value: Any) -> PlannedOp | None:
        """The argument of the program that a value of `main` is."""
        found = self._texts.place(value).op
        number = argument_number(value)
        if found in self._by_label:
            return self._by_label[found]
        return self._arguments[number] if number < len(self._arguments) else None


def _by_opcode(ops: Sequence[PlannedOp]) -> dict[str, list[PlannedOp]]:
    """The operations by what they are called, for those of which anybody asks."""
    found: dict[str, list[PlannedOp]] = defaultdict(list)
    for op in ops:
        if op.kind == "op" and op.opcode != "constant" and not _LATER.search(op.name):
            found[op.opcode.rpartition(".")[2]].append(op)
    return found


def _matched(ops: Sequence[PlannedOp], sites: Sequence[Site]) -> dict[int, PlannedOp]:
    """Site to value, for one kind of operation."""
    planned: dict[Key, list[PlannedOp]] = defaultdict(list)
    for op in ops:
        planned[op.source, op.shape].append(op)
    seen: dict[Key, int] = defaultdict(int)
    found = {}
    for site in sites if planned else ():
        key = _key(site)
        if key in planned:
            same = planned[key]
            # Functions that the plan lists once come by again at every call.
            found[id(site)] = same[seen[key] % len(same)]
            seen[key] += 1
    return found


def _key(site: Site) -> Key:
    tensor = site.texts.tensor(site.op.results[0]) if len(site.op.results) else None
    return site.place.source, tensor[0] if tensor else ()


def _label(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_")
