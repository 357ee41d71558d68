"""read_memory(): what is alive when, from the buffers that XLA has assigned.

Every compiler of XLA writes them with its final module, as a `BufferAssignmentProto` of
XLA's `hlo.proto`: allocations, the values in each, and the events of the simulated heap
in which values are allocated, freed, or take over the memory of another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from shardviz.core.program.memory import Buffer, MemoryTimeline
from shardviz.core.program.report import phase_of
from shardviz.core.xla.causes import Causes
from shardviz.core.xla.loops import Loops
from shardviz.core.xla.module import NO_SOURCE, Instruction, InstructionSource, Module
from shardviz.core.xla.wire import Message

#: Fields of each message, by the names that XLA gives them.
ASSIGNMENT = {"values": 1, "allocations": 3, "traces": 4}
VALUE = {"id": 1, "size": 2, "defined_at": 3, "color": 4}
LOCATION = {"index": 3, "instruction": 4}
ALLOCATION = {
    "size": 2, "is_thread_local": 3, "is_argument": 5, "is_output": 7, "color": 8,
    "assigned": 9, "is_constant": 12,
}  # fmt: skip
EVENT = {"kind": 1, "value": 2, "shares_with": 5}
_FREED, _SHARED = 1, 2
# The memory that a device's bytes are counted in; the others are on a TPU's core.
_MAIN_MEMORY = 0

# The marks of what lasts, to its kind. An argument whose memory a result takes has two,
# and is one buffer.
_LASTING = {
    "is_argument": "arguments", "is_constant": "constants", "is_output": "outputs",
}  # fmt: skip
# They make no value of their own.
_HANDED_ON = (
    "tuple", "get-tuple-element", "bitcast", "parameter", "while", "call", "conditional"
)  # fmt: skip


class _Value(NamedTuple):
    """A value that XLA keeps in memory."""

    size: int  # in bytes, padding included
    maker: Instruction
    index: tuple[int, ...]  # which part of the maker's tuple it is
    color: int  # the kind of memory


@dataclass(eq=False)
class _Life:
    """A part of memory from where it is allocated to where nothing needs it."""

    size: int
    kind: str = "temporaries"
    start: int = 0
    end: int = 0
    values: list[_Value] = field(default_factory=list)  # one after another
    users: int = 0  # how many of them are alive


def read_memory(
    data: bytes, arguments: Mapping[str, str] = MappingProxyType({})
) -> MemoryTimeline | None:
    """What is alive when in a compiled module.

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
    module = Module(message.bytes(1))
    values = _values(assignment, module)
    lives: list[_Life] = []
    has_heap = False
    for allocation in assignment.messages(ASSIGNMENT["allocations"]):
        if allocation.number(ALLOCATION["color"]) != _MAIN_MEMORY:
            continue
        kinds = [
            _LASTING[mark] for mark in _LASTING if allocation.number(ALLOCATION[mark])
        ]
        if kinds:
            life = _Life(allocation.number(ALLOCATION["size"]), kinds[0])
            for assigned in allocation.messages(ALLOCATION["assigned"]):
                life.values.append(values[assigned.number(1)])
            lives.append(life)
        # What is local to a thread is inside of a reduction.
        elif not allocation.number(ALLOCATION["is_thread_local"]):
            has_heap = True
    if has_heap and ASSIGNMENT["traces"] not in assignment:
        return None
    heap = _heap(assignment, values)
    for life in lives:
        life.end = len(heap)
    owners = _Owners(module, arguments)
    return MemoryTimeline(tuple(map(owners.buffer, lives + heap)))


def _values(assignment: Message, module: Module) -> dict[int, _Value]:
    """The values that have memory, by number."""
    instructions: dict[int, Instruction] = {}
    for computation in module.computations:
        instructions.update(computation.by_number)
    values: dict[int, _Value] = {}
    for message in assignment.messages(ASSIGNMENT["values"]):
        location = message.message(VALUE["defined_at"])
        values[message.number(VALUE["id"])] = _Value(
            message.number(VALUE["size"]),
            instructions[location.number(LOCATION["instruction"])],
            tuple(location.numbers(LOCATION["index"])),
            message.number(VALUE["color"]),
        )
    return values


