"""read_memory(): what is alive when, from the buffers that XLA has assigned.

Every compiler of XLA writes them with its final module, as a `BufferAssignmentProto` of
XLA's `hlo.proto`: allocations, the values in each, and the events of the simulated heap
in which values are allocated, freed, or take over the memory of another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from shardviz.core.program.memory import Buffer, MemoryPeak, MemoryTimeline
from shardviz.core.program.report import phase_of
from shardviz.core.xla.causes import Causes
from shardviz.core.xla.loops import Loops
from shardviz.core.xla.module import (
    NO_SOURCE,
    Computation,
    Instruction,
    InstructionSource,
    Module,
    Shape,
)
from shardviz.core.xla.wire import Message

#: Fields of each message, by the names that XLA gives them.
ASSIGNMENT = {"values": 1, "allocations": 3, "traces": 4}
VALUE = {"id": 1, "size": 2, "defined_at": 3, "color": 4}
LOCATION = {"index": 3, "instruction": 4}
ALLOCATION = {
    "size": 2, "is_thread_local": 3, "is_argument": 5, "is_output": 7, "color": 8,
    "assigned": 9, "is_constant": 12,
}  # fmt: skip
TRACE = {"events": 1}
EVENT = {"kind": 1, "value": 2, "shares_with": 5}
_ALLOCATED, _FREED, _SHARED = 0, 1, 2
# The memory that a device's bytes are counted in; the others are on a TPU's core.
_MAIN_MEMORY = 0

# The marks of what lasts, to its kind.
_LASTING = {
    "is_argument": "arguments", "is_constant": "constants", "is_output": "outputs",
}  # fmt: skip
# What runs in the order of its caller; what a fusion has inside has no buffers.
_IN_ORDER = ("while", "call", "conditional", "async-start")
# They hand on what they read, and need no memory for it.
_HANDED_ON = (
    "tuple", "get-tuple-element", "bitcast", "parameter", "while", "call", "conditional"
)  # fmt: skip


def read_memory(
    data: bytes, arguments: Mapping[str, str] = MappingProxyType({})
) -> tuple[MemoryPeak, MemoryTimeline] | None:
    """The peak and the timeline of a compiled module.

    None where the compiler wrote no buffers, or not how long they live.

    Args:
        data: an `HloProto`: a final module with its buffer assignment.
        arguments: what the module calls an argument, to the program's name for it.

    Raises:
        ValueError: where the bytes are no module, or not all of one.
    """
    message = Message(data)
    assignment = message.message(3)
    if ASSIGNMENT["allocations"] not in assignment:
        return None
    return _Reader(assignment, Module(message.bytes(1)), arguments).read()


@dataclass(eq=False)
class _Value:
    """A value that XLA keeps in memory.

    Attributes:
        size: bytes, padding included.
        instruction: what makes it.
        index: which part of the instruction's tuple it is.
        color: the kind of memory.
    """

    size: int
    instruction: Instruction
    index: tuple[int, ...]
    color: int

    @cached_property
    def places(self) -> list[Instruction]:
        """The instructions whose result it is, or a part of whose tuple it is."""
        found: dict[tuple[Instruction, tuple[int, ...]], None] = {}
        todo = [(self.instruction, self.index)]
        while todo:
            place = todo.pop()
            if place not in found:
                found[place] = None
                todo += _handed_on(*place)
        return [instruction for instruction, _ in found]

    @cached_property
    def shape(self) -> Shape | None:
        """Type and shape; None of a tuple."""
        return self.instruction.shape_at(self.index)


@dataclass(eq=False)
class _Life:
    """A part of the heap from where it is allocated to where nothing needs it.

    Attributes:
        bytes: its size.
        start, end: positions.
        values: what it holds, one after another.
        users: how many of them are alive.
        freed_at: the number of the event that freed the last one.
    """

    bytes: int
    start: int
    end: int = 0
    values: list[_Value] = field(default_factory=list)
    users: int = 1
    freed_at: int = -1


# Where a value comes from, and of which argument it is a copy, if of one.
_Source = tuple[InstructionSource, str]
_NO_SOURCE: _Source = (NO_SOURCE, "")


class _Order:
    """The order in which the instructions of a module run, loops once.

    Attributes:
        instructions: in order. What a loop or a call runs stands before it.
        spans: number of a computation to its first position, and the one behind it.
    """

    def __init__(self, module: Module) -> None:
        self.instructions: list[Instruction] = []
        self.spans: dict[int, tuple[int, int]] = {}
        self._add(module.entry)
        self._positions = {one: at for at, one in enumerate(self.instructions)}

    def _add(self, computation: Computation) -> None:
        start = len(self.instructions)
        self.spans[computation.number] = start, start
        for one in computation.instructions:
            called = ()
            if one.opcode in _IN_ORDER or one.wrapped is not None:
                called = one.called
            # The condition of a loop runs first.
            for inside in reversed(called) if one.opcode == "while" else called:
                if inside.number not in self.spans:
                    self._add(inside)
            self.instructions.append(one)
        self.spans[computation.number] = start, len(self.instructions)

    def made_at(self, value: _Value) -> int | None:
        """Where a value is made; None inside of a fusion, where nothing has a position."""
        one = value.instruction
        span = self.spans.get(one.computation.number)
        if span is not None and one.opcode == "parameter":
            return span[0]  # it is there when its computation begins
        return self._positions.get(one)

    def last_use(self, value: _Value) -> int:
        """Where a value is used last."""
        last = -1
        for place in value.places:
            span = self.spans.get(place.computation.number)
            if span is None:
                continue
            last = max(last, self._positions[place])
            if place is place.computation.root:
                last = max(last, span[1])
            for user in place.users:
                if user.opcode == "while":
                    # The loop's own value takes over where its body begins.
                    last = max(last, self.spans[user.called[0].number][0])
                elif user.opcode not in _HANDED_ON:
                    last = max(last, self._positions[user])
                if user.opcode.endswith("-start"):
                    # What it reads must stay until it is done.
                    for done in user.users:
                        last = max(last, self._positions[done])
        return min(last, len(self.instructions) - 1)


class _Reader:
    """Reads the buffers of one module."""

    def __init__(
        self, assignment: Message, module: Module, arguments: Mapping[str, str]
    ) -> None:
        self.assignment, self.module, self.arguments = assignment, module, arguments
        self.order, self.loops = _Order(module), Loops()
        self.causes = Causes(arguments)
        self.values = self._read_values()

    def _read_values(self) -> dict[int, _Value]:
        instructions: dict[int, Instruction] = {}
        for computation in self.module.computations:
            instructions.update(computation.by_number)
        values: dict[int, _Value] = {}
        for message in self.assignment.messages(ASSIGNMENT["values"]):
            location = message.message(VALUE["defined_at"])
            values[message.number(VALUE["id"])] = _Value(
                message.number(VALUE["size"]),
                instructions[location.number(LOCATION["instruction"])],
                tuple(location.numbers(LOCATION["index"])),
                message.number(VALUE["color"]),
            )
        return values

    def read(self) -> tuple[MemoryPeak, MemoryTimeline] | None:
        """The peak and the timeline; None where XLA does not say how long values live."""
        buffers, has_heap = self._lasting()
        if has_heap and ASSIGNMENT["traces"] not in self.assignment:
            return None
        for life in self._simulated():
            kind = "temporaries"
            if any(_is_collective(value.instruction) for value in life.values):
                kind = "collectives"
            lived = (life.start, life.end)
            buffers.append(self._buffer(life.bytes, life.values, kind, *lived))
        order = self.order.instructions
        timeline = MemoryTimeline(
            tuple(one.name for one in order),
            tuple(self._op(one.source) for one in order),
            tuple(one.source.source for one in order),
            tuple(buffers),
        )
        at = int(timeline.total.argmax())
        op = timeline.ops[at]
        place = (at, timeline.names[at], op, timeline.sources[at], phase_of(op))
        return MemoryPeak(int(timeline.total[at]), *place, timeline.alive(at)), timeline

    def _op(self, source: InstructionSource) -> str:
        return self.arguments.get(source.op, source.op)

    def _lasting(self) -> tuple[list[Buffer], bool]:
        """What has its memory all the time; and whether there is a heap beside it."""
        buffers, has_heap = [], False
        last = len(self.order.instructions) - 1
        for allocation in self.assignment.messages(ASSIGNMENT["allocations"]):
            if allocation.number(ALLOCATION["color"]) != _MAIN_MEMORY:
                continue
            # An argument whose memory a result takes is both, and one buffer.
            marks = [m for m in _LASTING if allocation.number(ALLOCATION[m])]
            if not marks:
                # What is local to a thread is inside of a reduction.
                has_heap |= not allocation.number(ALLOCATION["is_thread_local"])
                continue
            values = []
            for assigned in allocation.messages(ALLOCATION["assigned"]):
                values.append(self.values[assigned.number(1)])
            size = allocation.number(ALLOCATION["size"])
            buffers.append(self._buffer(size, values, _LASTING[marks[0]], 0, last))
        return buffers, has_heap

    def _simulated(self) -> list[_Life]:
        """What XLA's heap simulator allocated in the main memory."""
        lives: list[_Life] = []
        for trace in self.assignment.messages(ASSIGNMENT["traces"]):
            events = trace.messages(TRACE["events"])
            colors = {self.values[e.number(EVENT["value"])].color for e in events[:1]}
            if _MAIN_MEMORY in colors:
                lives += self._replayed(events)
        return lives

    def _replayed(self, events: list[Message]) -> list[_Life]:
        """The lives of what a trace of the heap allocates."""
        lives: list[_Life] = []
        # The life of the part of the heap that a value was the first one in.
        current: dict[int, _Life] = {}
        first: dict[int, int] = {}
        # XLA does not write when a value is freed: it is after the event before it,
        # and before the next one that allocates.
        now, frees, allocations = 0, [], 0
        for event in events:
            number, kind = event.number(EVENT["value"]), event.number(EVENT["kind"])
            value = self.values[number]
            if kind == _FREED:
                life = current[first[number]]
                life.users -= 1
                if life.users == 0:
                    life.freed_at = allocations
                    life.end = max(now, self.order.last_use(value))
                    frees.append(life)
                continue
            made = self.order.made_at(value)
            if made is not None and made > now:
                for life in frees:
                    life.end = min(life.end, made - 1)
                now, frees = made, []
            first[number] = own = number
            if kind == _SHARED:
                first[number] = own = first[event.number(EVENT["shares_with"])]
            life = current.get(own)
            # What is taken over as soon as it is free is one buffer, changed in place.
            if life is not None and (life.users or life.freed_at == allocations):
                life.users += 1
                life.values.append(value)
            else:
                life = _Life(self.values[own].size, now, now, [value])
                lives.append(life)
            allocations += 1
            current[own] = life
        for life in lives:
            if life.users:
                life.end = len(self.order.instructions) - 1
        return lives

    def _buffer(
        self, size: int, values: list[_Value], kind: str, start: int, end: int
    ) -> Buffer:
        owner, (place, argument) = self._owner(values)
        largest = 0
        for value in values:
            shape = value.shape
            largest = max(largest, size if shape is None else shape.bytes)
        runs = self.loops.count(owner.instruction.computation)
        op = self._op(place)
        return Buffer(
            owner.instruction.name,
            size,
            str(owner.shape or "tuple"),
            kind,
            op,
            place.source,
            place.stack,
            phase_of(op),
            argument,
            start=start,
            end=end,
            count=runs.trips,
            padding=size - min(size, largest),
        )

    def _owner(self, values: list[_Value]) -> tuple[_Value, _Source]:
        """The value that a buffer is for, and where that comes from."""
        for value in values:
            one = value.instruction
            if one.opcode == "parameter" and one.computation.is_entry:
                return value, self._source(value)
            # Its memory may be used for others before it is made.
            if value.shape is not None and self.module.entry.root in value.places:
                return value, self._source(value)
        # What a loop writes bit by bit is what it is for, not the zeros before it.
        best, found, saved = values[0], _NO_SOURCE, False
        for value in values:
            if value.instruction.opcode in _HANDED_ON:
                continue
            source, writes = (
                self._source(value),
                _written(value.instruction) is not None,
            )
            if source != _NO_SOURCE and (found == _NO_SOURCE or writes > saved):
                best, found, saved = value, source, writes
        return best, found

    def _source(self, value: _Value) -> _Source:
        """Where a value comes from: its own operation, or that of what it is a copy of."""
        one, kind = value.instruction, value.instruction.kind
        written = _written(one)
        if kind and one.operands:
            # The name of a combined collective is that of one of its members.
            number = value.index[-1] if len(one.operands) > 1 and value.index else 0
            behind = self.causes.value(one.operands[number], one, kind)
            source = one.source
            if len(one.operands) > 1:
                source = self.causes.source_of_part(behind, one, kind, number)
            elif not source.is_named:
                source = self.causes.source(behind, one, kind)
            return source, ""
        behind = self.causes.value(written or one, written or one, "")
        if behind.name.code == "argument" and behind.maker is not None:
            # A slice of it is not the argument itself.
            whole = behind.maker.shapes[0].dims
            if value.shape and math.prod(value.shape.dims) == math.prod(whole):
                return behind.source, behind.name.name
        # Of what a loop writes bit by bit the line of the bits says more.
        known = behind.source
        if one.source.is_named and (written is None or not known.is_named):
            known = one.source
        return known, ""


