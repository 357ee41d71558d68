"""Changes that were tried, for the page: what each costs before and after."""

from __future__ import annotations

from shardviz.core.format import bytes_text
from shardviz.core.program.candidates import Candidate
from shardviz.core.program.report import needed_bytes
from shardviz.core.wording.roofline import time_text

TRYING = "Changes are being tried: each is compiled, and its values are compared."
NONE_FOUND = "No change that was tried helps."
EQUAL = {True: "values are equal", None: "values were not compared"}


def before_and_after(fact: Candidate) -> str:
    """What each device needs and takes at least, before and after."""
    known, parts = fact.before.roofline, []
    peaks = needed_bytes(fact.before.memory), fact.peak_bytes
    times = None if known is None else known.seconds, fact.least_seconds
    for name, pair, text in ("memory", peaks, bytes_text), ("time ≥", times, time_text):
        if None not in pair:
            # Once where nothing changes.
            both = dict.fromkeys(text(number) for number in pair)
            parts.append(f"{name} {' → '.join(both)}")
    return " · ".join(parts)
