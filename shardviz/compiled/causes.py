"""Why a collective of a module is there: what value it is about, and what that is for.

The operand of a collective is followed to what makes it: an argument of the program, or
an operation that the program itself has. On the way are copies, other collectives, and
the slices and reshapes that the partitioner adds, which carry the name and line of the
operation they are made for, or none. Where the way ends at anything else, the operand
is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import NamedTuple

from shardviz.base.cause import (
    UNKNOWN,
    AddedByGrad,
    Cause,
    Contracted,
    FromOneDevice,
    Gathered,
    Moved,
    Reduced,
    Rematerialised,
    Resplit,
    Sent,
    Summed,
    Unsplittable,
    ValueName,
    WithinOperation,
    Written,
    author_of,
)
from shardviz.base.collective_kind import KINDS, SUMS, Effect
from shardviz.compiled.loops import is_kept
from shardviz.compiled.module import (
    NO_SOURCE,
    Computation,
    Instruction,
    InstructionSource,
)
from shardviz.compiled.readers import Demand, demand_of, last_part
from shardviz.compiled.rematerialization import Rematerialized

_TUPLE_COPIES = ("copy", "opt-barrier", "optimization-barrier")
_COPIES = (*_TUPLE_COPIES, "bitcast", "copy-start", "copy-done")
# What the partitioner adds around a collective; the user's own have a name of their
# own.
_MOVES = (
    "reshape",
    "transpose",
    "slice",
    "dynamic-slice",
    "pad",
    "convert",
    "get-tuple-element",
)
_CHOICES = ("select", "concatenate", "dynamic-update-slice")
_REDUCTIONS = {"dot": Contracted, "convolution": Contracted, "reduce": Reduced}
_EMPTY = ("constant", "broadcast", "iota")
# Ends for programs of any size: what is farther away is not known.
_DEEPEST, _FARTHEST, _MOST_USERS = 64, 12, 8
#: The causes of collectives that move their operand, by their effect.
MOVES: Mapping[Effect, type[Moved]] = {
    Effect.GATHER: Gathered,
    Effect.EXCHANGE: Resplit,
    Effect.SEND: Sent,
    Effect.COPY: Resplit,
}
_VMAPPED_LOOP = re.compile(r"vmap\([^()]*\)/while")
_IN_LOOP = re.compile(
    r"while/body/(?:jit\(dynamic_index_in_dim\)/)?(dynamic_slice|squeeze)$"
)


class Value(NamedTuple):
    """The value that a collective is about.

    Attributes:
        name: what it is called.
        source: the operation that makes it and its line; of an argument only its name.
        maker: the instruction that makes it; None where it is unknown.
        same: whether nothing but copies and collectives is between it and the
            collective, so that its dimensions are those of the operand.
        moved: what splits it otherwise in between: a kind of collective, or a slice.
        on_one: whether one device of each group has it, and the others add zeros.
    """

    name: ValueName
    source: InstructionSource = NO_SOURCE
    maker: Instruction | None = None
    same: bool = True
    moved: str = ""
    on_one: bool = False


NOBODY = Value(UNKNOWN)


class _Place(NamedTuple):
    """A value on the way: an instruction, and the element of its tuple that is meant."""

    instruction: Instruction
    path: tuple[int, ...] = ()


class Causes:
    """What the collectives of one module sum or move, and why.

    Args:
        arguments: what the module calls an argument, to the name in the program.
    """

    def __init__(self, arguments: Mapping[str, str] = MappingProxyType({})) -> None:
        self._arguments = arguments
        self._by_line: dict[tuple[str, ...], list[Instruction]] = {}

    def value(self, operand: Instruction, own: Instruction, kind: str) -> Value:
        """The value behind an operand of a collective.

        Args:
            operand: the operand.
            own: the collective.
            kind: what kind of collective it is.
        """
        return self._followed(_Place(operand), own, kind in SUMS)

    def _followed(
        self, place: _Place, own: Instruction, sums: bool, depth: int = 0
    ) -> Value:
        """Follows a value to what makes it."""
        same, moved = True, ""
        for _ in range(_DEEPEST):
            here = place.instruction
            kind, reads = here.opcode, here.operands
            if kind == "parameter" and here.computation.is_entry:
                return self._argument(here, same)._replace(moved=moved)
            if kind == "copy" and _is_constraint(here) and _alike(here, own):
                # The constraint itself: what follows it on its line is for whatever
                # reads it.
                return _made(here, same)._replace(moved=moved)
            further = _through(place)
            if isinstance(further, Value):
                return further._replace(same=False, moved=moved)
            if here.kind and KINDS[here.kind].effect in (Effect.EXCHANGE, Effect.SEND):
                moved = here.kind
            passes = _passes(here, own) or (sums and _sums_behind(here, own))
            if passes and kind == "dynamic-slice":
                moved = moved or "slice"
            if further is None and passes and reads:
                further = _operand_behind(place)
                same = same and (kind in _COPIES or _is_collective(here))
            if further is None and kind in _CHOICES and not sums and _alike(here, own):
                return self._chosen(here, own, depth)
            if further is None and sums and kind == "select" and _picks_device(here):
                return self._chosen(here, own, depth)._replace(on_one=True)
            if further is None:
                value = self._sliced(here, depth) or _made(here, same)
                return value._replace(moved=moved)
            place = further
        return NOBODY

    def _chosen(self, choice: Instruction, own: Instruction, depth: int) -> Value:
        """The one value that is filled up with zeros, or joined with its neighbours'."""
        values: dict[ValueName, Value] = {}
        for read in choice.operands if depth < 2 else ():
            is_condition = any(shape.dtype == "pred" for shape in read.shapes)
            if read.opcode in _EMPTY or is_condition:
                continue
            value = self._followed(_Place(read), own, False, depth + 1)
            values.setdefault(value.name, value)
        if len(values) == 1 and UNKNOWN not in values:
            return next(iter(values.values()))._replace(same=False)
        return _made(choice, False)

    def _sliced(self, slice_: Instruction, depth: int) -> Value | None:
        """An iteration's slice of an argument that a loop runs over, as in `scan`."""
        if depth > 1 or not _IN_LOOP.search(slice_.op) or not slice_.operands:
            return None
        place = _Place(slice_.operands[0])
        value = self._followed(place, slice_, False, depth + 1)
        if not value.name.is_argument:
            return None
        return value._replace(name=ValueName("slice", value.name.name))

    def _argument(self, parameter: Instruction, same: bool) -> Value:
        name = self._arguments.get(parameter.op, parameter.op)
        name = name or f"number {parameter.parameter_number}"
        called = ValueName("argument", name)
        return Value(called, parameter.source, parameter, same)

    def source(self, value: Value, own: Instruction, kind: str) -> InstructionSource:
        """The operation and line of a collective.

        Where the compiler gives none, that of the nearest operation which has one: of a
        sum what made its operand, since it completes that; else what reads its result.
        """
        source = own.source
        if source.source and "/" in source.op:
            return source
        nearest = [_user(own), value.source]
        if kind in SUMS:
            nearest.reverse()
        for near in nearest:
            if near.source:
                if source.source:
                    near = near._replace(source=source.source, stack=source.stack)
                if "/" in source.op:
                    near = near._replace(op=source.op)
                return near
        return source

    def source_of_part(
        self, value: Value, own: Instruction, kind: str, number: int
    ) -> InstructionSource:
        """Where one part of a combined collective comes from.

        The metadata of the collective is that of one of its members, so a sum is what
        makes the operand, and what is moved is for the operation that reads it.
        """
        maker = value.maker
        if kind in SUMS and maker is not None and maker.source.source:
            return maker.source
        for part in own.users:
            if part.opcode != "get-tuple-element" or part.index != number:
                continue
            user = _user(part)
            if user.is_named:
                return user
        if maker is not None and value.source.is_named:
            return maker.source
        return NO_SOURCE

    def cause(
        self,
        value: Value,
        collective: Instruction,
        base: Cause,
        source: InstructionSource | None = None,
        number: int = 0,
    ) -> Cause:
        """Why a collective is there.

        Args:
            value: its operand.
            collective: the collective.
            base: a cause with its kind and mesh axes.
            source: the operation that it is for, if its own metadata is that of another
                member.
            number: which of its results is meant.
        """
        kind, maker = base.kind, value.maker
        same_operation = source is None and collective.source.is_named
        if maker is None or not _alike(collective, maker):
            same_operation = False
        source = source or collective.source
        if same_operation and maker is not None and _is_constraint(maker):
            source, same_operation = _user(collective), False
        base = replace(base, operand=value.name, operation=_called(source, kind))
        if is_written(collective, source):
            return self._written(base, collective, source, number)
        if maker is None:
            return base
        reader = source if source.is_named else _user(collective)
        wanted_by = _called(reader, "") if reader.is_named else None
        if value.on_one:
            return FromOneDevice(**vars(base), wanted_by=wanted_by)
        if kind in SUMS:
            return _sum_cause(base, maker, source, collective.reducer)
        demand = demand_of(collective, reader, number)
        if same_operation and not _is_for_result(demand, kind):
            return WithinOperation(**vars(base))
        if not same_operation and not demand.is_read and not _is_request(demand.asker):
            demand = Demand("needs")
        cause_type = MOVES[KINDS[kind].effect]
        if cause_type is Gathered and demand.code == "unsplittable":
            cause_type = Unsplittable
        move = cause_type(**vars(base), wanted_by=wanted_by, before=value.moved)
        if demand.code == "asked":
            move = self._asked(move, demand, _dtype(collective, number))
        # The hosts gather between slices, along no dimension that they name.
        if isinstance(move, Gathered) and value.same and collective.dimensions:
            move = replace(move, dimension=collective.dimensions[0])
        return move

    def _written(
        self,
        base: Cause,
        collective: Instruction,
        source: InstructionSource,
        number: int,
    ) -> Cause:
        """The cause of a collective of `jax.lax` in a `shard_map`."""
        if author_of(_with_calls(collective, source.op)) == "written":
            return Written(**vars(base))
        argument = None
        if base.kind in SUMS:
            argument = self._gradient_of(collective, source, number)
        return AddedByGrad(**vars(base), gradient_of=argument)

    def _gradient_of(
        self, total: Instruction, own: InstructionSource, number: int
    ) -> ValueName | None:
        """The argument whose gradient a sum is; None if several may be.

        The forward pass reads it on the same line, in the shape of the sum.
        """
        if not self._by_line:
            for instruction in total.computation.module.instructions():
                line = instruction.source.stack
                self._by_line.setdefault(line, []).append(instruction)
        if not own.stack or number >= len(total.shapes):
            return None
        arguments: set[ValueName] = set()
        for instruction in self._by_line.get(own.stack, ()):
            op = _with_calls(instruction, instruction.op)
            if author_of(op) == "gradient" or not _may_add(total, own, instruction):
                continue
            for operand in instruction.operands:
                if operand.shapes[:1] != total.shapes[number : number + 1]:
                    continue
                name = self._followed(_Place(operand), instruction, False).name
                if name.is_argument:
                    arguments.add(name)
        return arguments.pop() if len(arguments) == 1 else None

    def _asked(self, cause: Moved, demand: Demand, dtype: str) -> Moved:
        """The cause of a move for something behind the operation that reads the value."""
        through, asker = demand.through, demand.asker
        if through is None:
            return replace(cause, wanted_by=asker)
        reads = _called(through.source, "")
        cause = replace(cause, wanted_by=asker, through=reads, dtype=dtype)
        if isinstance(cause, Gathered) or _is_request(asker):
            return cause
        for operand in through.operands:
            value = self._followed(_Place(operand), through, False)
            if operand.opcode not in _EMPTY and value.name != cause.operand:
                return replace(cause, beside=value.name)
        return cause


