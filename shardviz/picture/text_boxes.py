"""Box-drawn tables and wrapped lines: what texts of meshes and layouts are made of."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence

MOST_CELLS = 256
MOST_LINES = 64


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """`text` in lines no wider than `width` where blanks, and slashes of long paths, allow it.

    >>> wrapped("one two three", 8, "  ")
    ['one two', '  three']
    >>> wrapped("from jit(step)/transpose(jvp(layer))/dot_general", 24, "  ")
    ['from', '  jit(step)/', '  transpose(jvp(layer))/', '  dot_general']
    """
    lines = textwrap.wrap(
        text, max(width, 20) if width > 20 else width, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [part for line in lines for part in _path_lines(line, width, indent)]


def _path_lines(line: str, width: int, indent: str) -> list[str]:
    """A line that a long path makes too long, broken after slashes; addresses stay whole."""
    found = []
    while len(line) > width and "://" not in line:
        at = line.rfind("/", len(indent), width) + 1
        if at <= len(indent) or not line[at:].strip():
            break
        found.append(line[:at])
        line = indent + line[at:]
    return [*found, line]


def boxed(
    heads: Sequence[str],
    sides: Sequence[str],
    cells: Sequence[Sequence[str]],
    remarks: Sequence[str] = (),
    ruled: bool = False,
) -> list[str]:
    """A box-drawn table: heads on top, sides on the left, remarks on the right.

    >>> print("\\n".join(boxed(["x 0", "x 1"], ["y 0"], [["7", "8"]])))
          x 0   x 1
        ┌─────┬─────┐
    y 0 │ 7   │ 8   │
        └─────┴─────┘
    """
    columns = list(itertools.zip_longest(heads, *cells, fillvalue=""))
    widths = [max(len(v) for v in column) for column in columns]
    left = max([len(s) for s in sides], default=0) + 1 if any(sides) else 0

    def rule(start: str, middle: str, end: str) -> str:
        return " " * left + start + middle.join("─" * (w + 2) for w in widths) + end

    lines = []
    if any(heads):
        inner = " ".join(f" {h:<{w}} " for h, w in zip(heads, widths, strict=False))
        lines.append((" " * (left + 1) + inner).rstrip())
    lines.append(rule("┌", "┬", "┐"))
    for row, (side, texts) in enumerate(zip(sides, cells, strict=True)):
        if row and ruled:
            lines.append(rule("├", "┼", "┤"))
        full = [*texts, *[""] * (len(widths) - len(texts))]
        inner = "│".join(f" {t:<{w}} " for t, w in zip(full, widths, strict=True))
        remark = f" {remarks[row]}" if row < len(remarks) and remarks[row] else ""
        lines.append(f"{side:<{left}}│{inner}│{remark}")
    return [*lines, rule("└", "┴", "┘")]


def fits(lines: Sequence[str], width: int) -> bool:
    """Whether a box is narrow and short enough to be read.

    >>> fits(["abc"], 3), fits(["abc"], 2)
    (True, False)
    """
    return max(map(len, lines)) <= width and len(lines) <= MOST_LINES
