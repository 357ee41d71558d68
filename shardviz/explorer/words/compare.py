"""What the Explorer calls the numbers of two states that it compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAMES = {
    "bytes": "bytes per device",
    "collectives": "collectives",
    "moved": "moved",
    "time": "least time",
    "memory": "memory",
}
#: Of which stage the collectives are.
STAGES = {
    "collectives": "As compiled",
    "partitioned": "As partitioned",
    "planned": "As planned, an estimate",
}
UNKNOWN = "–"


def pair(before: Any, after: Any, text: Callable[[Any], str]) -> str:
    """A number before and after; None where it is not known.

    >>> pair(9, 6, str), pair(6, 6, str), pair(None, 6, str)
    ('9 → 6', '6', '– → 6')
    >>> pair(131072, 98304, "{} B".format)
    '131072 → 98304 B'
    """
    one, other = (UNKNOWN if n is None else text(n) for n in (before, after))
    if one == other:
        return one
    # Of the same unit, it is said once.
    number, _, unit = one.rpartition(" ")
    if number and other.endswith(f" {unit}"):
        one = number
    return f"{one} → {other}"


def change(difference: Any, text: Callable[[Any], str]) -> str:
    """How much a number grew or shrank.

    >>> change(-3, str), change(2, str)
    ('−3', '+2')
    """
    sign = "−" if difference < 0 else "+"
    return sign + text(abs(difference))
