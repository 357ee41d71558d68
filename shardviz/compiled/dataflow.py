"""Dataflow: which arrays each array depends on, and where devices may differ.

Every device runs the same module. Devices can only hold different bytes if these depend
on a split argument, on the device number, or on a collective that gives each device a
different part. An all-reduce or all-gather over a mesh axis makes the devices along
that axis equal again. XLA's `HloReplicationAnalysis` follows the same rules.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from shardviz.base.collective_kind import KINDS
from shardviz.compiled.module import Instruction, Module
from shardviz.compiled.read_groups import GroupReader, Slices

#: One array of an instruction's result, given by its index in the result tuple.
Part = tuple[Instruction, tuple[int, ...]]

_SAME_TUPLE = ("copy", "opt-barrier", "optimization-barrier", "domain")
_CALLS = ("call", "fusion", "async-start")
# Operations that may return different bytes on any two devices.
_PER_DEVICE = (
    "partition-id", "replica-id", "rng", "infeed", "recv", "recv-done",
    "rng-get-and-update-state",
)  # fmt: skip
_UNCHANGED = ("bitcast", "convert", "copy", "reshape")
# Name prefixes of library calls that depend only on their operands.
_PURE_CALLS = (
    "__cublas", "__cudnn", "__onednn", "TopK", "cusolver", "lapack", "AllocateBuffer",
)  # fmt: skip


class Placement(NamedTuple):
    """The mesh that a module was compiled for, and how its arguments are split.

    Attributes:
        names, sizes: the mesh axes.
        splits: an argument's name in the module -> the mesh axes that split it; a
            missing argument may be split over any axes.
        slices: the TPU slices, if the module is compiled for one of them.
    """

    names: Sequence[str]
    sizes: Sequence[int]
    splits: Mapping[str, Iterable[str]]
    slices: Slices | None = None


class Dataflow:
    """Traces arrays to arguments, to results, and to axes along which devices differ.

    Args:
        module: a module for one device of the mesh.
        placement: the mesh and how arguments are split; None if unknown.
        names: the argument names in the module, in program order.

    Attributes:
        axes: the mesh axes with more than one device.
    """

    def __init__(
        self, module: Module, placement: Placement | None, names: Iterable[str] = ()
    ) -> None:
        self._module, self._placement = module, placement
        self._argument_bits = {name: 1 << number for number, name in enumerate(names)}
        # A group may cover only part of an axis, so we track each prime factor of an
        # axis separately.
        self._bits: dict[str, int] = {}
        parts: list[str] = []
        sizes: list[int] = []
        if placement is not None:
            for name, size in zip(placement.names, placement.sizes, strict=True):
                self._bits[name] = 0
                for factor in _prime_factors(size):
                    self._bits[name] |= 1 << len(parts)
                    parts.append(str(len(parts)))
                    sizes.append(factor)
        self._sizes, self._all = sizes, (1 << len(parts)) - 1
        slices = None if placement is None else placement.slices
        self._groups = GroupReader(parts, sizes, slices)
        self.axes = tuple(axis for axis, bits in self._bits.items() if bits)

    def differing(self, part: Part) -> tuple[str, ...] | None:
        """Returns the mesh axes along which an array may differ between devices.

        None if these axes are unknown, as for a complete tuple.
        """
        if self._placement is None or part not in self._differing:
            return None
        differs = self._differing[part]
        return tuple(axis for axis, bit in self._bits.items() if bit & differs)

    def arguments_of(self, part: Part) -> int:
        """Returns the arguments that an array depends on, one bit per argument.

        Dependencies between loop iterations are ignored. Otherwise nearly all values in
        a loop would depend on the same arguments.
        """
        return self._arguments.get(part, 0)

    def results_of(self, part: Part) -> int:
        """Returns the program results that depend on an array, one bit per result."""
        return self._results.get(part, 0)

    @cached_property
    def _arguments(self) -> dict[Part, int]:
        starts: dict[Part, int] = {}
        for parameter in self._module.entry.parameters.values():
            bit = self._argument_bits.get(parameter.op, 0)
            starts.update(dict.fromkeys(_all_parts([parameter]), bit))
        sources: dict[Part, list[Part]] = {}
        for part in self._parts:
            sources[part] = self._sources(part, once=True)
        return _collected(self._parts, starts, sources)

    @cached_property
    def _results(self) -> dict[Part, int]:
        root, readers = self._module.entry.root, defaultdict[Part, list[Part]](list)
        starts = {(root, path): 1 << n for n, path in enumerate(root.paths)}
        for part in self._parts:
            for source in self._sources(part):
                readers[source].append(part)
        return _collected(self._parts, starts, readers)

    @cached_property
    def _differing(self) -> dict[Part, int]:
        starts: dict[Part, int] = {}
        ended: dict[Part, int] = {}
        sources: dict[Part, list[Part]] = {}
        for part in self._parts:
            starts[part], ended[part] = self._of_collective(part[0])
            # Trip counts and branches may depend on the device.
            sources[part] = [*self._sources(part), *_decides(part)]
        return _collected(self._parts, starts, sources, ended, self._all)

    @cached_property
    def _parts(self) -> list[Part]:
        """Every array in the module; called computations come before their callers."""
        parts: list[Part] = []
        for computation in self._module.computations:
            for instruction in computation.instructions:
                for path in instruction.paths:
                    parts.append((instruction, path))
        return parts

    def _of_collective(self, instruction: Instruction) -> tuple[int, int]:
        """Returns the axes along which an instruction makes devices differ, and the
        axes along which it makes them equal.
        """
        opcode = instruction.opcode
        if opcode == "parameter" and instruction.computation.is_entry:
            splits = {} if self._placement is None else self._placement.splits
            if instruction.op not in splits:
                return self._all, 0
            bits = 0
            for axis in splits[instruction.op]:
                bits |= self._bits[axis]
            return bits, 0
        if opcode in _PER_DEVICE:
            return self._all, 0
        if opcode == "dynamic-slice":
            return self._of_table(instruction)
        if opcode == "custom-call":
            pure = instruction.custom_call_target.startswith(_PURE_CALLS)
            return 0 if pure else self._all, 0
        kind = instruction.kind
        if not kind or opcode.endswith("-done"):
            return 0, 0
        replicas = self._groups.of(instruction)
        over, size = 0, 1
        for part in map(int, replicas.axes):
            over |= 1 << part
            size *= self._sizes[part]
        if KINDS[kind].equal_results:
            return 0, over if size == replicas.size else 0
        return over or self._all, 0

    def _of_table(self, slice_: Instruction) -> tuple[int, int]:
        """Like `_of_collective`, for a table that is indexed by device number.

        XLA's partitioner stores the offset of each device's shard in such tables.
        """
        table, *starts = map(_origin, slice_.operands)
        entries = table.integers
        by_device = len(starts) == 1 and starts[0].opcode == "partition-id"
        if not by_device or len(entries) != math.prod(self._sizes):
            return 0, 0
        array, bits = np.array(entries, np.uint64).reshape(self._sizes), 0
        for axis in range(len(self._sizes)):
            if (array != array.take([0], axis)).any():
                bits |= 1 << axis
        return bits, self._all

    def _sources(self, part: Part, once: bool = False) -> list[Part]:
        """Returns the arrays that an array is directly computed from.

        Args:
            part: the array.
            once: whether to ignore dependencies between loop iterations.
        """
        instruction, path = part
        opcode, reads = instruction.opcode, instruction.operands
        if opcode == "parameter":
            return list(_from_callers(instruction, path, once))
        if opcode == "tuple" and path:
            return [(reads[path[0]], path[1:])]
        if opcode == "get-tuple-element":
            return [(reads[0], (instruction.index, *path))]
        if opcode.endswith("-done"):
            start, place = reads[0], path
            if _holds_operands(start):
                place = (1, *path)
            elif start.opcode == "copy-start":
                place = (0,)
            if place in start.paths:
                return [(start, place)]
            return _all_parts([start])
        if opcode == "while":
            sources = [(reads[0], path), (instruction.called[0].root, path)]
            return sources[:1] if once else sources
        if opcode == "conditional":
            return [(branch.root, path) for branch in instruction.called]
        if opcode in _SAME_TUPLE and path:
            return [(reads[0], path)]
        if opcode in _CALLS and instruction.called and not instruction.kind:
            root = instruction.called[0].root
            if opcode != "async-start":
                return [(root, path)]
            if path[:1] == (1,):
                return [(root, path[1:])]
        kind = instruction.kind
        per_result = bool(kind) and KINDS[kind].operand_per_result
        if per_result and len(reads) > 1 and path:
            return _all_parts([reads[path[-1]]]) if path[-1] < len(reads) else []
        return _all_parts(reads)


def _holds_operands(start: Instruction) -> bool:
    """Whether a start's result holds the operands before the results."""
    if start.wrapped is not None:
        return True
    return bool(start.kind) and KINDS[start.kind].start_holds_operands


