"""demand_of(): finds the operation that needs a value in another sharding.

XLA computes an elementwise operation in the sharding of its result. If a constraint
needs the result unsplit, the partitioner therefore gathers the operands, and the
collective gets the elementwise operation's name. We find the constraint by following
the readers of the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from shardviz.base.cause import REQUESTS, UNKNOWN, ValueName
from shardviz.compiled.loops import is_kept
from shardviz.compiled.module import Instruction, InstructionSource

#: HLO opcodes that compute each element from the same element of their operands.
ELEMENTWISE = frozenset({
    "abs", "add", "and", "atan2", "bitcast-convert", "cbrt", "ceil", "clamp", "clz",
    "compare", "complex", "convert", "cosine", "divide", "erf", "exponential",
    "exponential-minus-one", "floor", "imag", "is-finite", "log", "log-plus-one",
    "logistic", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt", "power",
    "real", "reduce-precision", "remainder", "round-nearest-afz", "round-nearest-even",
    "rsqrt", "select", "shift-left", "shift-right-arithmetic", "shift-right-logical",
    "sign", "sine", "sqrt", "stochastic-convert", "subtract", "tan", "tanh", "xor",
})  # fmt: skip

#: Jax's names of operations that can keep the sharding of their operand along most
#: dimensions, and the HLO opcodes that they become.
REARRANGES = frozenset({
    "broadcast_in_dim", "convert_element_type", "copy", "expand_dims", "reshape", "squeeze",
    "transpose",
})  # fmt: skip
REARRANGING_OPCODES = frozenset({
    "bitcast", "broadcast", "convert", "copy", "reshape", "transpose",
})  # fmt: skip

# Opcodes whose operand and result can have the same sharding.
_KEEPS_ANY_SPLIT = ELEMENTWISE | {"transpose", "broadcast"}
_JOINS = {"slice", "pad", "concatenate", "reverse"}
_SHAPES_ONLY = {"reshape", *_JOINS}
# Jax's names of operations that XLA may write with other opcodes too.
_JOINING = {"concatenate", "pad", "rev", "slice", "split"}
_COPIES = {"copy", "bitcast", "copy-start", "copy-done", "opt-barrier"}
_PASSES = _KEEPS_ANY_SPLIT | _SHAPES_ONLY | _COPIES
# Opcodes that the partitioner cannot split, or only along some dimensions.
_NEVER_SPLIT = {"cholesky", "custom-call", "fft", "sort", "topk", "triangular-solve"}
_PASSES_ON = {
    "call",
    "conditional",
    "fusion",
    "get-tuple-element",
    "parameter",
    "tuple",
}
_REQUESTS = tuple(f"/{name}" for name in REQUESTS)
_NAME = re.compile(r"[\w.\-]+$")
_MOST_READERS = 200


@dataclass(frozen=True)
class Needs:
    """The operation that reads a moved value needs the new sharding itself."""


@dataclass(frozen=True)
class CannotSplit:
    """The partitioner cannot split the operation that reads a moved value."""


@dataclass(frozen=True)
class AskedLater:
    """A later operation needs the reader's result in another sharding.

    Attributes:
        asker: the constraint, loop or operation that needs that sharding; None for the
            program's result, `UNKNOWN` if none was found.
        through: the first operation between the moved value and the asker, or None.
        is_read: whether the operation in the collective's metadata reads the value.
    """

    asker: ValueName | None = UNKNOWN
    through: Instruction | None = None
    is_read: bool = True


#: Why a moved value is needed in another sharding.
Demand = Needs | CannotSplit | AskedLater


class _Place(NamedTuple):
    """A value that is computed from the moved value.

    Attributes:
        instruction: the instruction that computes the value.
        path: index of the value in the instruction's result.
        through: the first operation between the moved value and this value.
        dims: the dimensions that a constraint on this value must have; None if an
            operation in between changed them.
    """

    instruction: Instruction
    path: tuple[int, ...] = ()
    through: Instruction | None = None
    dims: tuple[int, ...] | None = None


def demand_of(moved: Instruction, source: InstructionSource, number: int = 0) -> Demand:
    """Finds out why the readers of a moved value need it in another sharding.

    Args:
        moved: the collective that moves the value.
        source: the operation that the collective is for.
        number: index of the value among the collective's results.
    """
    path: tuple[int, ...] = ()
    dims = None
    several_results = len(moved.shapes) > 1
    if several_results:
        path = (number,)
    elif not moved.opcode.endswith("-start"):
        dims = moved.shapes[0].dims
    queue, visited = (
        [_Place(moved, path, None, dims)],
        set[tuple[Instruction, object]](),
    )
    asking: list[AskedLater] = []
    opcodes: set[str] = set()
    first: Instruction | None = None
    joins = last_part(source.op) in _JOINING
    while queue and len(visited) < _MOST_READERS:
        place = queue.pop(0)
        instruction_read = place.instruction
        if (instruction_read, place.path) in visited:
            continue
        visited.add((instruction_read, place.path))
        if (
            instruction_read is instruction_read.computation.root
            and instruction_read.computation.is_entry
        ):
            asking.append(AskedLater(None, place.through))
        for reader in _readers(place):
            instruction = reader.instruction
            opcode = instruction.opcode
            is_for_source = instruction.source == source
            first = first or reader.through
            if is_for_source:
                opcodes.add(opcode)
            if opcode == "copy" and instruction.op.endswith(_REQUESTS):
                # A constraint with different dimensions applies to another value.
                if reader.dims in (None, instruction.shapes[0].dims):
                    asker = _named(instruction)
                    return AskedLater(asker, place.through, bool(opcodes))
            elif opcode == "while" and is_kept(instruction.called[0], reader.path):
                queue.append(reader)
            elif opcode == "while":
                loop = ValueName("carried", "", instruction.source.source)
                asking.append(AskedLater(loop, place.through))
            elif opcode in _PASSES or opcode in _PASSES_ON:
                queue.append(reader)
            elif instruction.kind:
                # The partitioner may gather several dimensions, one per collective. But
                # if an operation that joins arrays comes first, its result is moved.
                if is_for_source and opcodes & _JOINS and joins:
                    return Needs()
                if is_for_source or instruction.identity == moved.identity:
                    queue.append(reader)
            elif _splits_again(instruction) or not instruction.source.is_named:
                continue
            elif not is_for_source:
                asking.append(AskedLater(_named(instruction), place.through))
            elif _is_never_split(instruction):
                return CannotSplit()
            else:
                return Needs()
    reshapes = bool(opcodes & _SHAPES_ONLY) and not opcodes & _KEEPS_ANY_SPLIT
    if reshapes or not (asking or opcodes & _KEEPS_ANY_SPLIT):
        return Needs()
    # The program's result and loop carries take precedence over nearer operations.
    for demand in asking:
        if demand.asker is None or demand.asker.code == "carried":
            return replace(demand, is_read=bool(opcodes))
    nearest = next(iter(asking), AskedLater(UNKNOWN, first))
    return replace(nearest, is_read=bool(opcodes))


def _readers(place: _Place) -> Iterator[_Place]:
    """Yields the values directly computed from a value, also in called computations."""
    instruction, path, through, dims = place
    if (
        instruction is instruction.computation.root
        and not instruction.computation.is_entry
    ):
        for caller in instruction.computation.callers:
            # A loop condition's result is not passed on.
            if (
                instruction.computation is not caller.called[-1]
                or caller.opcode != "while"
            ):
                yield _Place(caller, path, through, dims)
    for reader in instruction.users:
        opcode = reader.opcode
        numbers = [n for n, read in enumerate(reader.operands) if read is instruction]
        if opcode == "get-tuple-element":
            if not path:
                yield _Place(reader, path, through, dims)
            elif reader.index == path[0]:
                yield _Place(reader, path[1:], through, dims)
        elif opcode == "tuple":
            for number in numbers:
                yield _Place(reader, (number, *path), through, dims)
        elif opcode in ("call", "fusion"):
            for number in numbers:
                inside = reader.called[0].parameters[number]
                yield _Place(inside, path, through, dims)
        elif opcode == "conditional":
            # Operand 0 selects the branch.
            for number in filter(None, numbers):
                inside = reader.called[number - 1].parameters[0]
                yield _Place(inside, path, through, dims)
        elif opcode == "while":
            inside = reader.called[0]
            if path and is_kept(inside, path):
                yield _Place(inside.parameters[0], path, through, dims)
            else:
                yield _Place(reader, path, through, dims)
        elif opcode in ELEMENTWISE:
            if reader.source.is_named:
                through = through or reader
            yield _Place(reader, path, through, dims)
        elif reader.kind:
            yield _Place(reader, path, through, reader.shapes[0].dims)
        elif opcode in _COPIES:
            yield _Place(reader, path, through, dims)
        else:
            # Reshapes that the partitioner adds have the collective's name.
            if reader.source.is_named and reader.identity != instruction.identity:
                through = through or reader
            yield _Place(reader, path, through, None)


def _splits_again(instruction: Instruction) -> bool:
    """Whether an instruction is a slice that the partitioner adds."""
    name = last_part(instruction.op)
    return instruction.opcode == "dynamic-slice" and name != "dynamic_slice"


def _is_never_split(instruction: Instruction) -> bool:
    opcode = instruction.opcode
    if opcode == "convolution":
        return instruction.groups > 1
    if opcode == "custom-call":
        # Callbacks run in Python, on the host of one device.
        return "callback" not in instruction.target
    return opcode in _NEVER_SPLIT


def _named(instruction: Instruction) -> ValueName:
    source = instruction.source
    return ValueName(
        "operation", last_part(source.op) or instruction.opcode, source.source
    )


def last_part(op: str) -> str:
    """Returns an operation's name without the calls around it; `""` if it has none.

    >>> last_part("jit(f)/transpose(jvp(mlp))/dot_general")
    'dot_general'
    """
    name = _NAME.search(op.rpartition("/")[2])
    return name[0] if name else ""
