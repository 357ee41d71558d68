"""The four stages of a program, and what became of the collectives of one in another."""

from __future__ import annotations

from shardviz.base.format import bytes_text, seconds_text
from shardviz.compiled.comparison import Comparison, total_bytes
from shardviz.compiled.stages import Stage, Stages
from shardviz.draw.page import and_more, paragraphs, sentences, titled
from shardviz.draw.picture import Picture
from shardviz.draw.tables import HIGHLIGHTED, NORMAL, Bar, Table
from shardviz.plans.draw.plan import MOST_TEXT_LINES

MOST_CHANGES, MOST_MOVES = 40, 10
_TONES = {"added": "bad", "removed": "good"}
_HEADS = ("bytes per device", "", "")


def draw_comparison(
    found: Comparison, limit: int = MOST_CHANGES, title: str | None = None
) -> Picture:
    """Every change between two stages: its bytes, its kind and its words.

    Args:
        limit: how many changes to show; collectives that stay the same come last.
    """
    changes, rows = found.ordered, []
    for change in changes[:limit]:
        size = change.bytes_per_device
        words = (change.kind, str(change))
        tone = _TONES.get(change.kind, "")
        rows.append(Bar(size, bytes_text(size), words, tone=tone))
    return Table(_HEADS, tuple(rows)).picture(
        title=titled(title, f"From {found.before} to {found.after}: {found.short}"),
        notes=and_more(len(changes) - limit, "change"),
        alt=sentences(str(found).splitlines()),
    )


def draw_stages(found: Stages, title: str | None = None) -> Picture:
    """The four stages one below the other: time, sum, and the largest collectives.

    The line of a stage says what changed since the one before.
    """
    rows: list[Bar] = []
    last: Stage | None = None
    for stage in found.all:
        name, words = stage.name, [stage.sum or str(stage)]
        if stage.seconds is not None:
            name += f", {seconds_text(stage.seconds)}"
        if last is not None and None not in (last.collectives, stage.collectives):
            words.append(found.between(last.name, stage.name).short)
        rows.append(Bar(None, "", (name, "; ".join(words))))
        rows += _largest(stage)
        last = stage
    head = _head(found)
    return Table(_HEADS, tuple(rows)).picture(
        title=titled(title, head),
        alt=sentences([head, *str(found).splitlines()]),
    )


def _largest(stage: Stage) -> list[Bar]:
    """The largest collectives of a stage, and a row for the others."""
    moves = sorted(stage.collectives or (), key=lambda c: -c.bytes_in_all)
    rows = []
    for one in moves[:MOST_MOVES]:
        group = HIGHLIGHTED if one.rematerialises else NORMAL
        words = (one.name_with_axes, one.source)
        rows.append(Bar(one.bytes_in_all, one.amount, words, group))
    rest = moves[MOST_MOVES:]
    if rest:
        size = total_bytes(rest)
        rows.append(Bar(size, bytes_text(size), (f"{len(rest):,} smaller",)))
    return rows


def _head(found: Stages) -> str:
    return f"{found.program.name} on {found.program.mesh}"


def stages_text(found: Stages | Comparison, width: int) -> str:
    """Stages, or what changed between two of them, a sentence per line."""
    lines = str(found).splitlines()
    if isinstance(found, Stages):
        lines.insert(0, _head(found))
    return paragraphs(lines, width, MOST_TEXT_LINES)