def _origin(instruction: Instruction) -> Instruction:
    """Follows copies and fusion parameters back to the original instruction."""
    while True:
        computation = instruction.computation
        if instruction.opcode in _UNCHANGED:
            instruction = instruction.operands[0]
        elif instruction.opcode == "parameter" and len(computation.callers) == 1:
            (call,) = computation.callers
            if call.opcode not in ("fusion", "call"):
                return instruction
            instruction = call.operands[instruction.parameter_number]
        else:
            return instruction


def _prime_factors(size: int) -> list[int]:
    factors: list[int] = []
    divisor = 2
    while size > 1:
        while size % divisor == 0:
            factors.append(divisor)
            size //= divisor
        divisor += 1
    return factors


def _collected(
    parts: Iterable[Part],
    starts: Mapping[Part, int],
    sources: Mapping[Part, list[Part]],
    ended: Mapping[Part, int] = MappingProxyType({}),
    unknown: int = 0,
) -> dict[Part, int]:
    """Propagates bits between arrays until nothing changes.

    Args:
        parts: all arrays.
        starts: an array -> its initial bits.
        sources: an array -> the arrays it receives bits from.
        ended: an array -> the bits it doesn't receive.
        unknown: the bits of a source that is not in `parts`.
    """
    # If no array depends on itself, a single pass in this order sets all bits.
    bits = dict.fromkeys(_after_their_sources(parts, sources), 0)
    changed = True
    while changed:
        changed = False
        for part, before in bits.items():
            union = 0
            for source in sources.get(part, ()):
                union |= bits.get(source, unknown)
            union = union & ~ended.get(part, 0) | starts.get(part, 0)
            if union != before:
                bits[part], changed = union, True
    return bits


