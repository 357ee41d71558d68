"""read_memory(): what is alive when, from the buffers that XLA has assigned.

Every compiler of XLA writes them with its final module, as a `BufferAssignmentProto` of
XLA's `hlo.proto`: allocations, the values in each, and the events of the simulated heap
in which values are allocated, freed, or take over the memory of another.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from shardviz.base.collective import phase_of
from shardviz.base.collective_kind import KINDS, SUMS
from shardviz.compiled.causes import Causes, is_written
from shardviz.compiled.dataflow import Dataflow, Part, Placement
from shardviz.compiled.loops import Loops
from shardviz.compiled.memory import Buffer, MemoryTimeline
from shardviz.compiled.module import Instruction, InstructionSource, Module
from shardviz.compiled.wire import Message

#: Fields of each message, by the names that XLA gives them.
ASSIGNMENT = {"values": 1, "allocations": 3, "traces": 4}
VALUE = {"id": 1, "size": 2, "defined_at": 3, "color": 4}
LOCATION = {"index": 3, "instruction": 4}
ALLOCATION = {"size": 2, "is_thread_local": 3, "color": 8, "assigned": 9}
EVENT = {"kind": 1, "value": 2, "shares_with": 5}
_FREED, _SHARED = 1, 2
# What lasts, by its mark. An argument whose memory a result takes has two, and is one
# buffer.
_LASTING = {"arguments": 5, "constants": 12, "outputs": 7}
# The memory that a device's bytes are counted in; the others are on a TPU's core.
_MAIN_MEMORY = 0

# They make no value of their own.
_HANDED_ON = (
    "tuple", "get-tuple-element", "bitcast", "parameter", "while", "call", "conditional"
)  # fmt: skip


class _Value(NamedTuple):
    """A value that XLA keeps in the main memory."""

    size: int  # in bytes, padding included
    maker: Instruction
    index: tuple[int, ...]  # which part of the maker's tuple it is


@dataclass(eq=False)
class _Life:
    """A value, from where it is made to where nothing needs it or another takes over."""

    size: int  # of the memory that it is in
    value: _Value
    kind: str = ""
    start: int = 0
    end: int | None = None


def read_memory(
    data: bytes,
    arguments: Mapping[str, str] = MappingProxyType({}),
    module: Module | None = None,
    placement: Placement | None = None,
) -> MemoryTimeline | None:
    """What is alive when in a compiled module.

    None where the compiler wrote no buffers, or not how long they live.

    Args:
        data: an `HloProto`: a final module with its buffer assignment.
        arguments: what the module calls an argument, to the program's name for it.
        module: that module, where it has been read before.
        placement: the mesh and the splits of the arguments; without these it is unknown
            which buffers differ from device to device.

    Raises:
        ValueError: where the bytes are no module, or not all of one.
    """
    message = Message(data)
    assignment = message.message(3)
    if ASSIGNMENT["allocations"] not in assignment:
        return None
    module = module or Module(message.bytes(1))
    values = _values(assignment, module)
    named, has_heap = _named(module), False
    lives: list[_Life] = []
    for allocation in assignment.messages(ASSIGNMENT["allocations"]):
        if allocation.number(ALLOCATION["color"]) != _MAIN_MEMORY:
            continue
        kinds = [kind for kind, mark in _LASTING.items() if allocation.number(mark)]
        if kinds:
            inside = []
            for assigned in allocation.messages(ALLOCATION["assigned"]):
                inside.append(values[assigned.number(1)])
            # Before a result is made, its memory may be used for others.
            value = max(inside, key=functools.partial(_likely, named))
            lives.append(_Life(allocation.number(ALLOCATION["size"]), value, kinds[0]))
        # What is local to a thread is inside of a reduction.
        elif not allocation.number(ALLOCATION["is_thread_local"]):
            has_heap = True
    if has_heap and ASSIGNMENT["traces"] not in assignment:
        return None
    heap = _heap(assignment, values)
    flow = Dataflow(module, placement, arguments)
    owners, buffers = _Owners(arguments, flow, named), []
    for life in lives + heap:
        if life.end is None:
            life.end = len(heap)
        buffers.append(owners.buffer(life))
    return MemoryTimeline(tuple(buffers), tuple(arguments.values()))


def _likely(named: Mapping[Part, _Named], value: _Value) -> int:
    """How well a value says what lasting memory is for."""
    entry = named.get((value.maker, value.index))
    if entry is None:
        return 0
    return 1 if entry.inside else 2


def _values(assignment: Message, module: Module) -> dict[int, _Value]:
    """The values in the main memory, by number."""
    instructions: dict[int, Instruction] = {}
    for computation in module.computations:
        instructions.update(computation.by_number)
    values: dict[int, _Value] = {}
    for message in assignment.messages(ASSIGNMENT["values"]):
        if message.number(VALUE["color"]) == _MAIN_MEMORY:
            place = message.message(VALUE["defined_at"])
            maker = instructions[place.number(LOCATION["instruction"])]
            index = tuple(place.numbers(LOCATION["index"]))
            value = _Value(message.number(VALUE["size"]), maker, index)
            values[message.number(VALUE["id"])] = value
    return values


class _Named(NamedTuple):
    """An argument, or a result by its number.

    Attributes:
        number: of the result; None for an argument.
        inside: whether a loop, a branch or a call inside makes it.
    """

    number: int | None
    inside: bool = False


def _named(module: Module) -> dict[Part, _Named]:
    """The arguments, and what the program returns without a copy."""
    root = module.entry.root
    # A program with one result returns it without a tuple.
    todo: list[tuple[Part, _Named]] = [((root, ()), _Named(None))]
    parts = root.operands if root.opcode == "tuple" else root.shapes
    for number in range(len(parts)):
        todo.append(((root, (number,)), _Named(number)))
    if root.opcode != "tuple" and root.paths == ((),):
        todo.append(((root, ()), _Named(0)))
    for parameter in module.entry.parameters.values():
        todo.append(((parameter, ()), _Named(None)))
    named: dict[Part, _Named] = {}
    while todo:
        part, entry = todo.pop()
        before = named.get(part)
        if before is None or (
            entry.number is not None and (before.number is None or before.inside)
        ):
            named[part] = entry
        for source in _handed_on(part):
            todo.append((source, entry))
        here, index = part
        if here.opcode in ("call", "while", "conditional") and before is None:
            # The last computation of a loop is its condition.
            called = here.called[:1] if here.opcode == "while" else here.called
            for computation in called:
                todo.append(((computation.root, index), entry._replace(inside=True)))
    return named


def _handed_on(part: Part) -> list[Part]:
    """The array that a part is, one step back."""
    here, index = part
    if here.opcode == "tuple" and index:
        return [(here.operands[index[0]], index[1:])]
    if here.opcode == "get-tuple-element":
        return [(here.operands[0], (here.index, *index))]
    if here.opcode == "bitcast":
        return [(here.operands[0], index)]
    if here.opcode.endswith("-done"):
        # One part of a start is the result, the first or the second.
        return [(here.operands[0], place) for place in ((), (0,), (1,))]
    return []


def _heap(assignment: Message, values: Mapping[int, _Value]) -> list[_Life]:
    """What XLA's simulated heap holds in the main memory, each at a position of its own."""
    lives: list[_Life] = []
    # Values share the memory of the first one in it: how many of them are alive, and
    # which one it holds now.
    first: dict[int, int] = {}
    users: Counter[int] = Counter()
    holds: dict[int, _Life] = {}
    for trace in assignment.messages(ASSIGNMENT["traces"]):
        for event in trace.messages(1):
            number, kind = event.number(EVENT["value"]), event.number(EVENT["kind"])
            if number not in values:
                break  # each kind of memory has a trace of its own
            if kind == _FREED:
                own = first[number]
                users[own] -= 1
                if not users[own]:
                    holds[own].end = len(lives)
                continue
            own = first[number] = number
            if kind == _SHARED:
                own = first[number] = first[event.number(EVENT["shares_with"])]
            users[own] += 1
            before, value = holds.get(own), values[number]
            if before is not None and before.end in (None, len(lives)):
                # It takes over as soon as the other is not needed. What a loop writes
                # bit by bit is what a buffer is for, not the zeros before it.
                before.end = None
                if _written(value.maker) is not None:
                    before.value = value
                    continue
                if value.maker.opcode in _HANDED_ON:
                    continue
                before.end = len(lives)
            life = _Life(values[own].size, value, start=len(lives) + 1)
            lives.append(life)
            holds[own] = life
    return lives


