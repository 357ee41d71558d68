"""Causes: which value each collective moves, and why.

We follow a collective's operand back to an argument or an operation of the program. The
path may lead through copies, other collectives, and the slices and reshapes that the
partitioner adds. An added instruction has the name and line of the operation that it
was added for, or no metadata. If the path ends anywhere else, the operand is unknown.
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
from shardviz.compiled.readers import (
    ELEMENTWISE,
    REARRANGES,
    REARRANGING_OPCODES,
    AskedLater,
    CannotSplit,
    Demand,
    Needs,
    demand_of,
    last_part,
)
from shardviz.compiled.rematerialization import Rematerialized

_TUPLE_COPIES = ("copy", "opt-barrier", "optimization-barrier")
_COPIES = (*_TUPLE_COPIES, "bitcast", "copy-start", "copy-done")
# Opcodes that the partitioner adds around a collective. The user's own reshapes and
# slices have a different name and line.
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
# Search limits, to stay fast in programs of any size. More distant values are unknown.
_DEEPEST, _FARTHEST, _MOST_USERS = 64, 12, 8
#: Effect of a collective -> the type of its cause, if the collective moves its operand.
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
    """The value that a collective moves.

    Attributes:
        name: name of the value.
        source: the operation that computes the value, and its line; only a name for an
            argument.
        maker: the instruction that computes the value; None if unknown.
        same_dims: whether the value has the operand's dimensions, because only copies
            and collectives come between them.
        moved: the kind of an earlier collective that changes the value's sharding;
            `"slice"` for a dynamic slice, `""` if there is none.
        on_one: whether only one device per group has the value, and the other devices
            contribute zeros.
    """

    name: ValueName
    source: InstructionSource = NO_SOURCE
    maker: Instruction | None = None
    same_dims: bool = True
    moved: str = ""
    on_one: bool = False


UNKNOWN_VALUE = Value(UNKNOWN)


class _Place(NamedTuple):
    """One array of an instruction's result, given by its index in the result tuple."""

    instruction: Instruction
    path: tuple[int, ...] = ()


