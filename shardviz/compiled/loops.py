"""Loops: how often the computations of a module run.

After partitioning, XLA notes the trip counts that it finds. For other loops the trip
count is computed here if the loop has the form that jax gives `scan` and `fori_loop`: a
counter that starts at a constant, grows by a constant, and must stay below a constant.
The trip counts of all other loops are unknown.
"""

from __future__ import annotations

from typing import NamedTuple

from shardviz.compiled.module import Computation, Instruction

#: An element of a loop's carry: its index in each nested tuple, outermost first.
Path = tuple[int, ...]
_SAME = ("copy", "bitcast", "convert", "reshape", "opt-barrier")
_DEEPEST = 12


class ExecutionCount(NamedTuple):
    """How often a computation runs.

    Attributes:
        in_loop: whether a loop runs it, directly or through calls.
        trips: how often it runs; None if the trip count of one of the loops is unknown.
    """

    in_loop: bool
    trips: int | None


class Loops:
    """How often the computations of one module run; each is computed once."""

    def __init__(self) -> None:
        self._counts: dict[Computation, ExecutionCount] = {}

    def count(self, computation: Computation) -> ExecutionCount:
        """How often a computation runs."""
        if computation not in self._counts:
            self._counts[computation] = ExecutionCount(False, 1)  # ends a recursion
            self._counts[computation] = self._from_calls(computation)
        return self._counts[computation]

    def line(self, computation: Computation) -> str:
        """The user's line of the innermost loop that runs a computation, or `""`."""
        while computation.callers:
            call = computation.callers[0]
            if call.opcode == "while":
                return call.source.source
            computation = call.computation
        return ""

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
        trips = call.trips
        if trips is None:
            trips = _counted(call)
        if trips is None or caller.trips is None:
            return ExecutionCount(True, None)
        if computation is not call.called[0]:
            trips += 1  # the condition runs once more to end the loop
        return ExecutionCount(True, caller.trips * trips)


def is_kept(body: Computation, path: Path) -> bool:
    """Whether a loop passes an element of its carry on unchanged."""
    return _traced(body.root, path) == path


def _counted(loop: Instruction) -> int | None:
    """The trip count of `for (i = first; i < last; i += step)`; None for other loops."""
    body, condition = loop.called
    test = condition.root
    if (test.opcode, test.direction) != ("compare", "LT"):
        return None
    index, last = map(_traced, test.operands)
    if not isinstance(index, tuple) or len(index) != 1:
        return None
    first, step = _value(index, loop), _step(index, body)
    if isinstance(last, tuple):
        # The limit must not change from one iteration to the next.
        last = _value(last, loop) if is_kept(body, last) else None
    if first is None or last is None or step is None or step <= 0:
        return None
    return max(0, -(-(last - first) // step))


def _traced(value: Instruction, path: Path = ()) -> int | Path | None:
    """The constant, or the element of the computation's parameter, that a value is.

    Args:
        value: the value.
        path: which element of it to trace, if it is a tuple.

    Returns:
        None if it is neither.
    """
    for _ in range(_DEEPEST):
        if value.opcode == "parameter":
            return path
        if value.opcode == "constant":
            return value.integer
        if value.opcode == "get-tuple-element":
            path = (value.index, *path)
            value = value.operands[0]
        elif value.opcode == "tuple" and path:
            value, path = value.operands[path[0]], path[1:]
        elif value.opcode in _SAME and len(value.operands) == 1:
            value = value.operands[0]
        else:
            return None
    return None


def _step(index: Path, body: Computation) -> int | None:
    """By how much an iteration increases an element; None if that is not constant."""
    if body.root.opcode != "tuple":
        return None
    increased = body.root.operands[index[0]]
    if increased.opcode != "add":
        return None
    counter, constant = map(_traced, increased.operands)
    # The constant may be on either side.
    if counter != index:
        counter, constant = constant, counter
    return constant if counter == index and isinstance(constant, int) else None


def _value(path: Path, loop: Instruction, depth: int = 0) -> int | None:
    """The value of an element before a loop; None if that is not constant."""
    value = _traced(loop.operands[0], path)
    if not isinstance(value, tuple):
        return value
    # It comes from the carry of a loop around this one, which must not change it.
    calls = [c for c in loop.computation.callers if c.opcode == "while"]
    if len(calls) != 1 or depth > _DEEPEST:
        return None
    if not is_kept(calls[0].called[0], value):
        return None
    return _value(value, calls[0], depth + 1)
