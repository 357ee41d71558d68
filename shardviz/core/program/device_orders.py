"""Two meshes that hold the same devices in another order, as jax refuses them (jax#15903). Pure."""

from __future__ import annotations

import re

import numpy as np

from shardviz.core.errors import plural
from shardviz.core.program.hlo.sources import place_in_words

_IDS = re.compile(
    r"(?:Got |and )(?P<who>[^.]*?)(?: with shape \S+)?(?: and)?"
    r" with device ids \[(?P<ids>[\d, ]+)\]"
)
_PLACE = re.compile(r" at (\S+?):(\d+)(?::\d+)? \(")
MAX_SHOWN = 16


def device_orders(message: str) -> str | None:
    """What jax's refusal of two device orders means, in words; None for any other message.

    >>> print(device_orders(
    ...     "Received incompatible devices for jitted computation. Got argument x of f with shape"
    ...     " float32[4] and with device ids [0, 1, 2, 3] on platform CPU and sharding_constraint"
    ...     " inside jit with device ids [0, 2, 1, 3] on platform CPU at /home/me/f.py:3:1 (f)"
    ... ))
    Two meshes hold the same 4 devices in another order. argument x of f: 0, 1, 2, 3;
    sharding_constraint inside jit (f.py:3): 0, 2, 1, 3, which is the first order as 2 × 2,
    transposed. A program runs on one order of devices: make both meshes from one array of devices,
    or move the array first with jax.device_put.
    """
    if "incompatible devices" not in message:
        return None
    found = [(m["who"].strip(), _numbers(m["ids"])) for m in _IDS.finditer(message)]
    if len(found) != 2 or sorted(found[0][1]) != sorted(found[1][1]):
        return None
    (first, order), (second, other) = found
    place = _PLACE.search(message)
    where = f" ({place_in_words(place[1], place[2])})" if place else ""
    return (
        f"Two meshes hold the same {plural(len(order), 'device')} in another order. {first}:"
        f" {_shown(order)}; {second}{where}: {_shown(other)}{transposed(order, other)}. A program"
        " runs on one order of devices: make both meshes from one array of devices, or move the"
        " array first with jax.device_put."
    )


def transposed(order: list[int], other: list[int]) -> str:
    """How one order becomes the other by a transpose, in words; `""` where it does not.

    >>> transposed([0, 1, 2, 3, 4, 5], [0, 3, 1, 4, 2, 5])
    ', which is the first order as 2 × 3, transposed'
    """
    size = len(order)
    for rows in range(2, size // 2 + 1):
        grid = np.array(order).reshape(rows, -1) if size % rows == 0 else None
        if grid is not None and np.array_equal(grid.T.ravel(), other):
            return f", which is the first order as {rows} × {size // rows}, transposed"
    return ", which is the first order reversed" if order[::-1] == other else ""


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def _shown(ids: list[int]) -> str:
    more = f", … {len(ids) - MAX_SHOWN:,} more" if len(ids) > MAX_SHOWN else ""
    return ", ".join(map(str, ids[:MAX_SHOWN])) + more
