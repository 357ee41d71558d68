"""Text that fits: its width in points, and lines broken to a width in points or in letters.

`text_width`, `shortened` and `broken` are for pictures and measure in points; `wrapped` and
`paragraphs` are for terminals and count letters.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

from shardviz.core.format import plural

# The letters from blank to tilde, two digits each: hundredths of the font's size. They are the
# advances of DejaVu Sans, a wide font and the one that comes with matplotlib, as it is drawn at
# 100 or 144 dots an inch, whichever is more: at few dots every letter is rounded to full ones.
_SANS = (
    "3643518868968132434356883640363668686868686868686868363688888856997572728068"
    "5981803434725989808164817268628072997264724336438856566468596864366868323264"
    "32996864686844564368648864645668366888"
)
_BOLD = (
    "4048568872999034484856884345434072727272727272727272434388888864998180808872"
    "7288884040816899888880888072748881998076764840488856567276647672447676373772"
    "37997672767651645176689668686476407688"
)
_OTHERS = {
    **dict.fromkeys("·‹›|", 0.4),
    **dict.fromkeys("–“”‘’", 0.57),
    **dict.fromkeys("…—@", 1.05),
    **dict.fromkeys("×→−✓✗↔", 0.89),
}
_MONO = 0.64
_LONG_WORD = 3  # words that are this many times too wide for a line are broken within


@lru_cache(maxsize=16384)
def text_width(text: str, size: float, mono: bool = False, bold: bool = False) -> float:
    """An upper bound of the width of one line of text, in points.

    >>> text_width("model 0", 9) < text_width("model 10", 9)
    True
    """
    if mono:
        return size * sum(_MONO if v.isascii() else max(_MONO, _other(v)) for v in text)
    table = _WIDTHS[bold]
    more = 1.15 if bold else 1.0
    return size * sum(table[ord(v) - 32] if " " <= v <= "~" else more * _other(v) for v in text)


def _table(digits: str) -> tuple[float, ...]:
    return tuple(int(digits[i : i + 2]) / 100 for i in range(0, len(digits), 2))


_WIDTHS = {False: _table(_SANS), True: _table(_BOLD)}


def _other(letter: str) -> float:
    if letter in _OTHERS:
        return _OTHERS[letter]
    return 1.2 if unicodedata.east_asian_width(letter) in "WF" else 0.97


def shortened(text: str, width: float, size: float, mono: bool = False) -> str:
    """`text`, shortened with an ellipsis where it is wider than `width` points.

    >>> shortened("a very long name", 50, 9)
    'a very l…'
    """
    if text_width(text, size, mono) <= width:
        return text
    while text and text_width(text + "…", size, mono) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def broken(
    text: str, width: float, size: float, most: int | None = None, indent: str = ""
) -> list[str]:
    """`text` in lines no wider than `width` points, broken at blanks; in long words, anywhere.

    Args:
        most: how many lines there may be; the last then ends with an ellipsis.
        indent: what precedes every line but the first.

    >>> broken("one two three", 40, 9), broken("a/long/path/without/blanks", 60, 9)
    (['one two', 'three'], ['a/long/path/', 'without/bla', 'nks'])
    >>> broken("one two three", 40, 9, most=1)
    ['one t…']
    """
    lines, rest = [], text
    while rest and (most is None or len(lines) + 1 < most):
        start = indent if lines else ""
        if text_width(start + rest, size) <= width:
            break
        at = _break(rest, width - text_width(start, size), size)
        lines.append(start + rest[:at].rstrip())
        rest = rest[at:].lstrip()
    return [*lines, shortened((indent if lines else "") + rest, width, size)] if rest else lines


def _break(text: str, width: float, size: float) -> int:
    """How many letters go into a line: up to a blank, or as many as fit where that is far off."""
    used, at = 0.0, 0
    for at, letter in enumerate(text):  # noqa: B007  used after the loop
        used += text_width(letter, size)
        if used > width:
            break
    blank = text.rfind(" ", 0, at + 1)
    return blank if blank > at // _LONG_WORD else max(at, 1)


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """`text` in lines of at most `width` letters where blanks, and slashes of long paths, allow it.

    >>> wrapped("one two three", 8, "  ")
    ['one two', '  three']
    >>> wrapped("from jit(step)/transpose(jvp(layer))/dot_general", 24, "  ")
    ['from', '  jit(step)/', '  transpose(jvp(layer))/', '  dot_general']
    """
    lines = textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [part for line in lines for part in _path_lines(line, width, indent)]


def _path_lines(line: str, width: int, indent: str) -> list[str]:
    """A line that a long path makes too long, broken after slashes; URLs stay in one line."""
    found = []
    while len(line) > width and "://" not in line:
        at = line.rfind("/", len(indent), width) + 1
        if at <= len(indent) or not line[at:].strip():
            break
        found.append(line[:at])
        line = indent + line[at:]
    return [*found, line]


def paragraphs(texts: Iterable[str], width: int, most: int | None = None) -> str:
    """Every line of some texts, wrapped, with its further lines indented.

    Args:
        most: how many lines to show; the rest are counted.

    >>> print(paragraphs(["one two three", "  four"], 8))
    one two
      three
      four
    """
    source, lines = "\n".join(texts).split("\n"), []
    if most is not None:
        source = [*source[:most], *and_more(len(source) - most, "line")]
    for line in source:
        indent = " " * (len(line) - len(line.lstrip()))
        lines += wrapped(line, width, indent + "  ") or [""]
    return "\n".join(lines)


def and_more(count: int, noun: str) -> list[str]:
    """The line that counts what is left out; none where that is nothing.

    >>> and_more(2, "array"), and_more(0, "array")
    (['and 2 more arrays'], [])
    """
    return [f"and {plural(count, f'more {noun}')}"] if count > 0 else []
