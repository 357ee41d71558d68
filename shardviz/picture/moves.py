"""Collectives in words: how much each time, how often, and in all."""

from __future__ import annotations

from shardviz.core.program.report import Collective
from shardviz.picture.units import bytes_text


def each_time(one: Collective) -> str:
    """The bytes of a collective on each device, and how often it runs where that is not once.

    >>> each_time(Collective("all-reduce", ("model",), 4096, trips=12))
    '4 KiB × 12'
    >>> each_time(Collective("all-reduce", ("model",), 4096, trips=None))
    '4 KiB × ?'
    """
    if one.trips == 1:
        return bytes_text(one.bytes_per_device)
    often = "?" if one.trips is None else f"{one.trips:,}"
    return f"{bytes_text(one.bytes_per_device)} × {often}"


def in_all(one: Collective) -> int:
    """The bytes of a collective on each device over all its turns; of an unknown number, once.

    >>> in_all(Collective("all-reduce", ("model",), 4096, trips=12))
    49152
    """
    return one.bytes_per_device * (1 if one.trips is None else one.trips)


def move_words(one: Collective) -> str:
    """A collective in a line: what, how much, over which axes, for which value and from where.

    >>> move_words(Collective("all-gather", ("data",), 512, source="f.py:3", value="dot", trips=4))
    'all-gather of 512 B × 4 over data for dot (f.py:3)'
    """
    over = f" over {' × '.join(one.mesh_axes)}" if one.mesh_axes else ""
    where = f" for {one.value}" if one.value else ""
    line = f" ({one.source})" if one.source else ""
    return f"{one.kind} of {each_time(one)}{over}{where}{line}"
