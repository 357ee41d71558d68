"""read_memory(): the lifetimes of a program's buffers, from XLA's buffer assignment.

Every XLA compiler writes a `BufferAssignmentProto` (`hlo.proto`) with its final module.
It lists allocations, the values in each allocation, and the events of a simulated heap:
a value is allocated, is freed, or takes over another value's memory.
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

#: The field numbers of each message, by XLA's field names.
ASSIGNMENT = {"values": 1, "allocations": 3, "traces": 4}
VALUE = {"id": 1, "size": 2, "defined_at": 3, "color": 4}
LOCATION = {"index": 3, "instruction": 4}
ALLOCATION = {"size": 2, "is_thread_local": 3, "color": 8, "assigned": 9}
EVENT = {"kind": 1, "value": 2, "shares_with": 5}
_FREED, _SHARED = 1, 2
# Fields that mark allocations as lasting for the whole program. An argument whose
# memory a result reuses has two of these fields set, and counts as an argument.
_LASTING = {"arguments": 5, "constants": 12, "outputs": 7}
# The color of a device's main memory; other colors are memory on a TPU core.
_MAIN_MEMORY = 0

# Operations that only forward values.
_PASS_ON = (
    "tuple", "get-tuple-element", "bitcast", "parameter", "while", "call", "conditional"
)  # fmt: skip


class _Value(NamedTuple):
    """A value in a device's main memory."""

    size: int  # in bytes, padding included
    maker: Instruction
    index: tuple[int, ...]  # index of the value in the maker's result tuple


@dataclass(eq=False)
class _Life:
    """A value's lifetime, from its first position to its last use."""

    size: int  # bytes of the memory that holds the value
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
    """Returns the live buffers of a compiled module, in execution order.

    Args:
        data: an `HloProto`: a final module with its buffer assignment.
        arguments: an argument's name in the module -> its name in the program.
        module: the parsed module, if available.
        placement: the mesh and how arguments are split. Without it, we cannot tell
            which buffers differ between devices.

    Returns:
        The timeline; None if the compiler wrote no buffers or no lifetimes.

    Raises:
        ValueError: if the bytes are not a complete module.
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
            # A result's memory may have held other values before.
            value = max(inside, key=functools.partial(_likely, named))
            lives.append(_Life(allocation.number(ALLOCATION["size"]), value, kinds[0]))
        # Thread-local memory belongs to the body of a reduction.
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
    """Ranks a value: 2 for an argument or result, 1 if inside a call, else 0."""
    entry = named.get((value.maker, value.index))
    if entry is None:
        return 0
    return 1 if entry.inside else 2


def _values(assignment: Message, module: Module) -> dict[int, _Value]:
    """Returns the values in main memory, by number."""
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
    """Marks an array as an argument or a result of the program.

    Attributes:
        number: index of the result; None for an argument.
        inside: whether the array is computed inside a loop, a branch or a call.
    """

    number: int | None
    inside: bool = False


def _named(module: Module) -> dict[Part, _Named]:
    """Finds the arguments, and the arrays that the program returns without a copy."""
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
        instruction, index = part
        if instruction.opcode in ("call", "while", "conditional") and before is None:
            # A loop's body returns the array; its condition doesn't.
            called = (
                instruction.called[:1]
                if instruction.opcode == "while"
                else instruction.called
            )
            for computation in called:
                todo.append(((computation.root, index), entry._replace(inside=True)))
    return named


def _handed_on(part: Part) -> list[Part]:
    """Returns the arrays that an instruction passes on unchanged as result `part`."""
    instruction, index = part
    if instruction.opcode == "tuple" and index:
        return [(instruction.operands[index[0]], index[1:])]
    if instruction.opcode == "get-tuple-element":
        return [(instruction.operands[0], (instruction.index, *index))]
    if instruction.opcode == "bitcast":
        return [(instruction.operands[0], index)]
    if instruction.opcode.endswith("-done"):
        # An async done returns its start's result, or an element of that result.
        return [(instruction.operands[0], place) for place in ((), (0,), (1,))]
    return []


def _heap(assignment: Message, values: Mapping[int, _Value]) -> list[_Life]:
    """Reads the main-memory values in XLA's simulated heap, one per position."""
    lives: list[_Life] = []
    # Values that share memory are counted under the first of them: `users` is how many
    # are alive, `holds` the value that is in the memory now.
    first: dict[int, int] = {}
    users: Counter[int] = Counter()
    holds: dict[int, _Life] = {}
    for trace in assignment.messages(ASSIGNMENT["traces"]):
        for event in trace.messages(1):
            number, kind = event.number(EVENT["value"]), event.number(EVENT["kind"])
            if number not in values:
                break  # this trace describes another kind of memory
            if kind == _FREED:
                owner = first[number]
                users[owner] -= 1
                if not users[owner]:
                    holds[owner].end = len(lives)
                continue
            owner = first[number] = number
            if kind == _SHARED:
                owner = first[number] = first[event.number(EVENT["shares_with"])]
            users[owner] += 1
            before, value = holds.get(owner), values[number]
            if before is not None and before.end in (None, len(lives)):
                # The new value takes over memory that is no longer needed. If a loop
                # fills it slice by slice, the buffer counts as the loop's result, not
                # as the zeros that were there before.
                before.end = None
                if _written(value.maker) is not None:
                    before.value = value
                    continue
                if value.maker.opcode in _PASS_ON:
                    continue
                before.end = len(lives)
            life = _Life(values[owner].size, value, start=len(lives) + 1)
            lives.append(life)
            holds[owner] = life
    return lives