def _heap(assignment: Message, values: Mapping[int, _Value]) -> list[_Life]:
    """What XLA's simulated heap holds in the main memory, in the order of allocation."""
    lives: list[_Life] = []
    # The value that was first in the memory of another, and who has that memory last.
    first: dict[int, int] = {}
    latest: dict[int, _Life] = {}
    for trace in assignment.messages(ASSIGNMENT["traces"]):
        for event in trace.messages(1):
            number, kind = event.number(EVENT["value"]), event.number(EVENT["kind"])
            if values[number].color != _MAIN_MEMORY:
                break  # each kind of memory has a trace of its own
            if kind == _FREED:
                life = latest[first[number]]
                life.users -= 1
                life.end = len(lives)
                continue
            own = number
            if kind == _SHARED:
                own = first[event.number(EVENT["shares_with"])]
            first[number] = own
            life = latest.get(own)
            # What is taken over as soon as it is free is one buffer, changed in place.
            if life is None or (life.users == 0 and life.end < len(lives)):
                at = len(lives) + 1
                life = latest[own] = _Life(values[own].size, start=at)
                lives.append(life)
            life.users += 1
            life.values.append(values[number])
    for life in lives:
        if life.users:
            life.end = len(lives)
    return lives


class _Owners:
    """What the buffers of a module are for."""

    def __init__(self, module: Module, arguments: Mapping[str, str]) -> None:
        self._arguments, self._loops = arguments, Loops()
        self._causes = Causes(arguments)
        # Arguments, and what the program returns without a copy.
        self._named: set[tuple[Instruction, tuple[int, ...]]] = set()
        todo: list[tuple[Instruction, tuple[int, ...]]] = [(module.entry.root, ())]
        for parameter in module.entry.parameters.values():
            self._named.add((parameter, ()))
        while todo:
            one, index = todo.pop()
            if one.opcode == "tuple":
                todo += [(operand, ()) for operand in one.operands]
                continue
            self._named.add((one, index))
            if one.opcode == "get-tuple-element":
                todo.append((one.operands[0], (one.index, *index)))
            elif one.opcode == "bitcast":
                todo.append((one.operands[0], index))

    def buffer(self, life: _Life) -> Buffer:
        """A buffer with what it is for, which one of its values says."""
        best, rank = life.values[0], -1
        source, argument = NO_SOURCE, ""
        largest, kind = 0, life.kind
        for value in life.values:
            shape = value.maker.shape_at(value.index)
            largest = max(largest, life.size if shape is None else shape.bytes)
            if kind == "temporaries" and _is_collective(value.maker):
                kind = "collectives"
            new = self._rank(value, life.kind)
            if new > rank:
                found = self._source(value)
                if found != (NO_SOURCE, "") or new == 3:
                    best, rank, (source, argument) = value, new, found
        op = self._arguments.get(source.op, source.op)
        return Buffer(
            best.maker.name,
            life.size,
            str(best.maker.shape_at(best.index) or "tuple"),
            kind,
            op,
            source.source,
            phase_of(op),
            argument,
            start=life.start,
            end=life.end,
            count=self._loops.count(best.maker.computation).trips,
            padding=life.size - min(life.size, largest),
        )

    def _rank(self, value: _Value, kind: str) -> int:
        """How much a value says of the buffer that it is in; below 0 nothing."""
        maker = value.maker
        # Before a result is made, its memory may be used for others.
        if kind != "temporaries" and (maker, value.index) in self._named:
            return 3
        if maker.opcode in _HANDED_ON:
            return -1
        # What a loop writes bit by bit is what it is for, not the zeros before it.
        return 1 if _written(maker) is None else 2

    def _source(self, value: _Value) -> tuple[InstructionSource, str]:
        """The operation that makes a value, and of which argument it is a copy, if of
        one."""
        one, kind = value.maker, value.maker.kind
        written = _written(one)
        if kind and one.operands:
            # The name of a combined collective is that of one of its members.
            number = value.index[-1] if len(one.operands) > 1 and value.index else 0
            behind = self._causes.value(one.operands[number], one, kind)
            source = one.source
            if len(one.operands) > 1:
                source = self._causes.source_of_part(behind, one, kind, number)
            elif not source.is_named:
                source = self._causes.source(behind, one, kind)
            return source, ""
        behind = self._causes.value(written or one, written or one, "")
        if behind.name.code == "argument" and behind.maker is not None:
            # A slice of it is not the argument itself.
            whole = behind.maker.shapes[0].dims
            shape = one.shape_at(value.index)
            if shape and math.prod(shape.dims) == math.prod(whole):
                return behind.source, behind.name.name
        # Of what a loop writes bit by bit the line of the bits says more.
        known = behind.source
        if one.source.is_named and (written is None or not known.is_named):
            known = one.source
        return known, ""


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
