"""Changes of a program: what each device sends after each, and what else it costs."""

from __future__ import annotations

from shardviz.advise.advice import Advice
from shardviz.advise.candidates import Candidate, Changes
from shardviz.advise.words.candidates import DROPPED, untried
from shardviz.advise.words.edits import edits_in_words
from shardviz.base.display import sentence
from shardviz.base.format import bytes_text, seconds_text
from shardviz.draw.page import paragraphs, sentences, titled
from shardviz.draw.picture import Picture
from shardviz.draw.tables import Bar, Table

_HEADS = ("sent per device", "memory", "least time", "change")


def draw_changes(found: Changes | Candidate, title: str | None = None) -> Picture:
    """Today's program and each change of it: a row of bytes, memory, time and edit."""
    rows: list[Bar] = []
    for one in found if isinstance(found, Changes) else (found,):
        if not rows:
            rows.append(_row(Candidate((), one.program, one.before, one.before)))
        rows.append(_row(one))
    lines = _lines(found)
    return Table(_HEADS, tuple(rows)).picture(
        title=titled(title, lines[0]),
        alt=sentences(lines),
    )


def _row(one: Candidate) -> Bar:
    memory = time = ""
    # The collectives of a program that does not fit are unknown.
    sent = None if one.report.collectives is None else one.bytes
    if one.peak_bytes is not None:
        memory = bytes_text(one.peak_bytes)
    if one.least_seconds is not None:
        time = seconds_text(one.least_seconds)
    words = (memory, time, edits_in_words(one.edits))
    return Bar(sent, "" if sent is None else bytes_text(sent), words)


def changes_text(found: Changes | Candidate, width: int) -> str:
    """All changes with their code, then what was tried and dropped."""
    return paragraphs(_lines(found), width)


def _lines(found: Changes | Candidate) -> list[str]:
    if isinstance(found, Candidate):
        return [sentence(found), *found.code().splitlines()]
    lines = [sentence(found)]
    for number, one in enumerate(found, 1):
        lines.append(f"{number}. {one.edit}")
        lines += [f"     {line}" for line in one.code().splitlines()]
    for fact in found.advice:
        lines.append(str(fact))
        if isinstance(fact, Advice):
            lines += [f"     {line}" for line in fact.code().splitlines()]
    if words := untried(found):
        lines.append(words)
    if found.refused:
        lines.append(DROPPED)
    return lines + [str(one) for one in found.refused]
