"""Sentences about searches: the best candidate, and why it is preferred to another."""

from __future__ import annotations

from shardviz.advise.candidates import Candidate
from shardviz.advise.search import PlannedPoint, Preference, Search
from shardviz.advise.words.edits import edits_in_words
from shardviz.base.format import bytes_text, plural, seconds_text, told_apart
from shardviz.compiled.words.roofline import time_text

# Shown during a search for shardings or changes; `{}` is the way to interrupt it.
INTERRUPT = "{} ends the search and keeps its results"
TIME, MEMORY = "least time", "memory per device"
_ENDED = {
    "all compiled": "Every candidate that could fit was compiled.",
    "no better": "According to their plans, the other planned candidates are no better;"
    " plans are estimates.",
    "no room": "According to their plans, the other planned candidates need even more"
    " memory; plans are estimates.",
    "budget": "The compile budget is used up; other candidates may be better.",
    "seconds": "The time limit was reached; other candidates may be better.",
    "interrupted": "The search was interrupted; other candidates may be better.",
}


def candidate(fact: Candidate) -> str:
    """Describes a candidate: edits, least time and memory."""
    time, size = (
        seconds_text(fact.least_seconds),
        bytes_text(fact.peak_bytes or 0),
    )
    return f"{edits_in_words(fact.edits)}: at least {time}, {size} per device."


def search(fact: Search) -> str:
    """Describes the best candidate, and how much of the space was tried."""
    if not fact.compiled:
        planned_count = f"{plural(fact.planned, 'candidate')} planned, none compiled."
        return f"{planned_count} {_ENDED[fact.ended]}"
    best = (
        "No compiled candidate fits. With over=('remat', 'donate') the search also"
        " varies which values loops save and which arguments are donated."
    )
    if fact.best is not None:
        best = f"Best of {plural(fact.points, 'candidate')}: {candidate(fact.best)}"
    counts = f"{fact.planned:,} planned, {fact.compiled:,} compiled."
    return f"{best} {counts} {_ENDED[fact.ended]}"


PLANNED = "Planned candidates, the fewest bytes first:"


def planned(point: PlannedPoint) -> str:
    """Describes a planned point: edits, planned bytes and compiled bytes."""
    estimate = point.estimate
    words = (
        f"{edits_in_words(point.edits)}: {bytes_text(estimate.held)} of arguments and results,"
        f" {bytes_text(estimate.values)} for all values if none were freed, at least"
        f" {seconds_text(estimate.seconds)}"
    )
    if point.needed is not None:
        words += f"; compiled, it needs {bytes_text(point.needed)}"
    return f"{words}."


def preference(value: Preference) -> str:
    """Explains why a candidate is preferred, with a line for each part that differs."""
    lines = [candidate(value.first), candidate(value.second)]
    for row in value.rows:
        # An operation in every layer may have many source lines.
        where = f" ({', '.join(row.sources[:3])})" if row.sources else ""
        first, second = told_apart([row.seconds, row.other], time_text, 3)
        lines.append(f"{row.name}{where}: {first} instead of {second}")
    return "\n".join(lines)


SENTENCES = {Search: search, Preference: preference}
