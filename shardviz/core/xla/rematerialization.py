"""Full rematerialisations: arrays that every device gathers in full to split them
again.

Where XLA's partitioner finds no better way from one sharding to another, it warns of an
"involuntary full rematerialization" (`spmd_partitioner.cc`). The warning goes to the
log; in the module it leaves an all-gather whose result is sliced right away by the
number of the device.

Right after the partitioner that is exact: where the user asks for the full array, there
is a copy between gather and slice. A final module has no such copies; there only a
gather and a slice of one operation count, and `comparison.inherited` adds what the
partitioner's module shows.
"""

from __future__ import annotations

from typing import NamedTuple

from shardviz.core.xla.module import Instruction, Module, Shape

# Operations that may be between the gather and the slice: they change no element.
_PASSING = ("all-gather-done", "get-tuple-element", "pad", "slice")
_RESHAPING = ("bitcast", "reshape", "transpose")
_LAID_OUT = ("bitcast", "convert", "copy")
_NUMBERS = ("partition-id", "replica-id")
_DEEPEST, _MOST_USERS = 8, 16


class Rematerialized(NamedTuple):
    """What a rematerialisation makes: the full array, and the part that is kept."""

    full: Shape
    part: Shape


def rematerialized(gather: Instruction, module: Module) -> Rematerialized | None:
    """The array that an all-gather makes only to split it again; None for any other."""
    is_written = gather.op.rpartition("/")[2].startswith("all_gather")
    generated = gather.frontend.get("is_spmd_generated") == "true"
    if is_written and not generated:
        return None
    # A final module marks no constraints: there reshapes and copies may follow.
    passing = _PASSING
    if _adds_dimension(gather):
        passing += _RESHAPING
    part = _find_slice(gather, passing, module.is_scheduled, 0)
    if part is None or (module.is_scheduled and part.op != gather.op):
        return None  # the user may want the full array
    full = part.operands[0].shapes[0]
    kept = part.shapes[0]
    for size, own in zip(full.dims, kept.dims, strict=True):
        if size % own:
            return None  # parts that overlap: neighbours' rows for a sliding window
    return Rematerialized(full, kept)


def _adds_dimension(gather: Instruction) -> bool:
    """Whether it gathers along a new dimension, and reshapes make the full array.

    TPU's compiler does so where several dimensions are split.
    """
    made = gather.operands[0]
    return made.opcode in ("reshape", "bitcast") and made.shapes[0].dims[:1] == (1,)


def _find_slice(
    value: Instruction, passing: tuple[str, ...], final: bool, depth: int
) -> Instruction | None:
    """A slice of a value that depends on the number of the device."""
    if depth >= _DEEPEST:
        return None
    for user in value.users[:_MOST_USERS]:
        if user.opcode == "dynamic-slice" and user.operands[0] is value:
            starts = user.operands[1:]
            if any(_by_device(start, 0) for start in starts):
                return user
            continue
        inside: Instruction | None = None
        laid_out = final and user.opcode in _LAID_OUT and _keeps_sizes(user)
        if laid_out or user.opcode in passing or user.kind == "all-gather":
            inside = user
        elif user.opcode == "fusion":
            number = user.operands.index(value)
            inside = user.called[0].parameters.get(number)
        if inside is not None:
            part = _find_slice(inside, passing, final, depth + 1)
            if part is not None:
                return part
    return None


def _keeps_sizes(copy: Instruction) -> bool:
    """Whether a copy keeps the size of every dimension."""
    before = [d for d in copy.operands[0].shapes[0].dims if d != 1]
    return before == [d for d in copy.shapes[0].dims if d != 1]


def _by_device(value: Instruction, depth: int) -> bool:
    """Whether a value depends on the number of the device."""
    if value.opcode in _NUMBERS:
        return True
    if depth > _DEEPEST or value.opcode == "constant":
        return False
    if value.opcode == "parameter":
        # The argument of a fusion.
        number = value.parameter_number
        for call in value.computation.callers[:1]:
            if call.opcode == "fusion" and number < len(call.operands):
                return _by_device(call.operands[number], depth + 1)
        return False
    if value.opcode == "fusion":
        inside = value.called[0].instructions
        if any(i.opcode in _NUMBERS for i in inside):
            return True
    return any(_by_device(operand, depth + 1) for operand in value.operands)
