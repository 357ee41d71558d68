"""How wide text is, near enough to leave room for it. Painters may use any plain font."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

# The letters from blank to tilde, two digits each: hundredths of the font's size. They are the
# advances of DejaVu Sans, a wide font and the one that comes with matplotlib, as it is drawn at
# 100 or 144 dots an inch, whichever is more: at few dots every letter is rounded to whole ones.
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
_BREAKS = 3  # words that are this many times too wide for a line are cut within


@lru_cache(maxsize=16384)
def text_width(text: str, size: float, mono: bool = False, bold: bool = False) -> float:
    """The width of one line of text, in points, from above rather than from below.

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
    """`text`, cut with an ellipsis where it is wider than `width` points.

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
        indent: what stands before every line but the first.

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
    room, at = 0.0, 0
    for at, letter in enumerate(text):  # noqa: B007  used after the loop
        room += text_width(letter, size)
        if room > width:
            break
    blank = text.rfind(" ", 0, at + 1)
    return blank if blank > at // _BREAKS else max(at, 1)
