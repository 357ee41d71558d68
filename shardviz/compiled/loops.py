"""Loops: how often each computation of a module runs.

After partitioning, XLA records the trip counts that it finds. For other loops, we
compute the trip count if the loop looks like JAX's `scan` and `fori_loop`: a counter
starts at a constant, grows by a constant, and must stay below a constant. All other
trip counts are unknown.
"""

from __future__ import annotations

from typing import NamedTuple

from shardviz.compiled.module import Computation, Instruction

#: Position of an element in a loop's carry: an index per nested tuple, outermost first.
Path = tuple[int, ...]
_SAME = ("copy", "bitcast", "convert", "reshape", "opt-barrier")
_DEEPEST = 12


class ExecutionCount(NamedTuple):
    """How often a computation runs.

    Attributes:
        in_loop: whether the computation runs in a loop, directly or through calls.
        trips: number of executions; None if the trip count of a loop is unknown.
    """

    in_loop: bool
    trips: int | None


class Loops:
    """Execution counts of one module's computations, computed on first use."""

    def __init__(self) -> None:
        self._counts: dict[Computation, ExecutionCount] = {}

    def count(self, computation: Computation) -> ExecutionCount:
        """Returns how often a computation runs."""
        if computation not in self._counts:
            self._counts[computation] = ExecutionCount(False, 1)  # ends a recursion
            self._counts[computation] = self._from_calls(computation)
        return self._counts[computation]

    def line(self, computation: Computation) -> str:
        """Returns the user's line of the innermost loop around a computation."""
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
    """Whether a loop leaves an element of its carry unchanged."""
    return _traced(body.root, path) == path


def _counted(loop: Instruction) -> int | None:
    """Returns the trip count of `for (i = first; i < last; i += step)`, else None."""
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
    """Traces a value to a constant or to an element of its computation's parameter.

    Args:
        value: the value.
        path: the element to trace, if the value is a tuple.

    Returns:
        The constant, the element's path in the parameter, or None.
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
    """Returns an element's increase per iteration; None if it isn't constant."""
    if body.root.opcode != "tuple":
        return None
    increased = body.root.operands[index[0]]
    if increased.opcode != "add":
        return None
    counter, constant = map(_traced, increased.operands)
    # The constant may be either operand.
    if counter != index:
        counter, constant = constant, counter
    return constant if counter == index and isinstance(constant, int) else None


def _value(path: Path, loop: Instruction, depth: int = 0) -> int | None:
    """Returns an element's value before a loop; None if it isn't constant."""
    value = _traced(loop.operands[0], path)
    if not isinstance(value, tuple):
        return value
    # The value comes from an outer loop's carry, so that loop must leave it unchanged.
    calls = [c for c in loop.computation.callers if c.opcode == "while"]
    if len(calls) != 1 or depth > _DEEPEST:
        return None
    if not is_kept(calls[0].called[0], value):
        return None
    return _value(value, calls[0], depth + 1)