class Causes:
    """Finds the operands and causes of one module's collectives.

    Args:
        arguments: an argument's name in the module -> its name in the program.
    """

    def __init__(self, arguments: Mapping[str, str] = MappingProxyType({})) -> None:
        self._arguments = arguments
        self._by_line: dict[tuple[str, ...], list[Instruction]] = {}

    def value(self, operand: Instruction, collective: Instruction, kind: str) -> Value:
        """Returns the program's argument or operation that an operand comes from.

        Args:
            operand: an operand of the collective.
            collective: the collective.
            kind: the collective's kind; `""` for any other instruction.
        """
        return self._followed(_Place(operand), collective, kind in SUMS)

    def _followed(
        self, place: _Place, collective: Instruction, sums: bool, depth: int = 0
    ) -> Value:
        """Follows a value back to an argument or an operation of the program."""
        same_dims, moved = True, ""
        for _ in range(_DEEPEST):
            instruction, opcode = place.instruction, place.instruction.opcode
            same_operation = _alike(instruction, collective)
            if opcode == "parameter" and instruction.computation.is_entry:
                return self._argument(instruction, same_dims)._replace(moved=moved)
            if opcode == "copy" and _is_constraint(instruction) and same_operation:
                # This copy is the sharding constraint itself. Later instructions with
                # its name and line only prepare the value for readers.
                return _operation_value(instruction, same_dims)._replace(moved=moved)
            source = _through(place)
            if isinstance(source, Value):
                return source._replace(same_dims=False, moved=moved)
            if _changes_split(instruction):
                moved = instruction.kind
            passes = _passes(instruction, collective)
            if sums and _sums_behind(instruction, collective):
                passes = True
            if passes and opcode == "dynamic-slice":
                moved = moved or "slice"
            if source is None and passes and instruction.operands:
                source = _operand_behind(place)
                if opcode not in _COPIES and not _is_collective(instruction):
                    same_dims = False
            if source is not None:
                place = source
                continue
            if sums and opcode == "select" and _picks_device(instruction):
                chosen = self._chosen(instruction, collective, depth)
                return chosen._replace(on_one=True)
            if not sums and opcode in _CHOICES and same_operation:
                return self._chosen(instruction, collective, depth)
            value = self._sliced(instruction, depth)
            if value is None:
                value = _operation_value(instruction, same_dims)
            return value._replace(moved=moved)
        return UNKNOWN_VALUE

    def _chosen(
        self, choice: Instruction, collective: Instruction, depth: int
    ) -> Value:
        """Returns the single value behind the operands of a select or concatenate.

        The partitioner pads a value with zeros, or joins it with rows of other shards.
        """
        values: dict[ValueName, Value] = {}
        for read in choice.operands if depth < 2 else ():
            is_condition = any(shape.dtype == "pred" for shape in read.shapes)
            if read.opcode in _EMPTY or is_condition:
                continue
            value = self._followed(_Place(read), collective, False, depth + 1)
            values.setdefault(value.name, value)
        if len(values) == 1 and UNKNOWN not in values:
            return next(iter(values.values()))._replace(same_dims=False)
        return _operation_value(choice, False)

    def _sliced(self, slice_: Instruction, depth: int) -> Value | None:
        """Returns the slice of an argument that a `scan` iteration reads, or None."""
        if depth > 1 or not _IN_LOOP.search(slice_.op) or not slice_.operands:
            return None
        place = _Place(slice_.operands[0])
        value = self._followed(place, slice_, False, depth + 1)
        if not value.name.is_argument:
            return None
        return value._replace(name=ValueName("slice", value.name.name))

    def _argument(self, parameter: Instruction, same_dims: bool) -> Value:
        name = self._arguments.get(parameter.op, parameter.op)
        name = name or f"number {parameter.parameter_number}"
        value_name = ValueName("argument", name)
        return Value(value_name, parameter.source, parameter, same_dims)

    def source(
        self, value: Value, collective: Instruction, kind: str
    ) -> InstructionSource:
        """Returns the operation and line that a collective belongs to.

        If the compiler records neither, we use the operation and line of the nearest
        operation. For a sum, we first try the operation that computed the operand; for
        other kinds, the operation that reads the result.
        """
        source = collective.source
        if source.source and "/" in source.op:
            return source
        nearest = [_user(collective), value.source]
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
        self, value: Value, collective: Instruction, kind: str, number: int
    ) -> InstructionSource:
        """Returns the operation and line of one array in a combined collective.

        The collective's metadata describes only one of its arrays. For a sum, we use
        the operation that computed the operand, or the name that the array had before;
        for other kinds, the operation that reads the result.
        """
        maker = value.maker
        if kind in SUMS and maker is not None and maker.source.source:
            return maker.source
        results: dict[int, Instruction] = {}
        for part in collective.users:
            if part.opcode == "get-tuple-element":
                results[part.index] = part
        if kind in SUMS and len({part.source for part in results.values()}) > 1:
            # If all results have one name, it is that of the combined collective.
            return results[number].source if number in results else NO_SOURCE
        if number in results:
            # The reader of a sum is another operation, except if the program calls it.
            user = _user(results[number])
            if user.is_named and (kind not in SUMS or user == collective.source):
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
        """Returns why the module has a collective.

        Args:
            value: the value that the collective moves.
            collective: the collective.
            base: a cause with the collective's kind and mesh axes.
            source: the operation that needs the collective, if the collective's
                metadata describes another member.
            number: index of the result, for a combined collective.
        """
        kind, maker = base.kind, value.maker
        same_operation = source is None and collective.source.is_named
        if maker is None or not _alike(collective, maker):
            same_operation = False
        source = source or collective.source
        user = _user(_last_move(collective))
        if maker is not None and source is collective.source:
            if _is_for_user(collective, maker, user):
                source, same_operation = user, False
        base = replace(base, operand=value.name, operation=_called(source, kind))
        if is_written(collective, source):
            return self._written(base, collective, source, number)
        if maker is None:
            return base
        reader = source if source.is_named else user
        wanted_by = _called(reader, "") if reader.is_named else None
        if value.on_one:
            return FromOneDevice(**vars(base), wanted_by=wanted_by)
        if kind in SUMS:
            return _sum_cause(base, maker, source, collective.reducer)
        demand = demand_of(collective, reader, number)
        if same_operation and not _is_for_result(demand, kind):
            return WithinOperation(**vars(base))
        if isinstance(demand, AskedLater) and not same_operation:
            # If the operation in the metadata doesn't read the value, a later
            # operation only counts if it is an explicit request.
            if not demand.is_read and not _is_request(demand.asker):
                demand = Needs()
        cause_type = MOVES[KINDS[kind].effect]
        if cause_type is Gathered and isinstance(demand, CannotSplit):
            cause_type = Unsplittable
        move = cause_type(**vars(base), wanted_by=wanted_by, before=value.moved)
        if isinstance(demand, AskedLater):
            move = self._asked(move, demand, _dtype(collective, number))
        # Gathers between TPU slices run on the hosts and name no dimension.
        if isinstance(move, Gathered) and value.same_dims and collective.dimensions:
            move = replace(move, dimension=collective.dimensions[0])
        return move

    def _written(
        self,
        base: Cause,
        collective: Instruction,
        source: InstructionSource,
        number: int,
    ) -> Cause:
        """Returns the cause of a `jax.lax` collective: user code or grad added it."""
        if author_of(_with_calls(collective, source.op)) == "written":
            return Written(**vars(base))
        argument = None
        if base.kind in SUMS:
            argument = self._gradient_of(collective, source, number)
        return AddedByGrad(**vars(base), gradient_of=argument)

    def _gradient_of(
        self, total: Instruction, sum_source: InstructionSource, number: int
    ) -> ValueName | None:
        """Returns the argument whose gradient a sum completes; None if ambiguous.

        The forward pass reads this argument on the same line, with the sum's shape.
        """
        if not self._by_line:
            for instruction in total.computation.module.instructions():
                line = instruction.source.stack
                self._by_line.setdefault(line, []).append(instruction)
        if not sum_source.stack or number >= len(total.shapes):
            return None
        arguments: set[ValueName] = set()
        for instruction in self._by_line.get(sum_source.stack, ()):
            op = _with_calls(instruction, instruction.op)
            if author_of(op) == "gradient" or not _may_add(
                total, sum_source, instruction
            ):
                continue
            for operand in instruction.operands:
                if operand.shapes[:1] != total.shapes[number : number + 1]:
                    continue
                name = self._followed(_Place(operand), instruction, False).name
                if name.is_argument:
                    arguments.add(name)
        return arguments.pop() if len(arguments) == 1 else None

    def _asked(self, cause: Moved, demand: AskedLater, dtype: str) -> Moved:
        """Returns a move's cause with the later operation that needs the move."""
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
    """Returns the cause of a sum over devices; `maker` computes the partial results."""
    reduction = _REDUCTIONS.get(maker.opcode)
    if reduction is None:
        return Summed(**vars(base), reducer=reducer)
    decides = reducer == "or" and bool(_VMAPPED_LOOP.search(source.op))
    return reduction(**vars(base), reducer=reducer, vmapped_loop=decides)


