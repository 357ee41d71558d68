"""Module: a compiled XLA program, read from its serialized form.

XLA's compilers for CPU, GPU and TPU return the final module as a protocol buffer, and
dump one after each pass. The field numbers come from XLA's `hlo.proto` and
`xla_data.proto`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from shardviz.base.collective_kind import KINDS
from shardviz.base.source_lines import is_user_file, line_in_words
from shardviz.compiled.wire import Message, signed

#: The field numbers of each message, by XLA's field names.
MODULE = {
    "name": 1, "entry_name": 2, "computations": 3, "entry": 6, "schedule": 7, "alias": 8,
    "device_assignment": 15, "stack_frames": 17, "frontend_attributes": 19,
}  # fmt: skip
COMPUTATION = {"name": 1, "instructions": 2, "id": 5, "root_id": 6}
INSTRUCTION = {
    "name": 1, "opcode": 2, "shape": 3, "metadata": 7, "literal": 8,
    "parameter_number": 9, "tuple_index": 13, "dimensions": 14,
    "channel_id": 26, "custom_call_target": 28, "id": 35, "operand_ids": 36,
    "called_computation_ids": 38, "sharding": 40, "backend_config": 43, "replica_groups": 49,
    "feature_group_count": 50, "source_target_pairs": 52, "batch_group_count": 61,
    "comparison_direction": 63,
    "frontend_attributes": 68, "device_list": 87, "iota_device_list": 92,
    "mesh_axes_device_list": 93,
}  # fmt: skip
METADATA = {"op_name": 2, "source_file": 3, "source_line": 4, "stack_frame_id": 15}
SHAPE = {"element_type": 2, "dimensions": 3, "tuple_shapes": 4}
# The fields of a literal with integers: s32s, s64s, u32s and u64s.
LITERAL_INTEGERS = (4, 5, 6, 7)

# `PrimitiveType` in xla_data.proto -> the name that XLA prints, and bits per element.
TYPES = {
    1: ("pred", 8), 2: ("s8", 8), 3: ("s16", 16), 4: ("s32", 32), 5: ("s64", 64),
    6: ("u8", 8), 7: ("u16", 16), 8: ("u32", 32), 9: ("u64", 64), 10: ("f16", 16),
    11: ("f32", 32), 12: ("f64", 64), 14: ("opaque", 0), 15: ("c64", 64),
    16: ("bf16", 16), 17: ("token", 0), 18: ("c128", 128), 19: ("f8e5m2", 8),
    20: ("f8e4m3fn", 8), 21: ("s4", 4), 22: ("u4", 4), 23: ("f8e4m3b11fnuz", 8),
    24: ("f8e5m2fnuz", 8), 25: ("f8e4m3fnuz", 8), 26: ("s2", 2), 27: ("u2", 2),
    28: ("f8e4m3", 8), 29: ("f8e3m4", 8), 30: ("s1", 1), 31: ("u1", 1),
    32: ("f4e2m1fn", 4), 33: ("f8e8m0fnu", 8),
}  # fmt: skip
_TUPLE = 13

_ASYNC = ("async-start", "async-update", "async-done")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


class Shape(NamedTuple):
    """Element type and dimensions of one array on one device.

    Attributes:
        dtype: the type as XLA prints it, such as `bf16`.
        dims: dimension sizes; a dynamic dimension has its upper bound.
        bits: bits per element.

    >>> Shape("s4", (3,), 4).bytes, str(Shape("f32", (8, 16), 32))
    (2, 'f32[8,16]')
    """

    dtype: str
    dims: tuple[int, ...]
    bits: int

    @property
    def bytes(self) -> int:
        """Size of the array in bytes; types smaller than a byte are packed."""
        return (math.prod(self.dims) * self.bits + 7) // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


class InstructionSource(NamedTuple):
    """An instruction's source: the JAX operation and the user's line.

    Attributes:
        op: the operation name that JAX records, such as `jit(f)/dot_general`.
        source: the user's file and line.
        stack: every stack frame in the user's code, innermost first.
    """

    op: str
    source: str
    stack: tuple[str, ...]

    @property
    def is_named(self) -> bool:
        """True for the program's operations, False for its arguments."""
        return bool(self.source) or "/" in self.op


