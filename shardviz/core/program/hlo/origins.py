"""Where a collective comes from: jax's operation, the user's line, and the calls that led to it.

Compilers drop this from some of the instructions that they make. Then it is read off the nearest
instruction that has it. Pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from shardviz.core.program.hlo.module import Module, operands
from shardviz.core.program.hlo.sources import Sources

_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_FURTHEST = 4  # further away it would be somebody else's line


class Origin(NamedTuple):
    """Where an instruction comes from.

    Attributes:
        op: as jax names it, `jit(f)/dot_general`.
        source: the user's file and line.
        stack: every frame of the user's code, innermost first.
    """

    op: str
    source: str
    stack: tuple[str, ...]


def origin(module: Module, sources: Sources, start: int, kind: str, computation: str) -> Origin:
    """Where the collective comes from that stands at `start`.

    Where the compiler wrote nothing on it, it is the nearest instruction that says: the one that
    calls its fusion; for a sum the one that made its operand; else the one that reads its result.
    """
    own = _read(module, sources, start)
    if own.source and "/" in own.op:
        return own
    at = [start]
    at += [c.start for c in module.calls.get(computation, []) if c.attribute == "calls"][:2]
    for _ in range(_FURTHEST):
        for near in (_read(module, sources, place) for place in at):
            if near.source:
                op = own.op if "/" in own.op else near.op
                return own._replace(op=op) if own.source else near._replace(op=op)
        at = _around(module, at, kind)
    return own


def _read(module: Module, sources: Sources, start: int) -> Origin:
    line = module.line_at(start)
    op = _OP_NAME.search(line)
    stack = sources.stack_of(line)
    return Origin(op[1] if op else "", stack[0] if stack else "", stack)


def _around(module: Module, starts: list[int], kind: str) -> list[int]:
    makers = [m for start in starts for m in _makers(module, start)]
    readers = [r for start in starts for r in module.users(start)]
    sums = kind in ("all-reduce", "reduce-scatter")
    return makers + readers if sums else readers + makers


def _makers(module: Module, start: int) -> list[int]:
    begin, _ = module.span_at(start)
    names = [o.name for o in operands(module.line_at(start))[:3]]
    made = [module.text.rfind(f"%{name} = ", begin, start) for name in names]
    return [module.line_start(at) for at in made if at >= 0]
