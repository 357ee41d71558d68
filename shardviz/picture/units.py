"""Numbers as people read them: bytes, seconds, ranges of ids."""

from __future__ import annotations

from collections.abc import Iterable


def bytes_text(count: float) -> str:
    """Bytes in binary units, at most four digits.

    >>> bytes_text(0), bytes_text(2097152), bytes_text(1536), bytes_text(5 << 40)
    ('0 B', '2 MiB', '1.5 KiB', '5 TiB')
    """
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.1f}".rstrip("0").rstrip(".") + f" {units[0]}"


def seconds_text(seconds: float | None) -> str:
    """Seconds in the unit that reads best.

    >>> seconds_text(0.0123), seconds_text(2.5), seconds_text(3e-5), seconds_text(None)
    ('12 ms', '2.5 s', '30 µs', '–')
    """
    if seconds is None:
        return "–"
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


def ranges_text(ids: Iterable[int]) -> str:
    """Ids with runs folded, none lost: `0–3, 8, 10–14 step 2`.

    >>> ranges_text([0, 1, 2, 3, 8, 10, 12, 14])
    '0–3, 8–14 step 2'
    """
    parts, run = [], []
    for value in ids:
        number = int(value)
        if len(run) >= 2 and number - run[-1] != run[1] - run[0]:
            parts += _fold(run) if len(run) > 2 else [str(run[0])]
            run = [number] if len(run) > 2 else [run[1], number]
        else:
            run.append(number)
    parts += _fold(run) if len(run) > 2 else [str(v) for v in run]
    return ", ".join(parts)


def _fold(run: list[int]) -> list[str]:
    step = run[1] - run[0]
    return [f"{run[0]}–{run[-1]}" + ("" if step == 1 else f" step {step}")]
