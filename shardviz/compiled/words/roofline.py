"""Sentences for a program's least times on given chips."""

from __future__ import annotations

from collections.abc import Mapping

from shardviz.axis_rules.words.fit import fit
from shardviz.base.format import by_count, joined, plural, told_apart
from shardviz.compiled.orders import DeviceOrder
from shardviz.compiled.roofline import Roofline, RooflineNote

PARTS = {"compute": "arithmetic", "memory": "memory", "collectives": "collectives"}

NOTES: Mapping[str, str] = {
    "least": "Least times use published rates and the smallest published latencies. Work that"
    " the compiler cannot overlap adds to them.",
    "no topology": "The coordinates of the devices are not known, so collectives are assumed"
    " to use all links of a chip at once.",
    "loops once": "XLA counts the body of a loop once, and there is no plan that counts all"
    " iterations.",
    "planned": "Counted from the plan, because XLA's own count is missing, or counts the body"
    " of a loop once.",
    "unknown trips": "The number of iterations of a loop is unknown, so only one is counted:"
    " the program may take longer.",
    "branches": "For each condition, only the most expensive branch is counted.",
    "ragged": "The bytes that a ragged exchange sends are known only when it runs.",
    "no groups": "The groups of devices of this collective are not known.",
    "no rate": "This rate is not published.",
    "no latency": "The latency is not published, so it is left out.",
}


def note(fact: RooflineNote) -> str:
    """States an assumption, or why a time is unknown, in one sentence."""
    return NOTES[fact.code]


def summary(fact: Roofline) -> str:
    """Summarises the least time and its parts, and whether the program fits."""
    words = f"The least time on {fact.where} is unknown."
    if fact.seconds is not None:
        parts = [f"{PARTS[name]} {time_text(s)}" for name, s in fact.parts.items()]
        if fact.latency_s:
            parts[-1] += f" ({time_text(fact.latency_s)} of it latency)"
        words = (
            f"At least {time_text(fact.seconds)} on {fact.where}: {', '.join(parts)}."
        )
    if fact.counts_loops_once:
        words += " Arithmetic and memory count one iteration of every loop."
    elif fact.has_unknown_trips:
        words += f" {NOTES['unknown trips']}"
    if fact.fit is not None and fact.fit.ok is not None:
        words += f" {fit(fact.fit)}"
    return words


def time_text(seconds: float, digits: int = 3) -> str:
    """Formats seconds with three digits, because users compare them with estimates.

    >>> time_text(5.5123e-5), time_text(0.0)
    ('55.1 µs', '0 ns')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.{digits}g} {unit}"
    return f"{seconds * 1e9:.{digits}g} ns"


def order(fact: DeviceOrder) -> str:
    """Compares the current device order with the best one."""
    least, current = told_apart([fact.least, fact.seconds], time_text, 3)
    gain = "all collectives would have a smaller least time"
    if least != current:
        gain = (
            f"the least time of all collectives would be {least} instead of {current}"
        )
    if fact.code == "slower":
        return f"With the devices in another order, {gain}."
    axes = by_count(
        len(fact.axes),
        "A collective over axis {} needs up to",
        "A collective over axes {} needs up to",
    )
    return (
        f"{axes.format(joined(fact.axes))} {plural(fact.hops, 'hop')} per send, but only"
        f" {fact.possible} in another order of the devices: {gain}."
    )


SENTENCES = {RooflineNote: note, Roofline: summary, DeviceOrder: order}