NO_SOURCE = InstructionSource("", "", ())


class Instruction:
    """One instruction of a module; most fields are parsed on first use.

    XLA writes some asynchronous operations as an `async-start` that calls a computation
    with only that operation. We give these the names that XLA prints, such as
    `all-to-all-start`, and the groups of the inner collective.
    """

    def __init__(self, data: bytes, computation: Computation) -> None:
        self.computation = computation
        self._message = Message(data)
        self.name = self._message.text(INSTRUCTION["name"])
        self.number = self._message.number(INSTRUCTION["id"])

    @cached_property
    def opcode(self) -> str:
        """The opcode, as XLA prints it."""
        opcode = self._message.text(INSTRUCTION["opcode"])
        if opcode in _ASYNC and self.wrapped is not None:
            return self.wrapped.opcode + opcode.removeprefix("async")
        return opcode

    @cached_property
    def wrapped(self) -> Instruction | None:
        """The single operation that an async instruction starts or waits for."""
        opcode = self._message.text(INSTRUCTION["opcode"])
        if opcode not in _ASYNC:
            return None
        if opcode != "async-start":
            return self.operands[0].wrapped
        (inside,) = self.called
        # Like XLA, which prints `all-gather-start` only for a single all-gather.
        for instruction in inside.instructions:
            if instruction is not inside.root and instruction.opcode != "parameter":
                return None
        return inside.root

    @property
    def kind(self) -> str:
        """The kind of collective that is run, started or awaited; `""` if none."""
        # A `-done` has a kind too; code that counts starts must skip it.
        kind = self.opcode.removesuffix("-start").removesuffix("-done")
        if kind not in KINDS:
            return ""
        return kind

    @property
    def attributes(self) -> Message:
        """The message that holds a collective's groups and dimensions."""
        if self.wrapped is None:
            return self._message
        return self.wrapped.attributes

    @cached_property
    def operands(self) -> tuple[Instruction, ...]:
        """The instructions whose results this one reads, in order."""
        by_number = self.computation.by_number
        numbers = self._message.numbers(INSTRUCTION["operand_ids"])
        return tuple(map(by_number.__getitem__, numbers))

    @property
    def users(self) -> list[Instruction]:
        """The instructions that read this instruction's result."""
        return self.computation.users.get(self.number, [])

    @cached_property
    def called(self) -> tuple[Computation, ...]:
        """The called computations; for a loop, the body and then the condition."""
        by_number = self.computation.module.by_number
        numbers = self._message.numbers(INSTRUCTION["called_computation_ids"])
        return tuple(map(by_number.__getitem__, numbers))

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of the result's arrays, in flattened order."""
        return tuple(_shapes(self._message.message(INSTRUCTION["shape"])))

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """The tuple index of each result array; `()` for a single array."""
        return tuple(_paths(self._message.message(INSTRUCTION["shape"])))

    def shape_at(self, index: tuple[int, ...]) -> Shape | None:
        """Returns the shape of one result array; None if the index leads to a tuple."""
        message = self._message.message(INSTRUCTION["shape"])
        for part in index:
            message = Message(message.each(SHAPE["tuple_shapes"])[part])
        if message.number(SHAPE["element_type"]) == _TUPLE:
            return None
        return next(_shapes(message))

    @cached_property
    def source(self) -> InstructionSource:
        """The operation and line from the instruction's metadata."""
        metadata = self._metadata
        stack = self.computation.module.lines(metadata)
        op = metadata.text(METADATA["op_name"])
        return InstructionSource(op, (*stack, "")[0], stack)

    @property
    def op(self) -> str:
        """JAX's name for the operation; for a parameter, the argument's name."""
        return self.source.op

    @cached_property
    def identity(self) -> tuple[str, int | str]:
        """The name and stack frame that all instructions of one JAX operation share."""
        metadata = self._metadata
        frame = metadata.number(METADATA["stack_frame_id"])
        return metadata.text(METADATA["op_name"]), frame or self.source.source

    @property
    def _metadata(self) -> Message:
        metadata = self._message.message(INSTRUCTION["metadata"])
        if METADATA["op_name"] in metadata or self.wrapped is None:
            return metadata
        return self.wrapped._metadata

    @property
    def parameter_number(self) -> int:
        """The position of a parameter among its computation's parameters."""
        return self._message.number(INSTRUCTION["parameter_number"])

    @property
    def index(self) -> int:
        """The tuple index that a `get-tuple-element` reads."""
        return self._message.number(INSTRUCTION["tuple_index"])

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The dimension of an all-gather or reduce-scatter, as a tuple."""
        return tuple(self.attributes.numbers(INSTRUCTION["dimensions"]))

    @property
    def groups(self) -> int:
        """A convolution's feature or batch group count, whichever is larger."""
        counts = INSTRUCTION["feature_group_count"], INSTRUCTION["batch_group_count"]
        return max(map(self._message.number, counts))

    @property
    def target(self) -> str:
        """The name of the code that a custom call runs."""
        return self._message.text(INSTRUCTION["custom_call_target"])

    @property
    def direction(self) -> str:
        """The direction of a comparison, such as `LT`."""
        return self._message.text(INSTRUCTION["comparison_direction"])

    @property
    def backend_config(self) -> str:
        """The compiler's backend options, as JSON."""
        config = self._message.text(INSTRUCTION["backend_config"])
        if self.wrapped is None:
            return config
        return config + self.wrapped.backend_config

    @cached_property
    def frontend(self) -> dict[str, str]:
        """The frontend attributes by name; XLA's passes preserve them."""
        # An async start's attributes override those of the wrapped operation.
        by_name: dict[str, str] = {}
        for message in (self.attributes, self._message):
            by_name |= _by_name(message.message(INSTRUCTION["frontend_attributes"]))
        return by_name

    @property
    def named_mesh(self) -> dict[str, int]:
        """Axis name -> size, of the mesh in the sharding; empty without names."""
        mesh = self._message.message(INSTRUCTION["sharding"]).message(14).message(2)
        return {axis.text(1): axis.number(2) for axis in mesh.messages(1)}

    @property
    def trips(self) -> int | None:
        """The trip count of a loop; None if XLA doesn't record it."""
        match = _TRIPS.search(self.backend_config)
        if match is None:
            return None
        return int(match[1])

    @property
    def integer(self) -> int | None:
        """A constant's value if it is a single integer; else None."""
        values = self.integers
        return signed(values[0]) if len(values) == 1 else None

    @property
    def integers(self) -> list[int]:
        """A constant's integers as unsigned bits; empty for other types of constant."""
        literal = self._message.message(INSTRUCTION["literal"])
        for field in LITERAL_INTEGERS:
            if values := literal.numbers(field):
                return values
        return []

    @property
    def custom_call_target(self) -> str:
        """The name of the code that a custom call runs."""
        return self._message.text(INSTRUCTION["custom_call_target"])

    @property
    def reducer(self) -> str:
        """The opcode that a collective reduces with, such as `add`; or `""`."""
        operation = self.wrapped or self
        if not self.kind or not operation.called:
            return ""
        return operation.called[0].root.opcode

    def __repr__(self) -> str:
        return f"Instruction({self.name})"


