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
    peaks = needed_bytes(fact.before.memory), fact.peak_bytes
    parts = []
    if peaks[0] is not None and peaks[1] is not None:
        parts.append(_pair("memory", *map(bytes_text, peaks)))
    known, after = fact.before.roofline, fact.least_seconds
    if after is not None and known is not None and known.seconds is not None:
        parts.append(_pair("time ≥", time_text(known.seconds), time_text(after)))
    return " · ".join(parts)


def _pair(name: str, *texts: str) -> str:
    # Once where nothing changes.
    return f"{name} {' → '.join(dict.fromkeys(texts))}"
