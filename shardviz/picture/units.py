"""Numbers as people read them: bytes, seconds, counts."""

from __future__ import annotations

from shardviz.core.errors import bytes_text

__all__ = ["bytes_text", "count_text", "seconds_text"]


def seconds_text(seconds: float | None) -> str:
    """Seconds in the unit that reads best.

    >>> seconds_text(0.0123), seconds_text(2.5), seconds_text(3e-5), seconds_text(None)
    ('12 ms', '2.5 s', '30 µs', '–')
    >>> seconds_text(4.2e-7), seconds_text(0.0)
    ('420 ns', '0 ns')
    """
    if seconds is None:
        return "–"
    if seconds < 1e-6:
        return f"{seconds * 1e9:.0f} ns"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.1f} s"


def count_text(count: float) -> str:
    """A large count with a letter for its thousands.

    >>> count_text(950), count_text(12_500), count_text(3.2e9)
    ('950', '12.5 k', '3.2 G')
    """
    value, units = float(count), ["", " k", " M", " G", " T", " P"]
    while abs(value) >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.1f}".rstrip("0").rstrip(".") + units[0]
