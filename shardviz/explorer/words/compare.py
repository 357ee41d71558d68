"""Text for the comparison of two states in the Explorer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def pair(old: str, new: str) -> str:
    """Joins a number before and after a change; equal ones are written once.

    >>> pair("9", "6"), pair("6", "6"), pair("128 KiB", "96 KiB")
    ('9 → 6', '6', '128 → 96 KiB')
    """
    if old == new:
        return old
    # If both have the same unit, write it once.
    number, _, unit = old.rpartition(" ")
    if number and new.endswith(f" {unit}"):
        old = number
    return f"{old} → {new}"


def change(difference: float, text: Callable[[Any, int], str], digits: int) -> str:
    """Formats the difference of two numbers, with its sign.

    >>> from shardviz.base.format import bytes_text
    >>> change(-3, bytes_text, 1), change(2048, bytes_text, 1)
    ('−3 B', '+2 KiB')
    """
    sign = "−" if difference < 0 else "+"
    return sign + text(abs(difference), digits)
