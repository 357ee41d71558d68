"""Full rematerialisations: arrays that every device gathers in full to split them
again.

Where XLA's partitioner finds no better way from one sharding to another, it warns of an
"involuntary full rematerialization" (`spmd_partitioner.cc`). The warning goes to the
log; in the module it leaves an all-gather whose result is sliced right away by the
number of the device.

Right after the partitioner that is exact: where the user asks for the full array, there
is a copy between gather and slice. A final module has no such copies, and says nothing
here: its gathers inherit what the partitioner's module shows.
"""

from __future__ import annotations

from typing import NamedTuple

from shardviz.base.collective_kind import KINDS
from shardviz.compiled.module import Instruction, Module, Shape

# Operations that may be between the gather and the slice: they change no element.
_PASSING = ("all-gather-done", "get-tuple-element", "pad", "slice")
_RESHAPING = ("bitcast", "reshape", "transpose")
_NUMBERS = ("partition-id", "replica-id")
_DEEPEST, _MOST_USERS = 8, 16


class Rematerialized(NamedTuple):
    """What a rematerialisation makes: the full array, and the part that is kept."""

    full: Shape
    part: Shape


def rematerialized(gather: Instruction, module: Module) -> Rematerialized | None:
    """The array that an all-gather makes only to split it again; None for any other."""
    is_written = gather.op.endswith(KINDS["all-gather"].primitives)
    generated = gather.frontend.get("is_spmd_generated") == "true"
    if module.is_scheduled or (is_written and not generated):
        return None
    passing, made = _PASSING, gather.operands[0]
    # TPU's compiler gathers along a new dimension where several are split, and reshapes
    # make the full array.
    if made.opcode in ("reshape", "bitcast") and made.shapes[0].dims[:1] == (1,):
        passing += _RESHAPING
    part = _find_slice(gather, passing, 0)
    if part is None:
        return None
    full, kept = part.operands[0].shapes[0], part.shapes[0]
    for size, own in zip(full.dims, kept.dims, strict=True):
        if size % own:
            return None  # parts that overlap: neighbours' rows for a sliding window
    return Rematerialized(full, kept)


def _find_slice(
    value: Instruction, passing: tuple[str, ...], depth: int
) -> Instruction | None:
    """A slice of a value that depends on the number of the device."""
    if depth >= _DEEPEST:
        return None
    for user in value.users[:_MOST_USERS]:
        if user.opcode == "dynamic-slice" and user.operands[0] is value:
            if any(_by_device(start, 0) for start in user.operands[1:]):
                return user
        elif user.opcode in passing or user.kind == "all-gather":
            part = _find_slice(user, passing, depth + 1)
            if part is not None:
                return part
    return None


def _by_device(value: Instruction, depth: int) -> bool:
    """Whether a value depends on the number of the device."""
    if value.opcode in _NUMBERS:
        return True
    if depth > _DEEPEST:
        return False
    return any(_by_device(operand, depth + 1) for operand in value.operands)
