"""Text for the comparison of two states in the Explorer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Number = TypeVar("Number", bound=float)

NAMES = {
    "bytes": "bytes per device",
    "collectives": "collectives",
    "sent": "sent per step",
    "time": "least time",
    "memory": "memory",
}
#: Stage of the compared collectives -> tooltip.
STAGES = {
    "collectives": "As compiled",
    "partitioned": "As partitioned",
    "planned": "As planned, an estimate",
}
UNKNOWN = "–"


def pair(
    before: Number | None, after: Number | None, text: Callable[[Number], str]
) -> str:
    """Formats a number before and after a change; None means unknown.

    >>> pair(9, 6, str), pair(6, 6, str), pair(None, 6, str)
    ('9 → 6', '6', '– → 6')
    >>> pair(131072, 98304, "{} B".format)
    '131072 → 98304 B'
    """
    old, new = (UNKNOWN if n is None else text(n) for n in (before, after))
    if old == new:
        return old
    # If both have the same unit, write it once.
    number, _, unit = old.rpartition(" ")
    if number and new.endswith(f" {unit}"):
        old = number
    return f"{old} → {new}"


def change(difference: float, text: Callable[[Any], str]) -> str:
    """Formats the difference of two numbers, with its sign.

    >>> change(-3, str), change(2, str)
    ('−3', '+2')
    """
    sign = "−" if difference < 0 else "+"
    return sign + text(abs(difference))
