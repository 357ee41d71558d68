"""Collectives in the text of a compiled module. Pure: text in, values out; knows no jax.

A line filter finds the few lines with a collective; only these, and the lines that name them, are
read. Text of jax 0.10 and 0.12 for CPU, GPU and TPU is kept in `tests/program/hlo`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from shardviz.core.program.hlo.replica_groups import (
    Groups,
    axes_of_groups,
    axes_of_pairs,
    read_groups,
    read_pairs,
)
from shardviz.core.program.hlo.sources import Sources
from shardviz.core.program.report import Collective

_OPCODE = re.compile(
    r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(-start)?\("
)
_HEAD = re.compile(r"\s*(?:ROOT )?(%?([\w.\-]+)) = ")
_SHAPE = re.compile(r"\b([a-z]\w*)\[([^\]]*)\]")
_COMMENT = re.compile(r"/\*.*?\*/")
_GROUPS = re.compile(
    r"replica_groups=(\{\{[\d,{} ]*\}\}|\{\}|\[[\d,]+\](?:<=\[[\d,]+\](?:T\([\d,]+\))?)?"
    r"|mesh\[.*?\}(?=[,\s]|$))"
)
_PAIRS = re.compile(r"source_target_pairs=(\{\{[\d,{} ]*\}\})")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_OPERAND = re.compile(r"%([\w.\-]+)")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$", re.M)
_LOOP = re.compile(r"\b(?:body|condition)=%?([\w.\-]+)")
_CALLED = re.compile(r"[={,] ?%([\w.\-]+)")
_ASYNC = re.compile(r" async-start\(.*\bcalls=%?([\w.\-]+)")

_BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "c64": 64, "c128": 128}
_WIDTH = re.compile(r"[a-z]+(\d+)")


class _Found(NamedTuple):
    kind: str
    started: bool
    name: str
    shape: str
    line: str
    start: int


def read_collectives(
    text: str, axis_names: Sequence[str], axis_sizes: Sequence[int]
) -> tuple[Collective, ...]:
    """Every collective of a compiled module, each counted once, in the order of the text.

    Args:
        text: what `compiled.as_text()` gave.
        axis_names, axis_sizes: the mesh the module was compiled for, in its order.

    >>> line = "  %r = f32[16,32]{1,0} all-reduce(%p), replica_groups={{0,1},{2,3}}, to_apply=%add"
    >>> found, = read_collectives(line, ("data", "model"), (2, 2))
    >>> found.kind, found.mesh_axes, found.bytes_per_device
    ('all-reduce', ('model',), 2048)
    """
    module = _Module(text)
    devices = math.prod(axis_sizes)
    read: dict[str, tuple[Groups, tuple[str, ...]]] = {}
    result = []
    for found in _find(text):
        key = _groups_text(found)
        if key not in read:
            read[key] = _groups(found.kind, key, devices, axis_names, axis_sizes)
        result.append(_collective(found, module, *read[key], devices))
    return tuple(result)


def _find(text: str) -> list[_Found]:
    found = []
    for match in _OPCODE.finditer(text):
        start = text.rfind("\n", 0, match.start()) + 1
        head = _HEAD.match(text, start, match.start() + 1)
        if head is None or '"' in (shape := text[head.end() : match.start()]):
            continue  # the word stands in some string, not where the operation does
        end = text.find("\n", match.end())
        line = text[start : end if end >= 0 else len(text)]
        shape = _COMMENT.sub("", shape)
        found.append(_Found(match[1], match[2] is not None, head[2], shape, line, start))
    return found


def _groups_text(found: _Found) -> str:
    match = (_PAIRS if found.kind == "collective-permute" else _GROUPS).search(found.line)
    return match[1] if match else ""


def _groups(
    kind: str, text: str, devices: int, names: Sequence[str], sizes: Sequence[int]
) -> tuple[Groups, tuple[str, ...]]:
    if kind == "collective-permute":
        pairs = read_pairs(text)
        return pairs, axes_of_pairs(pairs, names, sizes)
    groups = read_groups(text, devices)
    return groups, axes_of_groups(groups, names, sizes)


def _collective(
    found: _Found, module: _Module, groups: Groups, axes: tuple[str, ...], devices: int
) -> Collective:
    computation = module.computation_at(found.start)
    kind, shape = found.kind, module.result_shape(found)
    size = shape_bytes(shape)
    if kind == "all-reduce" and computation.startswith("all-reduce-scatter"):
        # TPU's form of a reduce-scatter: an all-reduce fused with the slice that each device keeps,
        # so the result of the inner all-reduce has the shape of the operand.
        kind = "reduce-scatter"
    elif kind == "reduce-scatter":
        size *= len(groups[0]) if groups else devices
    op, source = module.origin(found, computation)
    return Collective(
        kind=kind,
        mesh_axes=axes,
        bytes_per_device=size,
        op=op,
        source=source,
        groups=groups,
        is_async=found.started or computation in module.async_computations,
        in_loop=computation in module.loop_computations,
        name=found.name,
        shape=re.sub(r"\{[^{}]*\}", "", shape).strip(),
    )


def shape_bytes(shape: str) -> int:
    """Bytes of a shape as XLA writes it; tuples are summed, sub-byte types packed.

    >>> shape_bytes("(f32[8,16]{1,0}, bf16[4])"), shape_bytes("s4[3]"), shape_bytes("pred[]")
    (520, 2, 1)
    """
    total = 0
    for kind, dims in _SHAPE.findall(shape):
        count = math.prod(int(d.strip().lstrip("<=")) for d in dims.split(",") if d.strip())
        total += (count * _bits(kind) + 7) // 8
    return total


def _bits(kind: str) -> int:
    if kind in _BITS:
        return _BITS[kind]
    width = _WIDTH.match(kind)  # s32, u4, f8e4m3fn, f4e2m1fn …: the width follows the letters
    return int(width[1]) if width else 0


class _Module:
    """What lines have to do with each other; worked out only where a collective asks."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sources = Sources(text)

    def computation_at(self, position: int) -> str:
        """The computation that a position of the text stands in."""
        end = self.text.rfind(" {\n", 0, position)
        match = _COMPUTATION.match(self.text, self.text.rfind("\n", 0, max(end, 0)) + 1)
        return match[1] if match and end >= 0 else ""

    @cached_property
    def _bodies(self) -> dict[str, str]:
        heads = list(_COMPUTATION.finditer(self.text))
        ends = [h.start() for h in heads[1:]] + [len(self.text)]
        return {h[1]: self.text[h.end() : e] for h, e in zip(heads, ends, strict=True)}

    @cached_property
    def loop_computations(self) -> frozenset[str]:
        """The computations that are reached from the body of a loop."""
        if " while(" not in self.text:
            return frozenset()
        todo, reached = set(_LOOP.findall(self.text)), set()
        while todo:
            name = todo.pop()
            reached.add(name)
            called = _CALLED.findall(self._bodies.get(name, ""))
            todo |= {c for c in called if c in self._bodies} - reached
        return frozenset(reached)

    @cached_property
    def async_computations(self) -> frozenset[str]:
        """The computations that a generic `async-start` wraps."""
        return frozenset(_ASYNC.findall(self.text) if " async-start(" in self.text else ())

    def result_shape(self, found: _Found) -> str:
        """The shape of the result. A start's own shape holds operands and contexts too."""
        if not found.started:
            return found.shape
        done = self.text.find(f"{found.kind}-done(%{found.name})")
        if done >= 0:
            line = self.text[self.text.rfind("\n", 0, done) + 1 : done]
            return _COMMENT.sub("", line.partition(" = ")[2])
        if found.kind == "all-reduce":
            return found.shape
        parts = [m[0] for m in _SHAPE.finditer(found.shape) if m[0] != "u32[]"]
        return ", ".join(parts[len(parts) // 2 :])

    def origin(self, found: _Found, computation: str) -> tuple[str, str]:
        """The operation and source line of a collective.

        Where the compiler wrote none on it, they are those of the nearest instruction that has
        them: the one that calls its fusion; for a sum the one that made its operand; else the one
        that reads its result.
        """
        op, source = self._read(found.line)
        if source and "/" in op:
            return op, source
        at = [found.start]
        if computation.startswith("all-reduce-scatter"):
            at += self._lines_with(f"calls=%{computation}", 0)
        for _ in range(4):  # further away it would be somebody else's line
            for near_op, near_source in map(self._read, map(self._line_at, at)):
                if near_source:
                    return (op if "/" in op else near_op), source or near_source
            at = self._around(at, found.kind)
        return op, source

    def _read(self, line: str) -> tuple[str, str]:
        op = _OP_NAME.search(line)
        return (op[1] if op else ""), self.sources.of(line)

    def _around(self, starts: list[int], kind: str) -> list[int]:
        makers = [m for start in starts for m in self._makers(start)]
        readers = [r for start in starts for r in self._readers(start)]
        sums = kind in ("all-reduce", "reduce-scatter")
        return makers + readers if sums else readers + makers

    def _makers(self, start: int) -> list[int]:
        operands = self._line_at(start).partition("(%")[2].partition(")")[0]
        names = _OPERAND.findall("%" + operands)[:3] if operands else []
        made = [self.text.rfind(f"%{name} = ", 0, start) for name in names]
        return [self.text.rfind("\n", 0, at) + 1 for at in made if at >= 0]

    def _readers(self, start: int) -> list[int]:
        head = _HEAD.match(self.text, start)
        return self._lines_with(head[1], head.end()) if head else []

    def _lines_with(self, name: str, after: int) -> list[int]:
        """Where the first two lines start that name something, from `after` on."""
        starts: list[int] = []
        at = self.text.find(name, after)
        while at >= 0 and len(starts) < 2:
            if self.text[at + len(name) : at + len(name) + 1] in (",", ")", " "):
                starts.append(self.text.rfind("\n", 0, at) + 1)
            at = self.text.find(name, at + 1)
        return starts

    def _line_at(self, start: int) -> str:
        end = self.text.find("\n", start)
        return self.text[start : end if end >= 0 else len(self.text)]
