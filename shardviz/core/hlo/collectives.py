"""read_collectives(): the collectives in the text of a compiled module.

A pattern finds the few lines with a collective; only these, and the lines that name them, are
read. Text of jax 0.10 and 0.12 for CPU, GPU and TPU is kept in `tests/program/hlo`.

Full rematerialisations are found, too: arrays that every device gathers in full only to split them
again. Where XLA's partitioner finds no better way from one sharding to another, it warns of an
"involuntary full rematerialization" (`spmd_partitioner.cc`). The warning goes to the log; in the
text it leaves an all-gather whose result is sliced right away by the number of the device.

Right after the partitioner that is exact: where the user asks for the full array, there is a copy
between gather and slice. A final program has no such copies; there only a gather and a slice of one
operation count, and `comparison.inherited` adds what the partitioner's text shows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import NamedTuple

from shardviz.core.format import joined
from shardviz.core.hlo.causes import NOBODY, Causes
from shardviz.core.hlo.module import (
    HEAD,
    SHAPE,
    InstructionSource,
    Loops,
    Module,
    Operand,
    Sources,
    instruction_source,
    opcode,
    operands,
    shape_bytes,
    without_layout,
)
from shardviz.core.hlo.replica_groups import (
    Crossing,
    Groups,
    Replicas,
    branch_of,
    find_crossings,
    read_pairs,
    read_replicas,
    replicas_of,
    slices_of,
)
from shardviz.core.program.report import Collective, Member

_OPCODE = re.compile(
    r" (all-gather|all-reduce|reduce-scatter|all-to-all|ragged-all-to-all"
    r"|collective-permute|collective-broadcast)(-start)?\("
)
_COMMENT = re.compile(r"/\*.*?\*/")
_GROUPS = re.compile(
    r"replica_groups=(\{\{[\d,{} ]*\}\}|\{\}|\[[\d,]+\](?:<=\[[\d,]+\](?:T\([\d,]+\))?)?"
    r"|mesh\[.*?\}(?=[,\s]|$))"
)
_PAIRS = re.compile(r"source_target_pairs=(\{\{[\d,{} ]*\}\})")
_CHAIN = re.compile(r'\bchannel_id=(\d+).*\bchain_id="(\d+)"')
_ASYNC = re.compile(r" async-start\(.*\bcalls=%?([\w.\-]+)")
_NOT_ASYNC = '"is_sync":true'
_DIMENSIONS = re.compile(r"\bdimensions=\{([\d,]*)\}")
_MOST_ADDITIONS = 4096
_UNCHANGED = ("convert", "copy", "bitcast", "reshape", "transpose")  # of a sum that is added up


class _Found(NamedTuple):
    kind: str
    started: bool
    name: str
    shape: str
    line: str
    start: int


def read_collectives(
    text: str,
    axis_names: Sequence[str],
    axis_sizes: Sequence[int],
    device_ids: Sequence[int] = (),
    arguments: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Collective, ...]:
    """Every collective of a compiled module, each counted once, in the order of the text.

    Args:
        text: what `compiled.as_text()` gave, or a dump of a compiler pass.
        axis_names, axis_sizes: the mesh the module was compiled for, in its order.
        device_ids: the devices of the mesh, in its order; needed for several slices of TPUs, whose
            text is that of one slice.
        arguments: what the text calls an argument, to the name that the program has for it.

    >>> line = "  %r = f32[16,32]{1,0} all-reduce(%p), replica_groups={{0,1},{2,3}}, to_apply=%add"
    >>> found, = read_collectives(line, ("data", "model"), (2, 2))
    >>> found.kind, found.mesh_axes, found.bytes_per_device, found.group_size
    ('all-reduce', ('model',), 2048, 2)
    """
    reader = _CollectiveReader(Module(text), axis_names, axis_sizes, device_ids, arguments)
    found = [(f.start, reader.collective(f)) for f in reader.each_once(_find(text))]
    if crossings := find_crossings(text):
        found += [(c.start, reader.crossing(c)) for c in crossings]
        found.sort(key=lambda pair: pair[0])
    return tuple(collective for _, collective in found)


def _find(text: str) -> list[_Found]:
    found = []
    for match in _OPCODE.finditer(text):
        start = text.rfind("\n", 0, match.start()) + 1
        head = HEAD.match(text, start, match.start() + 1)
        if head is None or '"' in (shape := text[head.end() : match.start()]):
            continue  # the word is inside a string
        end = text.find("\n", match.end())
        line = text[start : end if end >= 0 else len(text)]
        shape = _COMMENT.sub("", shape)
        found.append(_Found(match[1], match[2] is not None, head[2], shape, line, start))
    return found


class _CollectiveReader:
    """Reads the collectives of one module."""

    def __init__(
        self,
        module: Module,
        names: Sequence[str],
        sizes: Sequence[int],
        ids: Sequence[int],
        arguments: Mapping[str, str],
    ) -> None:
        self.module = module
        self.sources = Sources(module.text)
        self.loops = Loops(module)
        self.rematerialised = Rematerialization(module)
        self.causes = Causes(module, self.sources, arguments)
        self.arguments = arguments
        self.names, self.sizes = names, sizes
        self.slices = slices_of(module.text, ids)
        self.by_slice: dict[int, Groups] = {}
        self.replicas: dict[tuple[str, str], Replicas] = {}
        self.first: dict[Hashable, str] = {}  # what one does, to the name of the first that does it

    def each_once(self, found: list[_Found]) -> list[_Found]:
        """The collectives without repetitions.

        TPU's compiler splits a collective into parts that share a channel and a chain, and fuses
        each with other work. Only the first part is kept.
        """
        seen: set[tuple[str, ...]] = set()
        result = []
        for one in found:
            chain = self._chain(one)
            if not chain or chain not in seen:
                result.append(one)
            seen.add(chain)
        return self._of_all_slices(result) if self.slices else result

    def _of_all_slices(self, found: list[_Found]) -> list[_Found]:
        """Joins permutations that the compiler wrote once per slice.

        One that moves nothing inside a slice is dropped: the send between slices is all of it.
        """
        result, first = [], {}
        for one in found:
            branch = branch_of(self.module, self.module.computation_at(one.start))
            pairs = _PAIRS.search(one.line)
            if branch is None or self.slices is None or one.kind != "collective-permute":
                result.append(one)
                continue
            if branch[0] not in first:
                first[branch[0]] = one
                result.append(one)
            start = first[branch[0]].start
            here = self.slices.spread(read_pairs(pairs[1]) if pairs else (), branch[1])
            self.by_slice[start] = self.by_slice.get(start, ()) + here
        still = {s for s, pairs in self.by_slice.items() if all(a == b for a, b in pairs)}
        return [one for one in result if one.start not in still]

    def _chain(self, found: _Found) -> tuple[str, ...]:
        if "chain_id=" not in found.line or (match := _CHAIN.search(found.line)) is None:
            return ()
        return found.kind, match[1], match[2], self._host(self.module.computation_at(found.start))

    def _host(self, computation: str) -> str:
        """The computation that calls a fusion."""
        for _ in range(4):
            calls = [c for c in self.module.calls.get(computation, []) if c.attribute == "calls"]
            if not calls:
                break
            computation = self.module.computation_at(calls[0].start)
        return computation

    def collective(self, found: _Found) -> Collective:
        computation = self.module.computation_at(found.start)
        kind, shape = found.kind, self.result_shape(found)
        replicas, size = self.replicas_of(found), shape_bytes(shape)
        if kind == "all-reduce" and computation.startswith("all-reduce-scatter"):
            # TPU's form of a reduce-scatter: an all-reduce fused with the slice that each device
            # keeps, so the result of the inner all-reduce has the shape of the operand.
            kind = "reduce-scatter"
        elif kind == "reduce-scatter":
            size *= replicas.size or math.prod(self.sizes)
        runs = self.loops.count(computation)
        remade = self.rematerialised.why(found.start) if kind == "all-gather" else ""
        source = instruction_source(self.module, self.sources, found.start, kind, computation)
        is_partial, over = self.is_partial(kind, replicas), replicas.axes
        if is_partial:
            over = (f"a part of {joined(over)}",)
        members = self.members(found, kind, shape, size, over)
        if members:
            first = members[0]
            source, operand, cause = (
                InstructionSource(first.op, first.source, first.stack),
                first.operand,
                first.cause,
            )
        else:
            operand, cause = self.operand(found, kind, over)
        return Collective(
            kind=kind,
            mesh_axes=replicas.axes,
            bytes_per_device=size,
            op=self.arguments.get(source.op, source.op),
            source=source.source,
            groups=replicas.groups,
            is_async=self.is_async(found, computation),
            in_loop=runs.in_loop,
            name=found.name,
            shape=without_layout(shape),
            trips=runs.trips,
            stack=source.stack,
            group_size=replicas.size,
            cause=f"{remade} The array is {operand}." if remade else cause,
            rematerialises=bool(remade),
            is_partial=is_partial,
            operand=operand,
            members=members,
            repeats=self.repeats(found, computation, replicas),
            added_in=self.added_in(found) if kind == "all-reduce" and not members else "",
        )

    def repeats(self, found: _Found, computation: str, replicas: Replicas) -> str:
        """The name of an earlier collective that does exactly the same; else `""`."""
        along = _DIMENSIONS.search(found.line)
        does = (
            computation,
            found.kind,
            without_layout(found.shape),
            tuple(operands(found.line)),
            replicas.groups,
            along and along[1],
            self.causes.reducer(found.line),
        )
        first = self.first.setdefault(does, found.name)
        return first if replicas.groups and first != found.name else ""

    def added_in(self, found: _Found) -> str:
        """The last of the additions that alone use a sum; `""` where it is used otherwise."""
        if self.causes.reducer(found.line) != "add":
            return ""
        at, last = found.start, ""
        for _ in range(_MOST_ADDITIONS):
            users = self.module.users(at)
            kind = opcode(self.module.line_at(users[0])) if len(users) == 1 else ""
            if kind == "add":
                last = self.module.name_at(users[0])
            elif kind not in _UNCHANGED:
                break
            at = users[0]
        return last

    def operand(self, found: _Found, kind: str, axes: Sequence[str]) -> tuple[str, str]:
        """What a collective about one array sums or moves, and why."""
        reads = operands(found.line)
        values = [self.causes.value(o, found.start, kind) for o in reads]
        if not values or len({v.words for v in values}) > 1:
            values = [NOBODY]
        value = values[0]
        return value.words, self.causes.cause(value, found.start, kind, axes)

    def members(
        self, found: _Found, kind: str, shape: str, size: int, axes: Sequence[str]
    ) -> tuple[Member, ...]:
        """The arrays of a combined collective, the largest first; `()` for one about one array.

        Their bytes sum up to its `size`.
        """
        reads, parts = operands(found.line), [m[0] for m in SHAPE.finditer(shape)]
        if kind == "all-to-all" or len(reads) < 2 or len(reads) != len(parts):
            return ()
        times = size // max(1, shape_bytes(shape))  # more than 1 for a reduce-scatter
        made = []
        for number, (read, part) in enumerate(zip(reads, parts, strict=True)):
            value = self.causes.value(read, found.start, kind)
            source = self.causes.source_of_part(value, found.start, kind, number)
            cause = self.causes.cause(value, found.start, kind, axes, source)
            made.append(
                Member(
                    self.arguments.get(source.op, source.op),
                    source.source,
                    shape_bytes(part) * times,
                    part,
                    value.words,
                    source.stack,
                    cause,
                )
            )
        return tuple(sorted(made, key=lambda m: -m.bytes_per_device))

    def replicas_of(self, found: _Found) -> Replicas:
        paired = found.kind == "collective-permute"
        if found.start in self.by_slice:
            return replicas_of(self.by_slice[found.start], paired, self.names, self.sizes)
        match = (_PAIRS if paired else _GROUPS).search(found.line)
        key = ("pairs" if paired else "groups", match[1] if match else "")
        if key not in self.replicas:
            read = partial(read_replicas, key[1], paired, self.names, self.sizes)
            slices = self.slices
            self.replicas[key] = read(slices.size, slices.spread) if slices else read()
        return self.replicas[key]

    def is_partial(self, kind: str, replicas: Replicas) -> bool:
        """Whether the groups are smaller than the axes they run over; within a slice, they are."""
        if kind == "collective-permute" or self.slices or not replicas.size:
            return False
        sizes = dict(zip(self.names, self.sizes, strict=True))
        return replicas.size < math.prod(sizes[axis] for axis in replicas.axes)

    def crossing(self, found: Crossing) -> Collective:
        """A collective between slices, which the hosts execute."""
        computation = self.module.computation_at(found.start)
        groups = self.slices.crossing(found.target) if self.slices else ()
        paired = found.kind == "collective-permute"
        replicas = replicas_of(groups, paired, self.names, self.sizes)
        sums = found.kind in ("all-reduce", "reduce-scatter")
        size = shape_bytes(found.shape)
        if found.kind == "reduce-scatter":
            size *= replicas.size or math.prod(self.sizes)
        runs = self.loops.count(computation)
        at = found.sends if sums else found.start
        source = instruction_source(self.module, self.sources, at, found.kind, computation)
        reads = operands(self.module.line_at(found.sends))
        value = self.causes.value(reads[0], found.sends, found.kind) if reads else NOBODY
        return Collective(
            kind=found.kind,
            mesh_axes=replicas.axes,
            bytes_per_device=size,
            op=self.arguments.get(source.op, source.op),
            source=source.source,
            groups=replicas.groups,
            is_async=True,
            in_loop=runs.in_loop,
            name=found.name,
            shape=without_layout(found.shape),
            trips=runs.trips,
            stack=source.stack,
            group_size=replicas.size,
            between_slices=True,
            operand=value.words,
            cause=self.causes.cause(value, at, found.kind, replicas.axes),
        )

    def is_async(self, found: _Found, computation: str) -> bool:
        """Whether other work can run meanwhile.

        GPU's compiler makes every collective a start and a done, and marks the synchronous ones.
        """
        if found.started:
            return _NOT_ASYNC not in found.line
        return self._wrappers.get(computation, False) or "chain_id=" in found.line

    @cached_property
    def _wrappers(self) -> dict[str, bool]:
        """Whether each computation that a generic `async-start` wraps is asynchronous."""
        if " async-start(" not in self.module.text:
            return {}
        return {
            match[1]: _NOT_ASYNC not in self.module.line_at(self.module.line_start(match.start()))
            for match in _ASYNC.finditer(self.module.text)
        }

    def result_shape(self, found: _Found) -> str:
        """The shape of the result. A start's own shape holds operands and contexts too."""
        if not found.started:
            return found.shape
        text = self.module.text
        done = text.find(f"{found.kind}-done(%{found.name})", found.start)
        if done >= 0:
            line = text[self.module.line_start(done) : done]
            return _COMMENT.sub("", line.partition(" = ")[2])
        if found.kind == "all-reduce":
            return found.shape
        parts = [m[0] for m in SHAPE.finditer(found.shape) if m[0] != "u32[]"]
        return ", ".join(parts[len(parts) // 2 :])


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
