"""How wide text is, near enough to leave room for it. Painters may use any plain font."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

_NARROW, _WIDE = frozenset("iljtfrI.,:;'|![]()/ ·"), frozenset("mwMW%@→…—✓✗")


@lru_cache(maxsize=4096)
def text_width(text: str, size: float, mono: bool = False, bold: bool = False) -> float:
    """The width of one line of text, in points, from above rather than from below.

    >>> text_width("model 0", 9) < text_width("model 10", 9)
    True
    """
    if mono:
        return 0.605 * size * len(text)
    units = sum(_units(letter) for letter in text)
    return units * size * (1.1 if bold else 1.0)


def _units(letter: str) -> float:
    if letter in _NARROW:
        return 0.36
    if letter in _WIDE:
        return 0.98
    if letter.isascii():
        return 0.7 if letter.isupper() else 0.64
    return 1.0 if unicodedata.east_asian_width(letter) in "WF" else 0.8


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
