"""Draws changes of a program, with the bytes sent and the other costs of each."""

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


def draw_changes(changes: Changes | Candidate, title: str | None = None) -> Picture:
    """Draws the bytes, memory, time and edit of the original and of each change."""
    rows: list[Bar] = []
    for candidate in changes if isinstance(changes, Changes) else (changes,):
        if not rows:
            rows.append(
                _row(
                    Candidate((), candidate.program, candidate.before, candidate.before)
                )
            )
        rows.append(_row(candidate))
    lines = _lines(changes)
    return Table(_HEADS, tuple(rows)).picture(
        title=titled(title, lines[0]),
        alt=sentences(lines),
    )


def _row(candidate: Candidate) -> Bar:
    memory = time = ""
    # The collectives of a program that does not fit are unknown.
    sent = candidate.bytes if candidate.report.has("collectives") else None
    if candidate.peak_bytes is not None:
        memory = bytes_text(candidate.peak_bytes)
    if candidate.least_seconds is not None:
        time = seconds_text(candidate.least_seconds)
    words = (memory, time, edits_in_words(candidate.edits))
    return Bar(sent, "" if sent is None else bytes_text(sent), words)


def changes_text(changes: Changes | Candidate, width: int) -> str:
    """Lists all changes with their code, then the rejected changes."""
    return paragraphs(_lines(changes), width)


def _lines(changes: Changes | Candidate) -> list[str]:
    if isinstance(changes, Candidate):
        return [sentence(changes), *changes.code().splitlines()]
    lines = [sentence(changes)]
    for number, candidate in enumerate(changes, 1):
        lines.append(f"{number}. {candidate.edit}")
        lines += [f"     {line}" for line in candidate.code().splitlines()]
    for fact in changes.advice:
        lines.append(str(fact))
        if isinstance(fact, Advice):
            lines += [f"     {line}" for line in fact.code().splitlines()]
    if words := untried(changes):
        lines.append(words)
    if changes.refused:
        lines.append(DROPPED)
    return lines + [str(candidate) for candidate in changes.refused]
