"""Changes of a program: what each device sends after each, and what else it costs."""

from __future__ import annotations

from shardviz.core.display import sentence
from shardviz.core.format import bytes_text, seconds_text
from shardviz.core.program.candidates import Candidate, Changes
from shardviz.picture.page import paragraphs, sentences, titled
from shardviz.picture.picture import Picture
from shardviz.picture.tables import Bar, Table

_HEADS = ("sent per device", "memory", "least time", "change")


def draw_changes(found: Changes | Candidate, title: str | None = None) -> Picture:
    """Today's program and each change of it: a row of bytes, memory, time and edit."""
    candidates = found if isinstance(found, Changes) else (found,)
    rows = [_row(one) for one in candidates]
    if candidates:
        first = candidates[0]
        today = Candidate((), first.program, first.before, first.before)
        rows.insert(0, _row(today))
    lines = changes_lines(found)
    return Table(_HEADS, tuple(rows)).picture(
        title=titled(title, lines[0]),
        alt=sentences(lines),
        facts={"kind": "changes"},
    )


def _row(one: Candidate) -> Bar:
    memory = time = ""
    if one.peak_bytes is not None:
        memory = bytes_text(one.peak_bytes)
    if one.least_seconds is not None:
        time = seconds_text(one.least_seconds)
    words = "; ".join(map(str, one.edits)) or "today"
    return Bar(one.bytes, bytes_text(one.bytes), (memory, time, words))


def changes_lines(found: Changes | Candidate) -> list[str]:
    """What is changed, one line each, with its code."""
    if isinstance(found, Candidate):
        return [sentence(found), *found.code().splitlines()]
    lines = [sentence(found)]
    for number, one in enumerate(found, 1):
        lines.append(f"{number}. {one.edit}")
        lines += [f"     {line}" for line in one.code().splitlines()]
    lines += [str(one) for one in (*found.advice, *found.refused)]
    return lines


def changes_text(found: Changes | Candidate, width: int) -> str:
    """All changes with their code, then what was tried and dropped."""
    return paragraphs(changes_lines(found), width)
