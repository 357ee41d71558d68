"""Full rematerialisations: arrays that are gathered in full, only to be split again.

If XLA's partitioner finds no better way from one sharding to another, it logs an
"involuntary full rematerialization" warning (`spmd_partitioner.cc`). The module then
has an all-gather whose result is immediately sliced by device number.

Right after the partitioner, this pattern is unambiguous: if the user asks for the full
array, there is a copy between the gather and the slice. The final module has no such
copies, so we don't search it. Its all-gathers inherit what we found in the
partitioner's module.
"""

from __future__ import annotations

from typing import NamedTuple

from shardviz.base.collective_kind import KINDS
from shardviz.compiled.module import Instruction, Module, Shape

# Opcodes that may come between the gather and the slice; they keep all elements.
_PASSING = ("all-gather-done", "get-tuple-element", "pad", "slice")
_RESHAPING = ("bitcast", "reshape", "transpose")
_NUMBERS = ("partition-id", "replica-id")
_DEEPEST, _MOST_USERS = 8, 16


class Rematerialized(NamedTuple):
    """The full array of a rematerialisation, and the shard that each device keeps."""

    full: Shape
    part: Shape


def rematerialized(gather: Instruction, module: Module) -> Rematerialized | None:
    """Returns the array that an all-gather creates only to be split again, or None."""
    is_written = gather.op.endswith(KINDS["all-gather"].primitives)
    generated = gather.frontend.get("is_spmd_generated") == "true"
    if module.is_scheduled or (is_written and not generated):
        return None
    passing, operand = _PASSING, gather.operands[0]
    # If several dimensions are split, the TPU compiler gathers along a new dimension
    # and reshapes the result to the full array.
    if operand.opcode in ("reshape", "bitcast") and operand.shapes[0].dims[:1] == (1,):
        passing += _RESHAPING
    part = _find_slice(gather, passing, 0)
    if part is None:
        return None
    full, shard = part.operands[0].shapes[0], part.shapes[0]
    for size, shard_size in zip(full.dims, shard.dims, strict=True):
        if size % shard_size:
            return None  # shards overlap, as for sliding windows
    return Rematerialized(full, shard)


def _find_slice(
    value: Instruction, passing: tuple[str, ...], depth: int
) -> Instruction | None:
    """Finds a slice of a value with offsets that depend on the device number."""
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
    """Whether a value depends on the device number."""
    if value.opcode in _NUMBERS:
        return True
    if depth > _DEEPEST:
        return False
    return any(_by_device(operand, depth + 1) for operand in value.operands)