def _sum_cause(
    base: Cause, maker: Instruction, source: InstructionSource, reducer: str
) -> Summed:
    """The cause of a sum that completes what the operation `maker` computes in parts."""
    reduction = _REDUCTIONS.get(maker.opcode)
    if reduction is None:
        return Summed(**vars(base), reducer=reducer)
    decides = reducer == "or" and bool(_VMAPPED_LOOP.search(source.op))
    return reduction(**vars(base), reducer=reducer, vmapped_loop=decides)


def rematerialised(gather: Cause, arrays: Rematerialized) -> Rematerialised:
    """The cause of a gather whose result is split again.

    Args:
        gather: its cause, as of any other gather.
        arrays: the array that it makes, and the part that is kept.
    """
    inherited = {field.name for field in fields(Moved)} & vars(gather).keys()
    about = {name: vars(gather)[name] for name in inherited}
    return Rematerialised(**about, full=str(arrays.full), part=str(arrays.part))


def _may_add(total: Instruction, own: InstructionSource, forward: Instruction) -> bool:
    """Whether grad may add a sum for what an operation of the forward pass reads."""
    if total.kind == "reduce-scatter":
        return forward.kind == "all-gather"
    # Without its check of types a `shard_map` sums gradients where it ends; other sums
    # of that name are the gradients of sums.
    if last_part(own.op) == "psum":
        return forward.op.endswith("/shard_map")
    return not forward.kind


