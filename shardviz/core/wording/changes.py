"""Changes that were tried, for the page: what each costs before and after."""

from __future__ import annotations

from shardviz.core.format import bytes_text
from shardviz.core.program.candidates import Candidate, sent_bytes
from shardviz.core.program.report import needed_bytes
from shardviz.core.wording.candidates import edits_in_words
from shardviz.core.wording.roofline import time_text

TRYING = "Changes are being tried: each is compiled, and its values are compared."
NONE_FOUND = "No change that was tried helps."
COMPARED = {
    True: "values are equal",
    False: "values differ",
    None: "values were not compared",
}


def edits(fact: Candidate) -> str:
    """What a candidate changes."""
    return f"{edits_in_words(fact.edits)}."


def before_and_after(fact: Candidate) -> str:
    """What each device sends, needs and takes at least, and what it was before."""
    before = fact.before
    least = None if before.roofline is None else before.roofline.seconds
    pairs = {
        "sent": (sent_bytes(before.collectives or ()), fact.bytes, bytes_text),
        "memory": (needed_bytes(before.memory), fact.peak_bytes, bytes_text),
        "least time": (least, fact.least_seconds, time_text),
    }
    parts = []
    for name, (old, new, text) in pairs.items():
        if old is not None and new is not None:
            same = text(old) == text(new)
            parts.append(
                f"{name} {text(new) if same else f'{text(old)} → {text(new)}'}"
            )
    return " · ".join(parts)
