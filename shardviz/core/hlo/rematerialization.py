"""Full rematerialisations: arrays that every device gathers in full only to split them again.

Where XLA's partitioner finds no better way from one sharding to another, it warns of an
"involuntary full rematerialization" (`spmd_partitioner.cc`): it gathers the full array on every
device, and each device slices its new shard out of it. The warning goes to the log; in the text it
leaves an all-gather whose result is sliced right away by the number of the device.

Right after the partitioner that is exact: where the user asks for the full array, there is a copy
between gather and slice. A final program has no such copies; there only a gather and a slice of one
operation count, and `comparison.inherited` adds what the partitioner's text shows.
"""

from __future__ import annotations

import re

from shardviz.core.hlo.module import SHAPE, Module, Operand, opcode, operands, without_layout

_CALLS = re.compile(r"\bcalls=%([\w.\-]+)")
_PARAMETER = re.compile(r" parameter\((\d+)\)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_SHAPE = re.compile(r" = ([^ ]+) ")
# Operations that may be between the gather and the slice: they change no element.
_PASSING = frozenset(("all-gather-done", "get-tuple-element", "pad", "slice"))
_RESHAPING = frozenset(("bitcast", "reshape", "transpose"))
_LAID_OUT = frozenset(("bitcast", "convert", "copy"))  # where copies no longer mark constraints
_DEEPEST = 8


class Rematerialization:
    """The all-gathers of a module that belong to a full rematerialisation."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._stacked = False
        self._any = "partition-id(" in module.text or "replica-id(" in module.text
        # In a final program copies no longer mark the constraints of the user.
        self._final = "is_scheduled=true" in module.text[: module.text.find("\n") + 1]

    def why(self, start: int) -> str:
        """Why the all-gather at `start` is there, in one sentence; `""` where it is part of no
        rematerialisation."""
        line = self._module.line_at(start) if self._any else ""
        if not line or self._written_by_hand(line):
            return ""
        self._stacked = self._adds_dimension(line, start)
        found = self._find_slice(start, 0)
        part = self._module.line_at(found) if found is not None else ""
        if found is None or (self._final and _name(part) != _name(line)):
            return ""  # the user may want the full array
        full = self._module.definition(operands(part)[0].name, found)
        sizes = zip(_dims(full), _dims(part), strict=True)
        if any(int(w) % int(p) for w, p in sizes):
            return ""  # parts that overlap: neighbours' rows for a window that slides
        return _in_words(_shape(full), _shape(part))

    def _adds_dimension(self, line: str, start: int) -> bool:
        """Whether it gathers along a new dimension, as TPU's compiler does where several dimensions
        are split; reshapes then make the full array."""
        reads = operands(line)
        made = self._module.definition(reads[0].name, start) if reads else ""
        shape = _SHAPE.search(made)
        return opcode(made) in ("reshape", "bitcast") and bool(shape) and "[1," in shape[1]

    def _written_by_hand(self, line: str) -> bool:
        if 'is_spmd_generated="true"' in line:
            return False
        return _name(line).rpartition("/")[2].startswith("all_gather")

    def _find_slice(self, start: int, depth: int) -> int | None:
        """The position of a slice of a value that depends on the number of the device."""
        line = self._module.line_at(start)
        name = line.partition(" = ")[0].split()[-1].lstrip("%")
        for user in self._module.users(start, limit=16) if depth < _DEEPEST else ():
            found = self._read_by(user, name, depth)
            if found is not None:
                return found
        return None

    def _read_by(self, start: int, name: str, depth: int) -> int | None:
        line = self._module.line_at(start)
        kind, reads = opcode(line), operands(line)
        numbers = [i for i, o in enumerate(reads) if o.name == name]
        if not numbers:
            return None
        if kind == "dynamic-slice" and numbers[0] == 0:
            return start if any(self._by_device(o, start, 0) for o in reads[1:]) else None
        passes = kind in _PASSING or kind.startswith("all-gather")
        passes = passes or (self._stacked and kind in _RESHAPING)
        if passes or (self._final and kind in _LAID_OUT and self._as_it_was(line, reads[0], start)):
            return self._find_slice(start, depth + 1)
        return self._slice_in_fusion(line, numbers[0], depth) if kind == "fusion" else None

    def _as_it_was(self, line: str, operand: Operand, start: int) -> bool:
        """Whether a copy keeps the size of every dimension."""
        before = self._module.definition(operand.name, start)
        return [d for d in _dims(before) if d != "1"] == [d for d in _dims(line) if d != "1"]

    def _slice_in_fusion(self, line: str, number: int, depth: int) -> int | None:
        called = _CALLS.search(line)
        head = self._module.starts.get(called[1]) if called else None
        if head is None:
            return None
        begin, end = self._module.span_at(head)
        at = self._module.text.find(f" parameter({number})", begin, end)
        return self._find_slice(self._module.line_start(at), depth + 1) if at >= 0 else None

    def _by_device(self, operand: Operand, start: int, depth: int) -> bool:
        """Whether a value depends on the number of the device."""
        line = self._module.definition(operand.name, start)
        kind = opcode(line)
        if kind in ("partition-id", "replica-id"):
            return True
        if depth > _DEEPEST or not kind or kind == "constant":
            return False
        if kind == "parameter":
            return self._parameter_by_device(line, start, depth)
        called = _CALLS.search(line) if kind == "fusion" else None
        if called and self._mentions_device(called[1]):
            return True
        return any(self._by_device(o, start, depth + 1) for o in operands(line))

    def _parameter_by_device(self, line: str, start: int, depth: int) -> bool:
        """Whether the argument of a fusion depends on the number of the device."""
        number = _PARAMETER.search(line)
        computation = self._module.computation_at(start)
        for call in self._module.calls.get(computation, [])[:1]:
            reads = operands(self._module.line_at(call.start))
            if call.attribute == "calls" and number and int(number[1]) < len(reads):
                return self._by_device(reads[int(number[1])], call.start, depth + 1)
        return False

    def _mentions_device(self, computation: str) -> bool:
        begin = self._module.starts.get(computation)
        if begin is None:
            return False
        return self._module.text.find(" partition-id(", *self._module.span_at(begin)) >= 0


def _dims(line: str) -> list[str]:
    shape = _SHAPE.search(line)
    found = SHAPE.search(shape[1]) if shape else None
    return [d for d in found[2].split(",") if d] if found else []


def _name(line: str) -> str:
    found = _OP_NAME.search(line)
    return found[1] if found else ""


def _shape(line: str) -> str:
    found = _SHAPE.search(line)
    return without_layout(found[1]) if found else ""


def _in_words(full: str, part: str) -> str:
    return (
        "The partitioner knew no way in small steps from one sharding to the other: every device"
        f" makes all of {full} to keep {part} of it."
    )
