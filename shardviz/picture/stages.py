"""The four stages of a program, and what became of the collectives of one in another."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.core.format import bytes_text, seconds_text
from shardviz.core.program.comparison import Comparison
from shardviz.core.program.report import Collective
from shardviz.core.program.stages import Stage, Stages
from shardviz.picture.page import (
    and_more,
    broken,
    page,
    paragraphs,
    sentences,
    shortened,
    text_width,
    titled,
)
from shardviz.picture.picture import Frame, Label, Picture
from shardviz.picture.plan import MOST_TEXT_LINES
from shardviz.picture.tables import (
    LINE,
    Rectangle,
    column_heads,
    lines_at,
    rectangle_tiles,
)

MOST_CHANGES, MOST_MOVES = 40, 10
# Points: the longest and the shortest bar, their height, and from one row to the next.
LONGEST, SHORT, LEAST, THICK, PITCH = 90.0, 44.0, 2.0, 9.0, 19.0
KINDS_WIDE, SIDE_WIDE, WORDS_WIDE = 112.0, LONGEST + 84, 640.0
COLUMN, BETWEEN, HEAD = 226.0, 26.0, 72.0
SAME, CHANGED, WORSE, BETTER = 0, 1, 2, 3  # groups
_GROUPS = {"kept": SAME, "added": WORSE, "removed": BETTER}
_TONES = {"added": "bad", "removed": "good"}


def draw_comparison(
    found: Comparison, limit: int = MOST_CHANGES, title: str | None = None
) -> Picture:
    """Two stages side by side: a row per change, bytes before and after, and its words.

    Args:
        limit: how many changes to show; collectives that stay the same come last.
    """
    changes = found.ordered
    largest = 1
    for change in changes:
        largest = max(largest, _bytes(change.before), _bytes(change.after))
    starts = [0.0]
    for width in (KINDS_WIDE, SIDE_WIDE, SIDE_WIDE):
        starts.append(starts[-1] + width)
    labels = column_heads(starts, ("", found.before, found.after, "what happened"))
    bars: list[Rectangle] = []
    bottom = 16.0
    for change in changes[:limit]:
        y, tone = bottom + PITCH / 2, _TONES.get(change.kind, "text")
        labels.append(Label(0, y, change.kind, "start", "axis", tone))
        group = _GROUPS.get(change.kind, CHANGED)
        sides = ((found.before, change.before), (found.after, change.after))
        for x, (stage, side) in zip(starts[1:], sides, strict=False):
            if not side:
                labels.append(Label(x, y, "–", "start", "axis", "muted"))
                continue
            size = _bytes(side)
            length = max(LEAST, LONGEST * size / largest)
            hint = f"{stage}: {'; '.join(map(_named, side[:MOST_MOVES]))}"
            bars.append(Rectangle(x, y - THICK / 2, length, THICK, group, hint))
            text = bytes_text(size)
            if len(side) > 1:
                text = f"{len(side)} × {text}"
            labels.append(Label(x + length + 6, y, text, "start", "axis", "text"))
        lines = broken(str(change), WORDS_WIDE, 9.0)
        labels += lines_at(starts[3], y, lines, "muted")
        bottom += PITCH + LINE * (len(lines) - 1)
    return page(
        rectangle_tiles(bars, radius=3.0),
        labels,
        title=titled(title, f"From {found.before} to {found.after}: {found.short}"),
        notes=and_more(len(changes) - limit, "change"),
        size=(starts[-1] + 60, max(bottom, 16 + PITCH)),
        alt=sentences(str(found).splitlines()),
        colormap="bars",
        groups=10,
        facts={"kind": "comparison"},
    )


def draw_stages(found: Stages, title: str | None = None) -> Picture:
    """The four stages in four columns: time, sum, and the largest collectives of each.

    The head of a column says what changed since the stage before.
    """
    largest, rows, notes = 1, len(found.program.requests), []
    for stage in found.all:
        moves = stage.collectives or ()
        rows = max(rows, len(moves))
        largest = max([largest, *(c.bytes_in_all for c in moves)])
        # What does not fit into the head of its column is said in full below.
        if stage.collectives is None and len(_lines(str(stage))) > 2:
            notes.append(f"{stage.name}: {stage}")
    height = HEAD + PITCH * min(rows, MOST_MOVES) + 6 * (rows > 0)
    if rows > MOST_MOVES:  # a line counts the others
        height += PITCH
    labels = _requested(found)
    bars: list[Rectangle] = []
    frames = []
    for number, stage in enumerate(found.all):
        x, unknown = number * (COLUMN + BETWEEN), stage.collectives is None
        frames.append(Frame(x, 0, COLUMN, height, dashed=number > 0 and unknown))
        labels += _stage_head(stage, x, _since(found, number))
        _add_collectives(stage, x, largest, bars, labels)
        if number:
            labels.append(Label(x - BETWEEN / 2, HEAD / 2 - 8, "→", "middle", "mono"))
    head = _head(found)
    return page(
        rectangle_tiles(bars, radius=3.0),
        labels,
        title=titled(title, head),
        notes=notes,
        frames=frames,
        size=(4 * COLUMN + 3 * BETWEEN, height),
        alt=sentences([head, *str(found).splitlines()]),
        colormap="bars",
        groups=10,
        facts={"kind": "stages"},
    )


def _head(found: Stages) -> str:
    return f"{found.program.name} on {found.program.mesh}"


def _bytes(side: Sequence[Collective]) -> int:
    return sum(c.bytes_in_all for c in side)


def _named(one: Collective) -> str:
    return f"{one.kind}{one.over}, {one.amount}"


def _lines(words: str, most: int | None = None) -> list[str]:
    return broken(words, COLUMN - 16, 9.0, most)


def _since(found: Stages, number: int) -> str:
    """What changed since the stage before; `""` where one of the two is not known."""
    if not number:
        return ""
    before, after = found.all[number - 1], found.all[number]
    if before.collectives is None or after.collectives is None:
        return ""
    return found.between(before.name, after.name).short


def _stage_head(stage: Stage, x: float, since: str) -> list[Label]:
    labels = [Label(x + 8, 12, stage.name, "start", "mono")]
    if stage.seconds is not None:
        time = seconds_text(stage.seconds)
        labels.append(Label(x + COLUMN - 8, 12, time, "end", "tick"))
    words, tone = stage.sum, "text"
    if stage.collectives is None:
        words, tone = str(stage), "muted"
    y = 28
    for line in _lines(words, 2):
        labels.append(Label(x + 8, y, line, "start", "axis", tone))
        y += 13
    if since:
        text = shortened(since, COLUMN - 16, 8.5)
        labels.append(Label(x + 8, y + 1, text, "start", "note"))
    return labels


def _requested(found: Stages) -> list[Label]:
    """The arrays of a program with the specs that were requested."""
    labels, y = [], HEAD + PITCH / 2
    requests = found.program.requests
    for request in requests[:MOST_MOVES]:
        name = shortened(request.array.name, 84.0, 9.0, mono=True)
        spec = "✗"
        if request.layout is not None:
            spec = str(request.spec)
        labels.append(Label(8, y, name, "start", "mono"))
        spec = shortened(spec, COLUMN - 106, 8.0)
        labels.append(Label(98, y, spec, "start", "tick"))
        y += PITCH
    left = len(requests) - MOST_MOVES
    if left > 0:
        labels.append(Label(8, y, f"and {left:,} more", "start", "note"))
    return labels


def _add_collectives(
    stage: Stage, x: float, largest: int, bars: list[Rectangle], labels: list[Label]
) -> None:
    """Adds the bars and the words of the largest collectives of a stage."""
    moves = sorted(stage.collectives or (), key=lambda c: -c.bytes_in_all)
    y = HEAD + PITCH / 2
    for one in moves[:MOST_MOVES]:
        length = max(LEAST, SHORT * one.bytes_in_all / largest)
        group = SAME
        if one.rematerialises:
            group = WORSE
        hint = f"{stage.name}: {_named(one)}"
        bars.append(Rectangle(x + 8, y - THICK / 2, length, THICK, group, hint))
        labels.append(Label(x + 58, y, one.amount, "start", "axis", "text"))
        start = 58 + max(52.0, text_width(one.amount, 9.0) + 8)
        words = f"{one.kind}{one.over.removeprefix(' over')}"
        words = shortened(words, COLUMN - start - 6, 8.0)
        labels.append(Label(x + start, y, words, "start", "tick"))
        y += PITCH
    left = len(moves) - MOST_MOVES
    if left > 0:
        labels.append(Label(x + 8, y, f"and {left:,} smaller", "start", "note"))


def stages_text(found: Stages | Comparison, width: int) -> str:
    """Stages, or what changed between two of them, a sentence per line."""
    lines = str(found).splitlines()
    if isinstance(found, Stages):
        lines.insert(0, _head(found))
    return paragraphs(lines, width, MOST_TEXT_LINES)
