"""Which value of a plan stands behind an operation or an operand of the planned module.

The plan is read off one run of Shardy's passes and the collectives off another, so values are
matched: arguments by name, operations by what they are, where they stand, and in which order.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from shardviz.core.program.propagation import attributes, locations
from shardviz.core.program.propagation.estimate_walk import Site, argument_number
from shardviz.core.program.propagation.plan import PlannedOp

# An operation with several results is matched by its first.
_LATER = re.compile(r"\[[1-9]\d*\]$")

Key = tuple[str, str, tuple[int, ...]]


class Values:
    """The values of a plan, found by sites of the planned module."""

    def __init__(self, ops: Sequence[PlannedOp], sites: Sequence[Site]) -> None:
        self.by_name = {op.name: op for op in ops}
        self._arguments = [op for op in ops if op.kind == "argument"]
        self._by_label = {_label(op.name): op for op in self._arguments}
        self._readers: dict[str, list[PlannedOp]] = defaultdict(list)
        for op in ops:
            for name in op.operands:
                self._readers[name].append(op)
        self._of_op = _matched(ops, sites)

    def of(self, site: Site, number: int = 0) -> PlannedOp | None:
        """A result of an operation, or None where the plan has no such."""
        first = self._of_op.get(id(site))
        if first is None or not first.name.endswith("[0]"):
            return first
        return self.by_name.get(f"{first.name.removesuffix('[0]')}[{number}]")

    def readers(self, op: PlannedOp) -> Sequence[PlannedOp]:
        """The values made from one."""
        return self._readers.get(op.name, ())

    def argument(self, value: Any) -> PlannedOp | None:
        """The argument of the program that a value of `main` is."""
        found = locations.place(str(value.location)).op
        number = argument_number(value)
        if found in self._by_label:
            return self._by_label[found]
        return self._arguments[number] if number < len(self._arguments) else None


def _matched(ops: Sequence[PlannedOp], sites: Sequence[Site]) -> dict[int, PlannedOp]:
    planned: dict[Key, list[PlannedOp]] = defaultdict(list)
    for op in ops:
        if op.kind == "op" and not _LATER.search(op.name):
            planned[op.opcode.rpartition(".")[2], op.source, op.shape].append(op)
    opcodes = {opcode for opcode, *_ in planned} - {"constant"}  # of which nobody asks
    seen: dict[Key, int] = defaultdict(int)
    found = {}
    for site in sites:
        if site.opcode not in opcodes:
            continue
        key = _key(site)
        if key in planned:
            same = planned[key]
            # Functions that the plan lists once come by again at every call.
            found[id(site)] = same[seen[key] % len(same)]
            seen[key] += 1
    return found


def _key(site: Site) -> Key:
    first = site.op.results[0].type if len(site.op.results) else None
    tensor = attributes.tensor(str(first))
    return site.opcode, site.place.source, tensor[0] if tensor else ()


def _label(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_")