class _Owners:
    """What buffers are for."""

    def __init__(
        self,
        arguments: Mapping[str, str],
        flow: Dataflow,
        named: Mapping[Part, _Named],
    ) -> None:
        self._arguments, self._loops = arguments, Loops()
        self._causes = Causes(arguments)
        self._flow, self._named = flow, named

    def buffer(self, life: _Life) -> Buffer:
        """A buffer with the operation, line and argument that it is for."""
        maker, index = life.value.maker, life.value.index
        shape, kind = maker.shape_at(index), life.kind or "temporaries"
        inside = maker.called[0].name if maker.opcode == "fusion" else ""
        # TPU's fusion of a reduce-scatter is one, too.
        if not life.kind and (maker.kind or inside.startswith("all-reduce-scatter")):
            kind = "collectives"
        source, argument = self._source(life.value)
        op = self._arguments.get(source.op, source.op)
        part = maker, index
        named = self._named.get(part)
        differs = self._flow.differing(part)
        replicated: tuple[str, ...] = ()
        if differs is not None:
            replicated = tuple(a for a in self._flow.axes if a not in differs)
        return Buffer(
            maker.name,
            life.size,
            str(shape or "tuple"),
            kind,
            op,
            source.source,
            phase_of(op),
            argument,
            start=life.start,
            end=life.end or 0,
            count=self._loops.count(maker.computation).trips,
            padding=0 if shape is None else max(0, life.size - shape.bytes),
            replicated=replicated,
            differs=differs,
            stacked=_written(maker) is not None,
            result=named.number if named and life.kind == "outputs" else None,
            transposed=_is_transposed(maker, index),
            places=self._places(life.value, source),
            reads=self._flow.arguments_of(part),
            leads=self._flow.results_of(part),
            loop=self._loops.line(maker.computation),
        )

    def _places(
        self, value: _Value, source: InstructionSource
    ) -> tuple[tuple[str, str], ...]:
        """The operations and lines that a value may be known by."""
        maker = value.maker
        inside = _written(maker) or _root(maker, value.index)
        operand = inside
        if maker.kind and maker.operands:
            number = value.index[-1] if value.index else 0
            operand = maker.operands[min(number, len(maker.operands) - 1)]
        behind = self._causes.value(operand, maker, maker.kind)
        if maker.kind and maker.kind not in SUMS:
            sources: list[InstructionSource] = []
            # The partitioner's collectives carry the name of the operation that reads
            # their result.
            if is_written(maker, maker.source):
                sources.append(maker.source)
            elif maker.kind == "all-gather" and not behind.moved:
                sources.append(behind.source)
        else:
            sources = [source, inside.source, behind.source, maker.source]
            if behind.moved in KINDS:
                sources = []  # it is split otherwise than these
        places: dict[tuple[str, str], None] = {}
        for source in sources:
            # XLA joins the names of operations that it computes as one.
            for op in filter(None, source.op.split(";")):
                places[self._arguments.get(op, op), source.source] = None
        return tuple(places)

    def _source(self, value: _Value) -> tuple[InstructionSource, str]:
        """The operation that makes a value, and of which argument it is a copy, if of
        one."""
        one, several = value.maker, len(value.maker.operands) > 1
        if one.kind and one.operands:
            # The name of a combined collective is that of one of its members.
            number = value.index[-1] if several and value.index else 0
            behind = self._causes.value(one.operands[number], one, one.kind)
            if several:
                return self._causes.source_of_part(behind, one, one.kind, number), ""
            return self._causes.source(behind, one, one.kind), ""
        # Of what is written bit by bit the line of the bits says more.
        written = _written(one)
        inside = written or _root(one, value.index)
        behind = self._causes.value(inside, inside, "")
        if behind.name.code == "argument" and behind.maker is not None:
            # A slice of it is not the argument itself.
            whole = behind.maker.shapes[0].dims
            shape = one.shape_at(value.index)
            if shape and math.prod(shape.dims) == math.prod(whole):
                return behind.source, behind.name.name
        # A fusion has the name of any part of it.
        known = [inside.source, behind.source, one.source]
        if written is not None:
            known = known[1:]
        for source in known:
            if source.is_named:
                return source, ""
        return behind.source, ""


def _root(one: Instruction, index: tuple[int, ...] = ()) -> Instruction:
    """What makes a value inside of a fusion; of anything else that itself."""
    if one.opcode != "fusion":
        return one
    root = one.called[0].root
    if root.opcode == "tuple" and index:
        root = root.operands[index[0]]
    while root.opcode in ("bitcast", "reshape", "copy"):
        root = root.operands[0]
    return root


def _is_transposed(maker: Instruction, index: tuple[int, ...]) -> bool:
    """Whether XLA lays out a value anew, with its dimensions in another order."""
    if maker.opcode == "fusion":
        maker = maker.called[0].root
        if maker.opcode == "tuple" and index:
            maker = maker.operands[index[0]]
    while maker.opcode in ("bitcast", "convert", "copy"):
        maker = maker.operands[0]
    return maker.opcode == "transpose" and maker.operands[0].opcode != "dynamic-slice"


def _written(one: Instruction) -> Instruction | None:
    """What an instruction writes into a part of its operand; None of any other."""
    one = _root(one)
    while one.opcode in ("bitcast", "tuple", "convert") and one.operands:
        one = one.operands[0]
    return one.operands[1] if one.opcode == "dynamic-update-slice" else None