def _by_name(attributes: Message) -> dict[str, str]:
    return {entry.text(1): entry.text(2) for entry in attributes.messages(1)}


def _shapes(message: Message) -> Iterator[Shape]:
    kind = message.number(SHAPE["element_type"])
    if kind == _TUPLE:
        for part in message.messages(SHAPE["tuple_shapes"]):
            yield from _shapes(part)
        return
    # Types that only newer XLA versions have are shown by number; their size is
    # unknown.
    name, bits = TYPES.get(kind, (f"type{kind}", 0))
    yield Shape(name, tuple(message.numbers(SHAPE["dimensions"])), bits)


def _paths(message: Message) -> Iterator[tuple[int, ...]]:
    if message.number(SHAPE["element_type"]) != _TUPLE:
        yield ()
        return
    for number, part in enumerate(message.messages(SHAPE["tuple_shapes"])):
        for path in _paths(part):
            yield (number, *path)


class Computation:
    """A computation of a module: the entry computation, or one that is called."""

    def __init__(self, message: Message, module: Module) -> None:
        self.module = module
        self.name = message.text(COMPUTATION["name"])
        self.number = message.number(COMPUTATION["id"])
        self._root = message.number(COMPUTATION["root_id"])
        self._data = message.each(COMPUTATION["instructions"])

    @cached_property
    def by_number(self) -> dict[int, Instruction]:
        """Instruction number -> instruction."""
        by_number: dict[int, Instruction] = {}
        for data in self._data:
            instruction = Instruction(data, self)
            by_number[instruction.number] = instruction
        return by_number

    @cached_property
    def instructions(self) -> list[Instruction]:
        """The instructions, in execution order if it is known."""
        # Only the final module has a schedule.
        order = self.module.schedule.get(self.number, ())
        if len(order) == len(self.by_number):
            return [self.by_number[number] for number in order]
        return list(self.by_number.values())

    @cached_property
    def users(self) -> dict[int, list[Instruction]]:
        """Instruction number -> the instructions that read its result."""
        users: dict[int, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in dict.fromkeys(instruction.operands):
                users.setdefault(operand.number, []).append(instruction)
        return users

    @property
    def root(self) -> Instruction:
        """The instruction whose result the computation returns."""
        return self.by_number[self._root]

    @property
    def is_entry(self) -> bool:
        """Whether this is the module's entry computation."""
        return self.number == self.module.entry_number

    @property
    def callers(self) -> list[Instruction]:
        """The instructions that call this computation; async updates don't count."""
        return self.module.callers.get(self.number, [])

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        """Parameter number -> the instruction of the parameter."""
        parameters: dict[int, Instruction] = {}
        for instruction in self.instructions:
            if instruction.opcode == "parameter":
                parameters[instruction.parameter_number] = instruction
        return parameters

    def __repr__(self) -> str:
        return f"Computation({self.name})"


class Module:
    """One serialized module: an `HloModuleProto`, or the `HloProto` of a dump.

    Args:
        data: the serialized bytes.

    Raises:
        ValueError: if the bytes are not a complete module.
    """

    def __init__(self, data: bytes) -> None:
        try:
            message = Message(data)
            self.is_dump = MODULE["entry_name"] not in message
            if self.is_dump:
                # An `HloProto` has the module as its field 1, and no field 2.
                message = message.message(1)
            self._message = message
            entry = message.number(MODULE["entry"])
            self.computations = [
                Computation(part, self)
                for part in message.messages(MODULE["computations"])
            ]
        except (IndexError, AssertionError):
            raise ValueError("The module is cut off.") from None
        self.name = message.text(MODULE["name"])
        self.entry_number = entry
        self.by_number = {c.number: c for c in self.computations}
        if entry not in self.by_number:
            raise ValueError("The module has no entry computation.")

    @property
    def entry(self) -> Computation:
        """The entry computation."""
        return self.by_number[self.entry_number]

    def instructions(self) -> Iterator[Instruction]:
        """Yields the instructions in text order, without those inside an async-start."""
        hidden = set()
        for start in self._of_opcode("async-start"):
            if start.wrapped is not None:
                hidden.add(start.wrapped.computation)
        for computation in self.computations:
            if computation not in hidden:
                yield from computation.instructions

    def _of_opcode(self, opcode: str) -> Iterator[Instruction]:
        field = INSTRUCTION["opcode"]
        for computation in self.computations:
            for instruction in computation.instructions:
                if instruction._message.text(field) == opcode:
                    yield instruction

    @cached_property
    def callers(self) -> dict[int, list[Instruction]]:
        """Computation number -> the instructions that call the computation."""
        callers: dict[int, list[Instruction]] = {}
        for computation in self.computations:
            for instruction in computation.instructions:
                message = instruction._message
                # An async update or done refers to the computation but doesn't call it.
                if message.text(INSTRUCTION["opcode"]) in _ASYNC[1:]:
                    continue
                numbers = message.numbers(INSTRUCTION["called_computation_ids"])
                for number in dict.fromkeys(numbers):
                    callers.setdefault(number, []).append(instruction)
        return callers

    @cached_property
    def schedule(self) -> dict[int, list[int]]:
        """Computation number -> its instruction numbers, in execution order."""
        sequences = self._message.message(MODULE["schedule"]).messages(1)
        return {entry.number(1): entry.message(2).numbers(1) for entry in sequences}

    @property
    def is_partitioned(self) -> bool:
        """Whether XLA's partitioner made the module; final modules are scheduled."""
        return self.is_scheduled or "_spmd" in self.entry.name

    @property
    def replicas(self) -> int:
        """Number of replicas; 0 if unknown."""
        return self._message.message(MODULE["device_assignment"]).number(1)

    @property
    def is_scheduled(self) -> bool:
        """Whether this is a final module, with a fixed execution order."""
        return MODULE["schedule"] in self._message

    @property
    def partitions(self) -> int:
        """Number of devices in the module; for several TPU slices, in one slice."""
        return self._message.message(MODULE["device_assignment"]).number(2)

    @property
    def frontend(self) -> dict[str, str]:
        """The frontend attributes by name."""
        return _by_name(self._message.message(MODULE["frontend_attributes"]))

    @cached_property
    def loops(self) -> int:
        """The number of loops."""
        return sum(1 for _ in self._of_opcode("while"))

    @property
    def aliased(self) -> set[int]:
        """The parameter numbers whose memory is reused for an output."""
        # It doesn't matter which output reuses an argument's memory.
        entries = self._message.message(MODULE["alias"]).messages(1)
        return {entry.number(2) for entry in entries}

    @cached_property
    def _frames(self) -> tuple[list[str], list[Message], list[Message]]:
        """The file names, locations and stack frames, linked by 1-based indices."""
        index = self._message.message(MODULE["stack_frames"])
        files = [name.decode(errors="replace") for name in index.each(1)]
        return files, index.messages(3), index.messages(4)

    @cached_property
    def _lines(self) -> dict[int, tuple[str, ...]]:
        return {}

    def lines(self, metadata: Message) -> tuple[str, ...]:
        """Returns the user's files and lines of an instruction, innermost first."""
        frame = metadata.number(METADATA["stack_frame_id"])
        if frame:
            if frame not in self._lines:
                self._lines[frame] = tuple(self._user_lines(frame))
            return self._lines[frame]
        # An operation without a stack has a single line.
        file = metadata.text(METADATA["source_file"])
        line = metadata.number(METADATA["source_line"])
        if not line or not is_user_file(file):
            return ()
        return (line_in_words(file, line),)

    def _user_lines(self, frame: int) -> Iterator[str]:
        files, locations, frames = self._frames
        last = ""
        visited: set[int] = set()
        while 0 < frame <= len(frames) and frame not in visited:
            visited.add(frame)
            location = locations[frames[frame - 1].number(1) - 1]
            file, line = files[location.number(1) - 1], location.number(3)
            # Nested calls on one line are shown once.
            if is_user_file(file) and line_in_words(file, line) != last:
                last = line_in_words(file, line)
                yield last
            frame = frames[frame - 1].number(2)
