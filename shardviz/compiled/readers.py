"""What asks for a value in another sharding: its readers, followed forward.

XLA computes an elementwise operation in the sharding of its result. If a constraint
asks for that result unsplit, the partitioner therefore gathers the operands, and the
collective has the name of the elementwise operation. The constraint is found behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from shardviz.base.cause import REQUESTS, UNKNOWN, ValueName
from shardviz.compiled.loops import is_kept
from shardviz.compiled.module import Instruction, InstructionSource

_ELEMENTWISE = frozenset({
    "abs", "add", "and", "atan2", "bitcast-convert", "cbrt", "ceil", "clamp", "clz",
    "compare", "complex", "convert", "cosine", "divide", "erf", "exponential",
    "exponential-minus-one", "floor", "imag", "is-finite", "log", "log-plus-one",
    "logistic", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt", "power",
    "real", "reduce-precision", "remainder", "round-nearest-afz", "round-nearest-even",
    "rsqrt", "select", "shift-left", "shift-right-arithmetic", "shift-right-logical",
    "sign", "sine", "sqrt", "stochastic-convert", "subtract", "tan", "tanh", "xor",
})  # fmt: skip
# Every sharding of the operand is one of the result, and the other way round.
_KEEPS_ANY_SPLIT = _ELEMENTWISE | {"transpose", "broadcast"}
_SHAPES_ONLY = {"reshape", "slice", "pad", "concatenate", "reverse"}
_COPIES = {"copy", "bitcast", "copy-start", "copy-done", "opt-barrier"}
_PASSES = _KEEPS_ANY_SPLIT | _SHAPES_ONLY | _COPIES
# The partitioner has no code that splits these, or not along the dimensions that they
# treat alike.
_NEVER_SPLIT = {"cholesky", "custom-call", "fft", "sort", "topk", "triangular-solve"}
_HANDS_ON = {"call", "conditional", "fusion", "get-tuple-element", "parameter", "tuple"}
_REQUESTS = tuple(f"/{name}" for name in REQUESTS)
_NAME = re.compile(r"[\w.\-]+$")
_MOST_READERS = 200


class Demand(NamedTuple):
    """Why the operation that reads a moved value has it in another sharding.

    Attributes:
        code: `"needs"` (the operation does), `"unsplittable"` (the partitioner does not
            split the operation), or `"asked"` (something behind it asks for that).
        asker: a constraint, a loop or an operation; None for the result of the program,
            `UNKNOWN` if nothing was found.
        through: the first operation between the value and the asker; None if there is
            none.
        is_read: whether the operation that the collective is for reads the value.
    """

    code: str
    asker: ValueName | None = UNKNOWN
    through: Instruction | None = None
    is_read: bool = True


class _Place(NamedTuple):
    """A value on the way.

    Attributes:
        instruction: the instruction that has it.
        path: the element of its tuple that is meant.
        through: the first operation on the way here.
        dims: the dimensions that a constraint on it must have; None if an operation on
            the way changed them.
    """

    instruction: Instruction
    path: tuple[int, ...] = ()
    through: Instruction | None = None
    dims: tuple[int, ...] | None = None


def demand_of(moved: Instruction, own: InstructionSource, number: int = 0) -> Demand:
    """Why what reads a moved value has it in another sharding.

    Args:
        moved: the collective that moves it.
        own: the operation that the collective is for.
        number: which result of the collective it is.
    """
    path: tuple[int, ...] = ()
    dims = None
    several_results = len(moved.shapes) > 1
    if several_results:
        path = (number,)
    elif not moved.opcode.endswith("-start"):
        dims = moved.shapes[0].dims
    todo, seen = [_Place(moved, path, None, dims)], set[tuple[Instruction, object]]()
    asking: list[Demand] = []
    opcodes: set[str] = set()
    first: Instruction | None = None
    while todo and len(seen) < _MOST_READERS:
        place = todo.pop(0)
        here = place.instruction
        if (here, place.path) in seen:
            continue
        seen.add((here, place.path))
        if here is here.computation.root and here.computation.is_entry:
            asking.append(Demand("asked", None, place.through))
        for reader in _readers(place):
            instruction = reader.instruction
            opcode = instruction.opcode
            is_own = instruction.source == own
            first = first or reader.through
            if is_own:
                opcodes.add(opcode)
            if opcode == "copy" and instruction.op.endswith(_REQUESTS):
                # One of other dimensions splits the value anew.
                if reader.dims in (None, instruction.shapes[0].dims):
                    asker = _named(instruction)
                    return Demand("asked", asker, place.through, bool(opcodes))
            elif opcode == "while":
                loop = ValueName("carried", "", instruction.source.source)
                asking.append(Demand("asked", loop, place.through))
            elif opcode in _PASSES or opcode in _HANDS_ON:
                todo.append(reader)
            elif instruction.kind:
                # For one operation one dimension is gathered after the other.
                if is_own:
                    todo.append(reader)
            elif opcode == "dynamic-slice" or not instruction.source.is_named:
                continue  # the partitioner splits it again
            elif not is_own:
                asking.append(Demand("asked", _named(instruction), place.through))
            elif _is_never_split(instruction):
                return Demand("unsplittable", _named(instruction))
            else:
                return Demand("needs")
    reshapes = bool(opcodes & _SHAPES_ONLY) and not opcodes & _KEEPS_ANY_SPLIT
    if reshapes or not (asking or opcodes & _KEEPS_ANY_SPLIT):
        return Demand("needs")
    # Operations that read the result may be far away.
    for demand in asking:
        if demand.asker is None or demand.asker.code == "carried":
            return demand._replace(is_read=bool(opcodes))
    nearest = next(iter(asking), Demand("asked", UNKNOWN, first))
    return nearest._replace(is_read=bool(opcodes))


def _readers(place: _Place) -> Iterator[_Place]:
    """What reads a value, with the value inside of what it calls."""
    here, path, through, dims = place
    if here is here.computation.root and not here.computation.is_entry:
        for caller in here.computation.callers:
            # The condition of a loop hands on nothing.
            if here.computation is not caller.called[-1] or caller.opcode != "while":
                yield _Place(caller, path, through, dims)
    for reader in here.users:
        opcode = reader.opcode
        numbers = [n for n, read in enumerate(reader.operands) if read is here]
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
            # The first operand chooses the branch.
            for number in filter(None, numbers):
                inside = reader.called[number - 1].parameters[0]
                yield _Place(inside, path, through, dims)
        elif opcode == "while":
            inside = reader.called[0]
            if path and is_kept(inside, path):
                yield _Place(inside.parameters[0], path, through, dims)
            else:
                yield _Place(reader, path, through, dims)
        elif opcode in _ELEMENTWISE:
            yield _Place(reader, path, through or reader, dims)
        elif reader.kind:
            yield _Place(reader, path, through, reader.shapes[0].dims)
        elif opcode in _COPIES:
            yield _Place(reader, path, through, dims)
        else:
            # The partitioner's own reshapes have the name of the collective.
            if not through and reader.identity != here.identity:
                through = reader
            yield _Place(reader, path, through, None)


def _is_never_split(instruction: Instruction) -> bool:
    opcode = instruction.opcode
    if opcode == "convolution":
        return instruction.groups > 1
    if opcode == "custom-call":
        # Python is called on the host of one device.
        return "callback" not in instruction.target
    return opcode in _NEVER_SPLIT


def _named(instruction: Instruction) -> ValueName:
    source = instruction.source
    return ValueName(
        "operation", last_part(source.op) or instruction.opcode, source.source
    )


def last_part(op: str) -> str:
    """The name of an operation without the calls around it; `""` if it has none.

    >>> last_part("jit(f)/transpose(jvp(mlp))/dot_general")
    'dot_general'
    """
    name = _NAME.search(op.rpartition("/")[2])
    return name[0] if name else ""
