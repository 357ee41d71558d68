"""How often each computation of a module runs: the turns of the loops that it stands in. Pure.

XLA writes the turns on a loop where it knows them (`known_trip_count`), which it works out after
partitioning. Before that, and where a compiler keeps none, they follow from the loop itself where
it is plain: a number that starts at a constant, grows by a constant and is held against a constant.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from shardviz.core.program.hlo.module import Call, Module, Operand, opcode, operands

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_WHILE = re.compile(r"\b(body|condition)=%?([\w.\-]+)")
_INDEX = re.compile(r"\bindex=(\d+)")
_CONSTANT = re.compile(r" constant\((-?\d+)\)")
_DIRECTION = re.compile(r"\bdirection=([A-Z]{2})")
_SAME = ("copy", "bitcast", "convert", "reshape", "opt-barrier")
_FLIPPED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}
_DEEPEST = 12


class Turns(NamedTuple):
    """How often a computation runs.

    Attributes:
        in_loop: whether it is reached from a loop.
        trips: how often it runs; None where a loop does not say.
    """

    in_loop: bool
    trips: int | None


class Loops:
    """The loops of a module, worked out where somebody asks."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[str, Turns] = {}
        self._while_trips: dict[int, int | None] = {}
        self._any = " while(" in module.text

    def turns(self, computation: str) -> Turns:
        """How often a computation runs.

        >>> Loops(Module("")).turns("main")
        Turns(in_loop=False, trips=1)
        """
        if not self._any:
            return Turns(False, 1)
        if computation not in self._known:
            self._known[computation] = Turns(False, 1)  # what calls itself ends here
            self._known[computation] = self._from_calls(computation)
        return self._known[computation]

    def _from_calls(self, computation: str) -> Turns:
        sites = _distinct(self._module.calls.get(computation, []))
        if not sites:
            return Turns(False, 1)
        each = [self._of_call(site) for site in sites]
        if not any(t.in_loop for t in each):
            return Turns(False, 1)
        trips = [t.trips for t in each]
        total = None if None in trips else sum(t or 0 for t in trips)
        return Turns(True, total)

    def _of_call(self, site: Call) -> Turns:
        caller = self.turns(self._module.computation_at(site.start))
        if site.attribute not in ("body", "condition"):
            return caller
        trips = self._trips(site.start)
        if trips is None or caller.trips is None:
            return Turns(True, None)
        # The condition is asked once more, to end the loop.
        return Turns(True, caller.trips * (trips + (site.attribute == "condition")))

    def _trips(self, start: int) -> int | None:
        if start not in self._while_trips:
            line = self._module.line_at(start)
            known = _KNOWN.search(line)
            self._while_trips[start] = int(known[1]) if known else self._counted(line, start)
        return self._while_trips[start]

    def _counted(self, line: str, start: int) -> int | None:
        """The turns of a plain loop: `for (i = first; i < last; i += step)`."""
        parts = dict(_WHILE.findall(line))
        root = self._module.root(parts.get("condition", ""))
        direction = _DIRECTION.search(root)
        if direction is None or opcode(root) != "compare":
            return None
        at = self._module.starts[parts["condition"]]
        sides = [self._traced(o, at) for o in operands(root)]
        if len(sides) != 2 or any(s is None for s in sides):
            return None
        for (index, bound), way in (
            (sides, direction[1]),
            (sides[::-1], _FLIPPED.get(direction[1], "")),
        ):
            step = self._step(index, parts.get("body", ""))
            first, last = self._initial(index, start), self._value(bound, at, start)
            if step and first is not None and last is not None:
                return _turns_between(first, last, step, way)
        return None

    def _traced(self, operand: Operand, at: int, depth: int = 0) -> tuple[str, int] | None:
        """`("constant", value)`, or `("element", index)` of what the computation is given."""
        line = self._module.definition(operand.name, at)
        kind, reads = opcode(line), operands(line)
        if depth > _DEEPEST or not kind:
            return None
        if kind == "parameter" and operand.element is not None:
            return "element", operand.element
        if kind == "constant":
            value = _CONSTANT.search(line)
            return ("constant", int(value[1])) if value else None
        if kind == "tuple" and operand.element is not None and operand.element < len(reads):
            return self._traced(reads[operand.element], at, depth + 1)
        if kind == "get-tuple-element" and reads:
            index = _INDEX.search(line)
            whole = Operand(reads[0].name, int(index[1])) if index else reads[0]
            return self._traced(whole, at, depth + 1)
        if kind in _SAME and len(reads) == 1:
            element = operand.element if reads[0].element is None else reads[0].element
            inner = Operand(reads[0].name, element)
            return self._traced(inner, at, depth + 1)
        return None

    def _step(self, index: tuple[str, int] | None, body: str) -> int | None:
        """By how much each turn adds to an element, where it is a constant."""
        line = self._element(index, body)
        if opcode(line) != "add":
            return None
        found = [self._traced(o, self._module.starts[body]) for o in operands(line)]
        steps = [f[1] for f in found if f is not None and f[0] == "constant"]
        return steps[0] if index in found and len(steps) == 1 else None

    def _element(self, index: tuple[str, int] | None, body: str) -> str:
        """The line that makes one element of what a body hands on."""
        root = self._module.root(body)
        reads = operands(root) if opcode(root) == "tuple" else []
        if index is None or index[0] != "element" or index[1] >= len(reads):
            return ""
        return self._module.definition(reads[index[1]].name, self._module.starts[body])

    def _initial(self, index: tuple[str, int] | None, start: int, depth: int = 0) -> int | None:
        """What an element is before the first turn of the loop at `start`."""
        if index is None or index[0] != "element":
            return None
        given = operands(self._module.line_at(start))
        if len(given) != 1:
            return None
        found = self._traced(Operand(given[0].name, index[1]), start)
        return self._outside(found, start, depth)

    def _value(
        self, found: tuple[str, int] | None, at: int, start: int, depth: int = 0
    ) -> int | None:
        """A constant, or an element that the loop at `start` hands on as it was given."""
        if found is None or found[0] == "constant" or depth > _DEEPEST:
            return found[1] if found and found[0] == "constant" else None
        body = dict(_WHILE.findall(self._module.line_at(start))).get("body", "")
        root = self._module.root(body)
        reads = operands(root) if opcode(root) == "tuple" else []
        if found[1] >= len(reads):
            return None
        handed = self._traced(reads[found[1]], self._module.starts[body])
        return self._initial(found, start, depth + 1) if handed == found else None

    def _outside(self, found: tuple[str, int] | None, start: int, depth: int) -> int | None:
        if found is None or found[0] == "constant":
            return found[1] if found else None
        caller = self._module.computation_at(start)
        sites = [c for c in self._module.calls.get(caller, []) if c.attribute == "body"]
        return self._value(found, start, sites[0].start, depth + 1) if len(sites) == 1 else None


def _turns_between(first: int, last: int, step: int, way: str) -> int | None:
    """How many turns until the condition no longer holds; None for loops that do not end so.

    >>> [_turns_between(*case) for case in ((0, 6, 1, "LT"), (0, 6, 4, "LE"), (5, 0, -1, "GE"))]
    [6, 2, 6]
    """
    gap = last - first
    if way in ("LE", "GE"):
        gap += 1 if way == "LE" else -1
    if way == "NE":
        return gap // step if gap % step == 0 and gap // step >= 0 else None
    if way not in _FLIPPED or (step > 0) != (way in ("LT", "LE")):
        return None
    return max(0, -(-gap // step))


def _distinct(sites: list[Call]) -> list[Call]:
    """Every call once: an asynchronous one names its computation at its start, updates and done."""
    wrapped = [s for s in sites if s.attribute == "calls"]
    return wrapped[:1] + [s for s in sites if s.attribute != "calls"]