def _handed_on(
    one: Instruction, index: tuple[int, ...]
) -> list[tuple[Instruction, tuple[int, ...]]]:
    """Where else the part of a result stands, without being copied."""
    found = []
    for user in one.users:
        if user.opcode == "get-tuple-element" and index[:1] == (user.index,):
            found.append((user, index[1:]))
        elif user.opcode == "bitcast":
            found.append((user, index))
        elif user.opcode.endswith("-done"):
            found.append((user, index[1:]))
        if user.opcode not in ("tuple", "call", "conditional"):
            continue
        for number, operand in enumerate(user.operands):
            if operand is not one:
                continue
            if user.opcode == "tuple":
                found.append((user, (number, *index)))
            elif user.opcode == "call":
                found.append((user.called[0].parameters[number], index))
            elif user.opcode == "conditional" and number:
                found.append((user.called[number - 1].parameters[0], index))
    computation = one.computation
    if one is computation.root and not computation.is_entry:
        found += [(c, index) for c in computation.callers if c.opcode == "call"]
    return found


def _is_collective(one: Instruction) -> bool:
    """Whether it is a collective, or TPU's fusion of a reduce-scatter."""
    inside = one.called[0].name if one.opcode == "fusion" else ""
    return bool(one.kind) or inside.startswith("all-reduce-scatter")


def _written(one: Instruction) -> Instruction | None:
    """What an instruction writes into a part of its operand; None of any other."""
    if one.opcode == "fusion":
        one = one.called[0].root
    while one.opcode in ("bitcast", "tuple", "convert") and one.operands:
        one = one.operands[0]
    if one.opcode != "dynamic-update-slice":
        return None
    return one.operands[1]
