"""What a search found, and why one candidate and not another."""

from __future__ import annotations

from shardviz.advise.candidates import Candidate
from shardviz.advise.search import PlannedPoint, Preference, Search
from shardviz.advise.words.edits import edits_in_words
from shardviz.base.format import bytes_text, seconds_text

TIME, MEMORY = "minimum time", "memory per device"
_ENDED = {
    "all compiled": "Every one that could fit was compiled.",
    "no better": "The plans of all others promise nothing better, which is no proof.",
    "no room": "By their plans all others need more memory still, which is no proof.",
    "budget": "The budget of compiles is used up; others may be better.",
    "seconds": "The time was over; others may be better.",
    "interrupted": "It was interrupted; others may be better.",
}


def candidate(one: Candidate) -> str:
    """What a candidate changes, its least time and its memory."""
    time, size = seconds_text(one.least_seconds), bytes_text(one.peak_bytes or 0)
    return f"{edits_in_words(one.edits)}: at least {time}, {size} per device."


def search(found: Search) -> str:
    """What the best is, and how far the search came."""
    best = "Nothing was compiled."
    if found.compiled:
        best = (
            "Nothing that was compiled fits. over=('remat', 'donate') also varies what"
            " loops save, and which arguments are donated."
        )
    if found.best is not None:
        best = f"Best of {found.points:,}: {candidate(found.best)}"
    counts = f"{found.planned:,} planned, {found.compiled:,} compiled."
    return f"{best} {counts} {_ENDED[found.ended]}"


PLANNED = "Planned, the fewest bytes first:"


def planned(point: PlannedPoint) -> str:
    """What a planned point changes, and its bytes: of its plan, and of its compile."""
    known = point.estimate
    words = (
        f"{edits_in_words(point.edits)}: {bytes_text(known.held)} of arguments and results,"
        f" {bytes_text(known.values)} of all values as if none were freed, at least"
        f" {seconds_text(known.seconds)}"
    )
    if point.needed is not None:
        words += f"; compiled, it needs {bytes_text(point.needed)}"
    return f"{words}."


def preference(value: Preference) -> str:
    """Why one candidate and not another, a line for each part that differs."""
    lines = [candidate(value.first), candidate(value.second)]
    for row in value.rows:
        # An operation of every layer has many lines.
        where = f" ({', '.join(row.sources[:3])})" if row.sources else ""
        times = f"{seconds_text(row.seconds)} instead of {seconds_text(row.other)}"
        lines.append(f"{row.name}{where}: {times}")
    return "\n".join(lines)


SENTENCES = {Search: search, Preference: preference}