def _is_for_result(demand: Demand, kind: str) -> bool:
    """Whether a collective on the result of an operation is for a request behind it."""
    if demand.code != "asked":
        return False
    if demand.asker is None:
        return kind == "all-gather" and demand.through is None
    return demand.asker.is_request


def _is_request(asker: ValueName | None) -> bool:
    return asker is not None and asker.is_request


def _dtype(collective: Instruction, number: int) -> str:
    """The element type of a result of a collective."""
    if number < len(collective.shapes):
        return collective.shapes[number].dtype
    return ""


def _alike(one: Instruction, other: Instruction) -> bool:
    """Whether two instructions are of one operation of the program, name and line."""
    return one.identity == other.identity


def _is_collective(instruction: Instruction) -> bool:
    # What runs asynchronously hands on what is in it, collective or not.
    return bool(instruction.kind) or instruction.opcode.startswith("async")


def _is_constraint(instruction: Instruction) -> bool:
    return instruction.op.endswith("/sharding_constraint")


def _passes(here: Instruction, own: Instruction) -> bool:
    """Whether an instruction only brings a value to where the collective needs it."""
    if _is_collective(here):
        return not is_written(here, here.source)
    if here.opcode in _COPIES:
        return True
    # Those around a collective on an argument have the argument's name.
    unnamed = not here.source.is_named
    return here.opcode in _MOVES and (unnamed or _alike(here, own))