class _Owners:
    """Finds the operation, line and argument that each buffer belongs to."""

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
        """Returns the buffer for a lifetime, with its operation, line and argument."""
        maker, index = life.value.maker, life.value.index
        shape, kind = maker.shape_at(index), life.kind or "temporaries"
        inside = maker.called[0].name if maker.opcode == "fusion" else ""
        # The TPU compiler's fusion of a reduce-scatter is a collective too.
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
            name=maker.name,
            bytes=life.size,
            shape=str(shape or "tuple"),
            kind=kind,
            op=op,
            source=source.source,
            phase=phase_of(op),
            value=argument,
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
        """Returns the (operation, source line) pairs that a value may have in a plan."""
        maker = value.maker
        inside = _written(maker) or _root(maker, value.index)
        operand = inside
        if maker.kind and maker.operands:
            number = value.index[-1] if value.index else 0
            operand = maker.operands[min(number, len(maker.operands) - 1)]
        behind = self._causes.value(operand, maker, maker.kind)
        if maker.kind and maker.kind not in SUMS:
            sources: list[InstructionSource] = []
            # A collective from the partitioner has the name of the operation that reads
            # its result.
            if is_written(maker, maker.source):
                sources.append(maker.source)
            elif maker.kind == "all-gather" and not behind.moved:
                sources.append(behind.source)
        else:
            sources = [source, inside.source, behind.source, maker.source]
            if behind.moved in KINDS:
                sources = []  # earlier operations have another sharding
        places: dict[tuple[str, str], None] = {}
        for source in sources:
            # XLA joins the names of merged operations with semicolons.
            for op in filter(None, source.op.split(";")):
                places[self._arguments.get(op, op), source.source] = None
        return tuple(places)

    def _source(self, value: _Value) -> tuple[InstructionSource, str]:
        """Returns the operation that computes a value, and the argument that the value
        copies, or `""`.
        """
        maker, several = value.maker, len(value.maker.operands) > 1
        if maker.kind and maker.operands:
            # A combined collective has the name of only one of its members.
            number = value.index[-1] if several and value.index else 0
            behind = self._causes.value(maker.operands[number], maker, maker.kind)
            if several:
                return self._causes.source_of_part(
                    behind, maker, maker.kind, number
                ), ""
            return self._causes.source(behind, maker, maker.kind), ""
        # For an array that is filled slice by slice, the slices' line is more useful.
        written = _written(maker)
        inside = written or _root(maker, value.index)
        behind = self._causes.value(inside, inside, "")
        if behind.name.code == "argument" and behind.maker is not None:
            # A slice of an argument is not a copy of it.
            argument_dims = behind.maker.shapes[0].dims
            shape = maker.shape_at(value.index)
            if shape and math.prod(shape.dims) == math.prod(argument_dims):
                return behind.source, behind.name.name
        # A fusion may be named after any of its instructions, so we try its name last.
        sources = [inside.source, behind.source, maker.source]
        if written is not None:
            sources = sources[1:]
        for source in sources:
            if source.is_named:
                return source, ""
        return behind.source, ""


def _root(instruction: Instruction, index: tuple[int, ...] = ()) -> Instruction:
    """Looks inside a fusion for the instruction that computes a value."""
    if instruction.opcode != "fusion":
        return instruction
    root = instruction.called[0].root
    if root.opcode == "tuple" and index:
        root = root.operands[index[0]]
    while root.opcode in ("bitcast", "reshape", "copy"):
        root = root.operands[0]
    return root


def _is_transposed(maker: Instruction, index: tuple[int, ...]) -> bool:
    """Whether XLA stores a value with its dimensions transposed."""
    if maker.opcode == "fusion":
        maker = maker.called[0].root
        if maker.opcode == "tuple" and index:
            maker = maker.operands[index[0]]
    while maker.opcode in ("bitcast", "convert", "copy"):
        maker = maker.operands[0]
    return maker.opcode == "transpose" and maker.operands[0].opcode != "dynamic-slice"


def _written(instruction: Instruction) -> Instruction | None:
    """Returns the slice that an instruction writes into its operand, or None."""
    instruction = _root(instruction)
    while (
        instruction.opcode in ("bitcast", "tuple", "convert") and instruction.operands
    ):
        instruction = instruction.operands[0]
    return (
        instruction.operands[1]
        if instruction.opcode == "dynamic-update-slice"
        else None
    )