def _after_their_sources(
    parts: Iterable[Part], sources: Mapping[Part, list[Part]]
) -> list[Part]:
    """Sorts arrays so that each comes after its sources, except in loops."""
    order: list[Part] = []
    waiting = dict.fromkeys(parts)
    while waiting:
        # A depth-first search. An array is added after all of its sources.
        stack = [(next(iter(waiting)), False)]
        while stack:
            part, sources_added = stack.pop()
            if sources_added:
                order.append(part)
            elif part in waiting:
                del waiting[part]
                stack.append((part, True))
                for source in sources.get(part, ()):
                    stack.append((source, False))
    return order


def _all_parts(instructions: Iterable[Instruction]) -> list[Part]:
    parts: list[Part] = []
    for instruction in instructions:
        parts += [(instruction, path) for path in instruction.paths]
    return parts


def _from_callers(
    parameter: Instruction, path: tuple[int, ...], once: bool
) -> Iterator[Part]:
    """Yields the arrays that a computation's callers pass for one of its parameters."""
    computation, number = parameter.computation, parameter.parameter_number
    for call in computation.callers:
        if call.opcode == "while":
            yield call.operands[0], path
            if not once:
                yield call.called[0].root, path
        elif call.opcode == "conditional":
            for branch, called in enumerate(call.called):
                if called is computation:
                    yield call.operands[1 + branch], path
        elif number < len(call.operands):
            yield call.operands[number], path


def _decides(part: Part) -> list[Part]:
    """Returns the arrays that decide a loop's trip count or which branch is taken."""
    instruction = part[0]
    # Parameters of a loop body also depend on the condition: a device that has left the
    # loop keeps its last values.
    deciders = [instruction]
    if instruction.opcode == "parameter":
        deciders = instruction.computation.callers
    parts: list[Part] = []
    for decider in deciders:
        if decider.opcode == "while":
            parts += _all_parts([decider.called[1].root])
        elif decider.opcode == "conditional":
            parts += _all_parts(decider.operands[:1])
    return parts