def rematerialised(gather: Cause, arrays: Rematerialized) -> Rematerialised:
    """Returns the cause of a gather whose result is split again.

    Args:
        gather: the cause found for the gather so far.
        arrays: the full array and the shard that each device keeps.
    """
    inherited = {field.name for field in fields(Moved)} & vars(gather).keys()
    about = {name: vars(gather)[name] for name in inherited}
    return Rematerialised(**about, full=str(arrays.full), part=str(arrays.part))


def _may_add(
    total: Instruction, source: InstructionSource, forward: Instruction
) -> bool:
    """Whether `jax.grad` can have added a sum for an operand of a forward operation."""
    if total.kind == "reduce-scatter":
        return forward.kind == "all-gather"
    # With `check_vma=False`, gradients are summed at the end of the `shard_map`. Any
    # other sum named `psum` is the gradient of a sum.
    if last_part(source.op) == "psum":
        return forward.op.endswith("/shard_map")
    return not forward.kind


def _is_for_result(demand: Demand, kind: str) -> bool:
    """Whether a collective reshards an operation's result for a later request."""
    if not isinstance(demand, AskedLater):
        return False
    if demand.asker is None:
        return kind == "all-gather" and demand.through is None
    return demand.asker.is_request


def _is_request(asker: ValueName | None) -> bool:
    return asker is not None and asker.is_request


