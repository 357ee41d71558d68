"""Bytes and sizes of shapes as XLA writes them: `f32[8,16]{1,0}`, tuples, sub-byte types. Pure."""

from __future__ import annotations

import math
import re

SHAPE = re.compile(r"\b([a-z]\w*)\[([^\]]*)\]")

_BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "c64": 64, "c128": 128}
_WIDTH = re.compile(r"[a-z]+(\d+)")
_LAYOUT = re.compile(r"\{[^{}]*\}")


def shape_bytes(shape: str) -> int:
    """Bytes of a shape as XLA writes it; tuples are summed, sub-byte types packed.

    >>> shape_bytes("(f32[8,16]{1,0}, bf16[4])"), shape_bytes("s4[3]"), shape_bytes("pred[]")
    (520, 2, 1)
    """
    return sum((count(dims) * _bits(kind) + 7) // 8 for kind, dims in SHAPE.findall(shape))


def count(dims: str) -> int:
    """How many numbers a shape of these dimensions holds; a bound `<=10` counts in full.

    >>> count("8, 16"), count("<=10"), count("")
    (128, 10, 1)
    """
    return math.prod(int(d.strip().lstrip("<=")) for d in dims.split(",") if d.strip())


def without_layout(shape: str) -> str:
    """The shape without the order of its dimensions in memory.

    >>> without_layout("bf16[8,128]{1,0:T(8,128)(2,1)S(1)}")
    'bf16[8,128]'
    """
    return _LAYOUT.sub("", shape).strip()


def _bits(kind: str) -> int:
    if kind in _BITS:
        return _BITS[kind]
    width = _WIDTH.match(kind)  # s32, u4, f8e4m3fn, f4e2m1fn …: the width follows the letters
    return int(width[1]) if width else 0
