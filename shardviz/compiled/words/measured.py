"""Sentences for measured times."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from shardviz.base.format import plural
from shardviz.compiled.measured import Measured, MeasuredRow, NotMeasured
from shardviz.compiled.words.roofline import time_text

NOT_MEASURED: Mapping[str, str] = {
    "other profile": "Nothing was measured, because a profile of jax is already running:"
    " stop it, and run again.",
    "no events": "Nothing was measured: the profile has no operation of this program.",
    "hosts": "Nothing was measured: a run in several processes is not profiled.",
}
#: What the time of a collective includes.
WAITING = "The time of a collective includes waiting for the other devices."
# Devices differ noticeably if one takes this many times as long as another.
UNEVEN = 5.0


def summary(fact: Measured) -> str:
    """Summarises the busy time of a call, and how much of it only collectives took."""
    words = f"Measured in {plural(fact.calls, 'call')}:"
    busy = fact.busy_seconds.values()
    shortest, longest = min(busy), max(busy)
    if longest > UNEVEN * shortest:
        words += (
            f" the devices are busy from {time_text(shortest)} to {time_text(longest)} per"
            f" call, {time_text(fact.seconds)} in the median"
        )
    else:
        words += f" each device is busy {time_text(fact.seconds)} per call"
    exposed = statistics.median(fact.exposed_seconds.values())
    if any(row.part == "collective" for row in fact.rows):
        words += f", {time_text(exposed)} of it with collectives alone"
    words += "."
    if fact.joined_share < 0.9995:
        share = f"{1 - fact.joined_share:.1%}"
        words += f" {share} of the busy time belongs to no operation of the program."
    return words


def row(fact: MeasuredRow) -> str:
    """States the time of a row on its devices, and beside it the least time."""
    words = f"{time_text(fact.seconds)} per call"
    if fact.slowest > 1.05 * fact.fastest:
        words += f", from {time_text(fact.fastest)} to {time_text(fact.slowest)} across devices"
    if fact.least is not None:
        words += f"; least time {time_text(fact.least)}"
    if fact.hidden is not None:
        words += f"; {overlap(fact)}"
    return f"{words}."


def spread(fact: MeasuredRow) -> str:
    """Names the longest time of an operation if most devices take much less; else `""`.

    >>> spread(MeasuredRow("pure_callback", "op", 2e-6, 1e-6, 0.3, 1))
    'up to 300 ms on one device'
    """
    # A collective includes waiting, which differs in every run.
    if fact.part == "collective" or fact.slowest <= UNEVEN * fact.seconds:
        return ""
    return f"up to {time_text(fact.slowest)} on one device"


def overlap(fact: MeasuredRow) -> str:
    """Describes how much of a collective's time other operations cover.

    >>> overlap(MeasuredRow("all-gather", "collective", 1e-3, 1e-3, 1e-3, 1, hidden=0.25))
    '25 % hidden'
    """
    hidden = fact.hidden or 0.0
    if hidden < 0.005:
        return "exposed"
    if hidden > 0.995:
        return "hidden"
    return f"{100 * hidden:.0f} % hidden"


SENTENCES = {
    Measured: summary,
    MeasuredRow: row,
    NotMeasured: lambda fact: NOT_MEASURED[fact.code],
}