def _dtype(collective: Instruction, number: int) -> str:
    """Returns the element type of one of a collective's results."""
    if number < len(collective.shapes):
        return collective.shapes[number].dtype
    return ""


def _alike(instruction: Instruction, another: Instruction) -> bool:
    """Whether two instructions belong to the same operation of the program."""
    return instruction.identity == another.identity


def _is_collective(instruction: Instruction) -> bool:
    # Generic async instructions forward a value, just like collectives.
    return bool(instruction.kind) or instruction.opcode.startswith("async")


def _changes_split(instruction: Instruction) -> bool:
    """Whether an instruction is a collective that exchanges or sends shards."""
    if not instruction.kind:
        return False
    return KINDS[instruction.kind].effect in (Effect.EXCHANGE, Effect.SEND)


def _is_constraint(instruction: Instruction) -> bool:
    return instruction.op.endswith("/sharding_constraint")


def _is_for_user(
    collective: Instruction, maker: Instruction, user: InstructionSource
) -> bool:
    """Whether `user` needs a collective that has the name of the operation before it.

    XLA names an instruction that it adds for the next operation after the operand:
    always after a sharding constraint, and in jax 0.12 also after other operations.
    """
    if not collective.source.is_named:
        return False
    same_operation = _alike(collective, maker)
    if same_operation and _is_constraint(maker):
        return True
    if collective.kind in SUMS or not user.is_named or user == collective.source:
        return False
    if same_operation and maker.opcode in ELEMENTWISE:
        return True
    # The operation has its result already, which the collective moves for `user`.
    operand = collective.operands[0]
    while operand.kind and _alike(collective, operand):
        operand = operand.operands[0]
    if not _alike(collective, operand):
        return False
    if last_part(operand.op) in REARRANGES and operand.opcode in REARRANGING_OPCODES:
        return True
    return operand is maker and not isinstance(demand_of(collective, user), AskedLater)


def _passes(instruction: Instruction, collective: Instruction) -> bool:
    """Whether an instruction only prepares a value for the collective."""
    if _is_collective(instruction):
        return not is_written(instruction, instruction.source)
    if instruction.opcode in _COPIES:
        return True
    # Instructions that the partitioner adds to an argument have the argument's name.
    unnamed = not instruction.source.is_named
    return instruction.opcode in _MOVES and (unnamed or _alike(instruction, collective))


def _operand_behind(place: _Place) -> _Place:
    instruction, path = place
    if instruction.opcode.endswith("-done"):
        return _Place(instruction.operands[0], path)
    if not path:
        return _Place(instruction.operands[0])
    # Result i of an async start belongs to operand i.
    return _Place(instruction.operands[min(path[0], len(instruction.operands) - 1)])


def _sums_behind(instruction: Instruction, collective: Instruction) -> bool:
    """Whether an instruction reshapes partial sums that a collective completes."""
    if (
        instruction.opcode not in _MOVES
        or _alike(instruction, collective)
        or not instruction.operands
    ):
        return False
    return _alike(instruction.operands[0], collective)