def _operand_behind(place: _Place) -> _Place:
    here, path = place
    if here.opcode.endswith("-done"):
        return _Place(here.operands[0], path)
    if not path:
        return _Place(here.operands[0])
    # An element of a start is numbered among its results, which are its operands.
    return _Place(here.operands[min(path[0], len(here.operands) - 1)])


def _sums_behind(here: Instruction, own: Instruction) -> bool:
    """Whether an instruction reshapes the sum that a collective completes."""
    if here.opcode not in _MOVES or _alike(here, own) or not here.operands:
        return False
    return _alike(here.operands[0], own)


def _picks_device(choice: Instruction) -> bool:
    """Whether the condition of a select is one bool that the device alone decides."""
    one_bool = False
    todo, seen = [choice.operands[0]], 0
    while todo and seen < _FARTHEST:
        here, seen = todo.pop(), seen + 1
        if here.opcode == "partition-id" and one_bool:
            return True
        if here.opcode == "parameter":
            return False
        is_bool = here.opcode == "compare" and here.shapes[0].dims == ()
        one_bool = one_bool or is_bool
        todo += here.operands
    return False


def _through(place: _Place) -> _Place | Value | None:
    """The same value on the other side of a tuple, a call, a loop or a branch."""
    here, path = place
    reads = here.operands
    if here.opcode == "get-tuple-element":
        return _Place(reads[0], (here.index, *path))
    if here.opcode == "tuple" and path:
        return _Place(reads[path[0]], path[1:])
    if here.opcode in _TUPLE_COPIES and path and len(reads) == 1:
        return _Place(reads[0], path)
    if here.opcode == "parameter":
        return _outside(place)
    if here.opcode == "while":
        if path and is_kept(here.called[0], path):
            return _Place(reads[0], path)
        return _made(here, False)
    if here.opcode in ("call", "fusion"):
        return _Place(here.called[0].root, path)
    return None


def _outside(place: _Place) -> _Place | Value | None:
    """A parameter of a computation, as its caller has it."""
    parameter, path = place
    computation = parameter.computation
    call = _only_call(computation)
    if call is None:
        return NOBODY
    number = parameter.parameter_number
    if call.opcode == "while":
        if not path or not is_kept(call.called[0], path):
            name = ValueName("carried", "", call.source.source)
            return Value(name, call.source, call, False)
        number = 0
    elif call.opcode == "conditional":
        number = 1 + call.called.index(computation)
    if number >= len(call.operands):
        return NOBODY
    return _Place(call.operands[number], path)


def _only_call(computation: Computation) -> Instruction | None:
    """The one instruction that calls a computation; None where several do."""
    callers = computation.callers
    return callers[0] if len(callers) == 1 else None


def _made(maker: Instruction, same: bool) -> Value:
    source = maker.source
    if not source.is_named:
        return NOBODY
    return Value(_called(source, maker.opcode), source, maker, same)


def is_written(collective: Instruction, own: InstructionSource) -> bool:
    """Whether a collective is one of `jax.lax` that the program itself has."""
    if collective.frontend.get("is_spmd_generated") == "true":
        return False
    return own.op.endswith(KINDS[collective.kind].primitives)


def _with_calls(instruction: Instruction, op: str) -> str:
    """The name of an operation with those of the calls around it.

    The body of a `shard_map` has lost these after the partitioner.
    """
    for _ in range(_FARTHEST):
        call = _only_call(instruction.computation)
        if op.startswith("jit(") or call is None:
            break
        instruction = call
        if instruction.opcode == "call":
            op = f"{instruction.op}/{op}"
    return op


def _user(instruction: Instruction) -> InstructionSource:
    """The first operation of the program that reads the result of an instruction."""
    todo, seen = [instruction], set[Instruction]()
    while todo and len(seen) < _MOST_USERS:
        for user in todo.pop(0).users[:2]:
            if user in seen:
                continue
            seen.add(user)
            if user.source.is_named:
                return user.source
            todo.append(user)
    return NO_SOURCE


def _called(source: InstructionSource, kind: str) -> ValueName:
    """An operation by its name in jax and its line."""
    return ValueName("operation", last_part(source.op) or kind, source.source)
