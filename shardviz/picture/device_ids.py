"""Device ids as short text that loses none: `0–62 step 2`, `0–1, 8–9 … 56–57`.

Ids keep their order. A dash runs from one id to another, `step` is their difference where it is
not 1, `…` continues the two entries before it up to the one after it, and round brackets hold what
repeats. `tests/picture/ids_reader.py` reads the ids back from any such text.
"""

from __future__ import annotations

import numpy as np

FEW = 4


def ids_text(ids: object, limit: int = 0) -> str:
    """Every id, with ranges where a pattern repeats.

    Args:
        ids: integers, in the order to list them.
        limit: in letters; 0 for none. Of `1 · 2 · 3`, the same in ranges and the number of
            devices, the text is the first that fits.

    >>> ids_text([0, 2, 4, 6]), ids_text(range(0, 64, 2)), ids_text([])
    ('0, 2, 4, 6', '0–62 step 2', 'no device')
    >>> ids_text([8 * i + j for i in range(8) for j in (0, 1)])
    '0–1, 8–9 … 56–57'
    >>> ids_text([0, 2, 4, 6], limit=16), ids_text(range(0, 64, 2), 16), ids_text([1, 5, 2] * 9, 16)
    ('0 · 2 · 4 · 6', '0–62 step 2', '27 devices')
    """
    array = np.asarray(ids, np.int64).reshape(-1)
    if not len(array):
        return "no device"
    if len(array) <= limit:
        spread = " · ".join(map(str, array.tolist()))
        if len(spread) <= limit:
            return spread
    ranges = _in_ranges(array)
    return f"{len(array):,} devices" if limit and len(ranges) > limit else ranges


def _in_ranges(ids: np.ndarray) -> str:
    if len(ids) <= FEW and not (len(ids) > 2 and (np.diff(ids) == 1).all()):
        return ", ".join(map(str, ids.tolist()))
    nest = _nest(ids)
    if nest is not None:
        return _nested_text(int(ids[0]), nest)
    return ", ".join(_runs(ids))


def _nest(ids: np.ndarray) -> list[tuple[int, int]] | None:
    """`(count, step)` from the innermost repeat outward, or None where the ids form no such nest.

    Ids in mesh order, or in the order of blocks, mostly do: they are mixed-radix numbers.
    """
    levels: list[tuple[int, int]] = []
    while len(ids) > 1:
        steps = np.diff(ids)
        breaks = np.flatnonzero(steps != steps[0])
        count = int(breaks[0]) + 1 if len(breaks) else len(ids)
        if count < 2 or len(ids) % count:
            return None
        rows = ids.reshape(-1, count)
        if (rows - rows[:, :1] != rows[0] - rows[0, 0]).any():
            return None
        levels.append((count, int(steps[0])))
        ids = rows[:, 0]
    return levels


def _nested_text(first: int, levels: list[tuple[int, int]]) -> str:
    if not levels:
        return str(first)
    *inner, (count, step) = levels
    if not inner:
        return _run_text(first, count, step)
    many = len(inner) > 1
    shown = range(count) if count <= 3 else (0, 1, count - 1)
    items = [_nested_text(first + i * step, inner) for i in shown]
    if many or (count > 3 and inner[0][0] == 2 and abs(inner[0][1]) != 1):
        items = [f"({item})" for item in items]
    if count <= 3:
        return ", ".join(items)
    return f"{items[0]}, {items[1]} … {items[2]}"


def _run_text(first: int, count: int, step: int) -> str:
    last = first + (count - 1) * step
    if count == 1:
        return str(first)
    if count == 2 and step != 1:
        return f"{first}, {last}"
    return f"{first}–{last}" + ("" if step == 1 else f" step {step}")


def _runs(ids: np.ndarray) -> list[str]:
    values, parts, at = ids.tolist(), [], 0
    while at < len(values):
        end = at + 1
        step = values[end] - values[at] if end < len(values) else 0
        while end < len(values) and values[end] - values[end - 1] == step:
            end += 1
        count = end - at
        if count < 3:  # two ids are no pattern: the second may open one
            count = 1
        parts.append(_run_text(values[at], count, step))
        at += count
    return parts