def _picks_device(choice: Instruction) -> bool:
    """Whether a select's condition is a scalar bool that depends on the device."""
    one_bool = False
    queue, visited = [choice.operands[0]], 0
    while queue and visited < _FARTHEST:
        instruction, visited = queue.pop(), visited + 1
        if instruction.opcode == "partition-id" and one_bool:
            return True
        if instruction.opcode == "parameter":
            return False
        is_bool = instruction.opcode == "compare" and instruction.shapes[0].dims == ()
        one_bool = one_bool or is_bool
        queue += instruction.operands
    return False


def _through(place: _Place) -> _Place | Value | None:
    """Follows a value out of a tuple, call, loop or branch.

    Returns:
        None at any other instruction.
    """
    instruction, path = place
    reads = instruction.operands
    if instruction.opcode == "get-tuple-element":
        return _Place(reads[0], (instruction.index, *path))
    if instruction.opcode == "tuple" and path:
        return _Place(reads[path[0]], path[1:])
    if instruction.opcode in _TUPLE_COPIES and path and len(reads) == 1:
        return _Place(reads[0], path)
    if instruction.opcode == "parameter":
        return _outside(place)
    if instruction.opcode == "while":
        if path and is_kept(instruction.called[0], path):
            return _Place(reads[0], path)
        return _operation_value(instruction, False)
    if instruction.opcode in ("call", "fusion"):
        return _Place(instruction.called[0].root, path)
    return None


def _outside(place: _Place) -> _Place | Value | None:
    """Returns the value that a computation's caller passes for a parameter."""
    parameter, path = place
    computation = parameter.computation
    call = _only_call(computation)
    if call is None:
        return UNKNOWN_VALUE
    number = parameter.parameter_number
    if call.opcode == "while":
        if not path or not is_kept(call.called[0], path):
            name = ValueName("carried", "", call.source.source)
            return Value(name, call.source, call, False)
        number = 0
    elif call.opcode == "conditional":
        number = 1 + call.called.index(computation)
    if number >= len(call.operands):
        return UNKNOWN_VALUE
    return _Place(call.operands[number], path)


def _only_call(computation: Computation) -> Instruction | None:
    """Returns the only instruction that calls a computation; None if several do."""
    callers = computation.callers
    return callers[0] if len(callers) == 1 else None


def _operation_value(maker: Instruction, same_dims: bool) -> Value:
    source = maker.source
    if not source.is_named:
        return UNKNOWN_VALUE
    return Value(_called(source, maker.opcode), source, maker, same_dims)


def is_written(collective: Instruction, source: InstructionSource) -> bool:
    """Whether the user's program contains the collective, as a `jax.lax` call."""
    # Transfers between TPU slices have no kind: they are sends and receives that XLA
    # adds.
    if not collective.kind or collective.frontend.get("is_spmd_generated") == "true":
        return False
    return source.op.endswith(KINDS[collective.kind].primitives)


def _with_calls(instruction: Instruction, op: str) -> str:
    """Prefixes an operation's name with the names of the calls around it.

    After partitioning, names in a `shard_map` body lack this prefix.
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
    """Returns the first operation of the program that reads an instruction's result."""
    queue, visited = [instruction], set[Instruction]()
    while queue and len(visited) < _MOST_USERS:
        for user in queue.pop(0).users[:2]:
            if user in visited:
                continue
            visited.add(user)
            if user.source.is_named:
                return user.source
            queue.append(user)
    return NO_SOURCE


def _last_move(collective: Instruction) -> Instruction:
    """Returns the last of several collectives that together move one value."""
    while len(collective.users) == 1:
        (reader,) = collective.users
        if not reader.kind or not _alike(collective, reader):
            break
        collective = reader
    return collective


def _called(source: InstructionSource, kind: str) -> ValueName:
    """Returns JAX's name for an operation, together with the user's line."""
    return ValueName("operation", last_part(source.op) or kind, source.source)
