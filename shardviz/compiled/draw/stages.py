"""Draws a program's four stages, and the changes of collectives between two stages."""

from __future__ import annotations

from shardviz.base.collective import sent_in_all_text
from shardviz.base.format import bytes_text, seconds_text
from shardviz.compiled.comparison import Comparison
from shardviz.compiled.stages import Stage, Stages
from shardviz.compiled.words import stages as wording
from shardviz.draw.page import and_more, paragraphs, sentences, titled
from shardviz.draw.picture import Picture
from shardviz.draw.tables import HIGHLIGHTED, NORMAL, Bar, Table
from shardviz.plans.draw.plan import MOST_TEXT_LINES

MOST_CHANGES, MOST_MOVES = 40, 10
_TONES = {"added": "bad", "removed": "good"}
_HEADS = ("sent per device", "", "")


def draw_comparison(
    comparison: Comparison, limit: int = MOST_CHANGES, title: str | None = None
) -> Picture:
    """Draws every change between two stages: its bytes, its kind and its sentence.

    Args:
        comparison: the comparison.
        limit: the most changes to show; unchanged collectives come last.
        title: a title for the picture.
    """
    changes, rows = comparison.ordered, []
    for change in changes[:limit]:
        size = change.drawn_bytes
        words = (change.kind, str(change))
        tone = _TONES.get(change.kind, "")
        rows.append(Bar(size, bytes_text(size), words, tone=tone))
    return Table(_HEADS, tuple(rows)).picture(
        title=titled(
            title,
            f"From {comparison.before} to {comparison.after}: {comparison.short}",
        ),
        notes=and_more(len(changes) - limit, "change"),
        alt=sentences(str(comparison).splitlines()),
    )


def draw_stages(stages: Stages, title: str | None = None) -> Picture:
    """Draws each of the four stages: its time, totals and largest collectives.

    Each stage's line also names the changes since the previous stage.
    """
    rows: list[Bar] = []
    last: Stage | None = None
    for stage in stages.all:
        name, words = stage.name, [stage.sum or str(stage)]
        reached = stage.without_error
        if reached.seconds is not None:
            name += f", {seconds_text(reached.seconds)}"
        if last is not None and None not in (last.collectives, reached.collectives):
            words.append(stages.between(last.name, stage.name).short)
        rows.append(Bar(None, "", (name, "; ".join(words))))
        rows += _largest(reached)
        last = reached
    head = _head(stages)
    return Table(wording.STAGE_HEADS, tuple(rows)).picture(
        title=titled(title, head),
        alt=sentences([head, *str(stages).splitlines()]),
    )


def _largest(stage: Stage) -> list[Bar]:
    """Returns rows for a stage's largest collectives, and one row for the rest."""
    moves = sorted(stage.collectives or (), key=lambda c: -c.drawn_bytes)
    rows: list[Bar] = []
    for collective in moves[:MOST_MOVES]:
        look = HIGHLIGHTED if collective.rematerialises else NORMAL
        words = (collective.name_with_axes, collective.source)
        rows.append(
            Bar(collective.drawn_bytes, collective.amount, words, look, "muted")
        )
    omitted = moves[MOST_MOVES:]
    if omitted:
        size = sent_in_all_text(omitted)
        rows.append(
            Bar(
                sum(c.drawn_bytes for c in omitted),
                size,
                (f"{len(omitted):,} smaller",),
            )
        )
    return rows


def _head(stages: Stages) -> str:
    return f"{stages.program.name} on {stages.program.mesh}"


def stages_text(value: Stages | Comparison, width: int) -> str:
    """Formats stages, or the changes between two stages, with one sentence per line."""
    lines = str(value).splitlines()
    if isinstance(value, Stages):
        lines.insert(0, _head(value))
    return paragraphs(lines, width, MOST_TEXT_LINES)
