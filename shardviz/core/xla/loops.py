"""Loops: how often the computations of a module run.

XLA notes the trip count of a loop where it knows it, which it finds after partitioning.
Elsewhere it is computed from the loop itself where that is simple: a number that starts
at a constant, grows by a constant and is compared with a constant.
"""

from __future__ import annotations

from typing import NamedTuple

from shardviz.core.xla.module import Computation, Instruction

_SAME = ("copy", "bitcast", "convert", "reshape", "opt-barrier")
_FLIPPED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}
_DEEPEST = 12


class ExecutionCount(NamedTuple):
    """How often a computation runs.

    Attributes:
        in_loop: whether it is reached from a loop.
        trips: how often it runs; None where the trip count of a loop is not known.
    """

    in_loop: bool
    trips: int | None


class _Element(NamedTuple):
    """An element of what a loop carries."""

    index: int


class Loops:
    """How often the computations of one module run; each is computed once."""

    def __init__(self) -> None:
        self._known: dict[Computation, ExecutionCount] = {}
        self._trips: dict[Instruction, int | None] = {}

    def count(self, computation: Computation) -> ExecutionCount:
        """How often a computation runs."""
        if not computation.module.loops:
            return ExecutionCount(False, 1)
        if computation not in self._known:
            self._known[computation] = ExecutionCount(False, 1)  # ends a recursion
            self._known[computation] = self._from_calls(computation)
        return self._known[computation]

    def _from_calls(self, computation: Computation) -> ExecutionCount:
        counts = [self._of_call(c, computation) for c in computation.callers]
        if not any(count.in_loop for count in counts):
            return ExecutionCount(False, 1)
        total = 0
        for count in counts:
            if count.trips is None:
                return ExecutionCount(True, None)
            total += count.trips
        return ExecutionCount(True, total)

    def _of_call(self, call: Instruction, computation: Computation) -> ExecutionCount:
        caller = self.count(call.computation)
        if call.opcode != "while":
            return caller
        trips = self.trips(call)
        if trips is None or caller.trips is None:
            return ExecutionCount(True, None)
        if computation is not call.called[0]:
            trips += 1  # the condition runs once more, which ends the loop
        return ExecutionCount(True, caller.trips * trips)

    def trips(self, loop: Instruction) -> int | None:
        """How often the body of a loop runs; None where that is not known."""
        if loop not in self._trips:
            known = loop.trips
            if known is None:
                known = _counted(loop)
            self._trips[loop] = known
        return self._trips[loop]


def _counted(loop: Instruction) -> int | None:
    """The trip count of a simple loop: `for (i = first; i < last; i += step)`."""
    body, condition = loop.called
    test = condition.root
    if test.opcode != "compare":
        return None
    left, right = map(_traced, test.operands)
    # The index may stand on either side.
    for index, bound, way in (
        (left, right, test.direction),
        (right, left, _FLIPPED.get(test.direction, "")),
    ):
        if not isinstance(index, _Element) or bound is None:
            continue
        step = _step(index, body)
        first, last = _initial(index, loop), _value(bound, loop)
        if step and first is not None and last is not None:
            return trip_count(first, last, step, way)
    return None


def _traced(value: Instruction, element: int | None = None) -> int | _Element | None:
    """A constant, or an element of the computation's parameter; None for any other.

    Args:
        value: the value.
        element: the element of it that is meant, where it is a tuple.
    """
    path = []  # the elements of tuples within tuples, outermost first
    if element is not None:
        path.append(element)
    for _ in range(_DEEPEST):
        if value.opcode == "parameter" and len(path) == 1:
            return _Element(path[0])
        if value.opcode == "constant":
            return value.integer
        if value.opcode == "get-tuple-element":
            path.insert(0, value.index)
            value = value.operands[0]
        elif value.opcode == "tuple" and path:
            value = value.operands[path.pop(0)]
        elif value.opcode in _SAME and len(value.operands) == 1:
            value = value.operands[0]
        else:
            return None
    return None


def _step(index: _Element, body: Computation) -> int | None:
    """By how much an iteration increases an element, where that is constant."""
    root = body.root
    if root.opcode != "tuple":
        return None
    made = root.operands[index.index]
    if made.opcode != "add":
        return None
    # The constant may stand on either side, too.
    left, right = map(_traced, made.operands)
    if left == index and isinstance(right, int):
        return right
    if right == index and isinstance(left, int):
        return left
    return None


def _initial(index: _Element, loop: Instruction, depth: int = 0) -> int | None:
    """The value of an element before a loop."""
    value = _traced(loop.operands[0], index.index)
    if not isinstance(value, _Element):
        return value
    # It comes out of a loop around this one.
    calls = [c for c in loop.computation.callers if c.opcode == "while"]
    if len(calls) != 1:
        return None
    return _value(value, calls[0], depth + 1)


def _value(
    value: int | _Element | None, loop: Instruction, depth: int = 0
) -> int | None:
    """The value of a constant, or of an element that a loop does not change."""
    if not isinstance(value, _Element):
        return value
    root = loop.called[0].root
    if depth > _DEEPEST or root.opcode != "tuple":
        return None
    if _traced(root.operands[value.index]) != value:
        return None
    return _initial(value, loop, depth)


def trip_count(first: int, last: int, step: int, way: str) -> int | None:
    """How many iterations until the condition is false; None for loops without an end.

    >>> trip_count(0, 6, 1, "LT"), trip_count(0, 6, 4, "LE"), trip_count(5, 0, -1, "GE")
    (6, 2, 6)
    """
    gap = last - first
    if way == "NE":
        # A step that jumps over the bound never ends the loop.
        if gap % step or gap // step < 0:
            return None
        return gap // step
    if way not in _FLIPPED or (step > 0) != (way in ("LT", "LE")):
        return None
    if way == "LE":
        gap += 1
    elif way == "GE":
        gap -= 1
    return max(0, -(-gap // step))
