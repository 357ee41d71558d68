"""Pictures of rungs: what became of every collective from one to another, and all four at once."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.core.errors import plural
from shardviz.core.program.report import Collective
from shardviz.core.program.rungs import Change, Comparison, Rung, Rungs
from shardviz.picture.compose import page
from shardviz.picture.measure import broken, shortened, text_width
from shardviz.picture.shapes import Frame, Label, Picture, Tiles, make_tiles, no_tiles
from shardviz.picture.units import bytes_text, seconds_text

MOST_CHANGES, MOST_MOVES = 40, 10
LONGEST, LEAST, THICK, PITCH, LINE = 90.0, 2.0, 9.0, 19.0, 12.5
KINDS_WIDE, WORDS_WIDE = 112.0, 640.0
COLUMN, BETWEEN, HEAD = 226.0, 26.0, 72.0
SAME, CHANGED, WORSE, BETTER = 0, 1, 2, 3  # groups: as it was, otherwise, more, less
_GROUPS = {"kept": SAME, "added": WORSE, "removed": BETTER}


def draw_comparison(
    found: Comparison, limit: int = MOST_CHANGES, title: str | None = None
) -> Picture:
    """Two rungs side by side: a row a change, with the bytes before and after, and its sentence.

    Args:
        limit: how many changes to show; what stayed as it was comes last.

    >>> from shardviz.core.program.rungs import compare
    >>> one = Collective("all-reduce", ("data",), 1024)
    >>> draw_comparison(compare([one], [])).tiles.tooltip(0)
    'partitioned: all-reduce over data, 1 KiB'
    """
    changes = _ordered(found.changes)
    head = f"From {found.before} to {found.after}: {found.short}"
    largest = max([_bytes(s) for c in changes for s in (c.before, c.after)], default=0) or 1
    starts = (0.0, KINDS_WIDE, KINDS_WIDE + LONGEST + 84, KINDS_WIDE + 2 * (LONGEST + 84))
    heads = ("", found.before, found.after, "what happened")
    labels = [Label(x, 5, h, "start", "tick") for x, h in zip(starts, heads, strict=True) if h]
    bars: list[_Bar] = []
    bottom = 16.0
    for change in changes[:limit]:
        y = bottom + PITCH / 2
        tone = {"added": "bad", "removed": "good"}.get(change.kind, "ink")
        labels.append(Label(0, y, change.kind, "start", "axis", tone))
        for x, side, name in zip(
            starts[1:], (change.before, change.after), heads[1:], strict=False
        ):
            made, words = _side(x, y, side, name, largest, _GROUPS.get(change.kind, CHANGED))
            bars += made
            labels.append(words)
        said = broken(change.words, WORDS_WIDE, 9.0)
        labels += [
            Label(starts[3], y + LINE * i, line, "start", "axis", "muted")
            for i, line in enumerate(said)
        ]
        bottom += PITCH + LINE * (len(said) - 1)
    left = len(changes) - limit
    return page(
        _tiles(bars),
        labels,
        title=head if title is None else title,
        notes=[*found.notes, *([f"and {plural(left, 'more change')}"] if left > 0 else [])],
        size=(starts[-1] + 60, max(bottom, 16 + PITCH)),
        alt=" ".join([f"{head}.", *found.notes, *(c.words for c in changes[:limit])]),
        hue="bars",
        groups=10,
        facts={"kind": "comparison"},
    )


def draw_rungs(found: Rungs, title: str | None = None) -> Picture:
    """The four rungs in four columns: time, sum, and the largest collectives of each.

    Over a column stands what changed since the one before it.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.program import Program
    >>> picture = draw_rungs(Rungs(Program(abs, (), make_mesh(data=2), name="f")))
    >>> [label.text for label in picture.labels if label.role == "mono"][:2]
    ['requested', 'propagated']
    """
    rungs = found.all
    largest = max([c.bytes_in_all for r in rungs for c in r.collectives or ()], default=0) or 1
    labels = _asked(found)
    bars: list[_Bar] = []
    frames: list[Frame] = []
    counts = [len(found.program.requests), *(len(r.collectives or ()) for r in rungs)]
    deepest = _depth(max(counts))
    for number, rung in enumerate(rungs):
        x = number * (COLUMN + BETWEEN)
        frames.append(
            Frame(x, 0, COLUMN, HEAD + deepest, dashed=bool(number) and rung.collectives is None)
        )
        labels += _rung_head(rung, x, _since(found, number))
        made, words = _rung_moves(rung, x, largest)
        bars, labels = [*bars, *made], [*labels, *words]
        if number:
            labels.append(Label(x - BETWEEN / 2, HEAD / 2 - 8, "→", "middle", "mono"))
    head = f"{found.program.name} on {found.program.mesh}"
    return page(
        _tiles(bars),
        labels,
        title=head if title is None else title,
        notes=[
            f"{rung.name}: {rung.words}"
            for rung in rungs
            if rung.collectives is None and _too_long(rung.words)
        ],
        frames=frames,
        size=(4 * COLUMN + 3 * BETWEEN, HEAD + deepest),
        alt=" ".join([f"The rungs of {head}.", *(line.strip() + "." for line in found.lines)]),
        hue="bars",
        groups=10,
        facts={"kind": "rungs"},
    )


_Bar = tuple[float, float, float, int, str]  # x, y of its middle, length, group, hint


def _tiles(bars: Sequence[_Bar]) -> Tiles:
    if not bars:
        return no_tiles()
    return make_tiles(
        [b[0] for b in bars],
        [b[1] - THICK / 2 for b in bars],
        [b[2] for b in bars],
        THICK,
        [b[3] for b in bars],
        hint=[b[4] for b in bars],
        radius=3.0,
    )


def _ordered(changes: Sequence[Change]) -> list[Change]:
    return sorted(changes, key=lambda c: (c.kind == "kept", -c.bytes_per_device))


def _bytes(side: Sequence[Collective]) -> int:
    return sum(c.bytes_in_all for c in side)


def _named(one: Collective) -> str:
    over = f" over {' × '.join(one.mesh_axes)}" if one.mesh_axes else ""
    return f"{one.kind}{over}, {one.amount}"


def _side(
    x: float, y: float, side: Sequence[Collective], rung: str, largest: int, group: int
) -> tuple[list[_Bar], Label]:
    """One side of a change: a bar of its bytes, and how many of what."""
    if not side:
        return [], Label(x, y, "–", "start", "axis", "muted")
    size = _bytes(side)
    length = max(LEAST, LONGEST * size / largest)
    many = f"{len(side)} × " if len(side) > 1 else ""
    hint = f"{rung}: " + "; ".join(_named(c) for c in side[:MOST_MOVES])
    words = Label(x + length + 6, y, f"{many}{bytes_text(size)}", "start", "axis", "ink")
    return [(x, y, length, group, hint)], words


def _since(found: Rungs, number: int) -> str:
    """What changed since the rung before; `""` where one of the two is not known."""
    if not number:
        return ""
    before, after = found.all[number - 1], found.all[number]
    if before.collectives is None or after.collectives is None:
        return ""
    return found.between(before.name, after.name).short


def _rung_head(rung: Rung, x: float, since: str) -> list[Label]:
    time = "" if rung.seconds is None else seconds_text(rung.seconds)
    known = rung.collectives is not None
    labels = [Label(x + 8, 12, rung.name, "start", "mono")]
    if time:
        labels.append(Label(x + COLUMN - 8, 12, time, "end", "tick"))
    lines = broken(rung.sum if known else rung.words, COLUMN - 16, 9.0, 2)
    tone = "ink" if known else "muted"
    labels += [
        Label(x + 8, 28 + 13 * i, text, "start", "axis", tone) for i, text in enumerate(lines)
    ]
    if since:
        y = 28 + 13 * len(lines) + 1
        labels.append(Label(x + 8, y, shortened(since, COLUMN - 16, 8.5), "start", "note"))
    return labels


def _too_long(words: str) -> bool:
    """Whether a column cannot hold what is said of a rung; it then stands below all of them."""
    return len(broken(words, COLUMN - 16, 9.0)) > 2


def _depth(count: int) -> float:
    """The room that so many rows take, and the line that counts the others."""
    return PITCH * (min(count, MOST_MOVES) + (count > MOST_MOVES)) + (6 if count else 0)


def _asked(found: Rungs) -> list[Label]:
    """The arrays of a program as they were asked for."""
    labels = []
    for row, asked in enumerate(found.program.requests[:MOST_MOVES]):
        y = HEAD + PITCH * row + PITCH / 2
        name = shortened(asked.array.name, 84.0, 9.0, mono=True)
        said = "✗" if asked.layout is None else str(asked.spec)
        labels += [
            Label(8, y, name, "start", "mono"),
            Label(98, y, shortened(said, COLUMN - 106, 8.0), "start", "tick"),
        ]
    left = len(found.program.requests) - MOST_MOVES
    if left > 0:
        y = HEAD + PITCH * MOST_MOVES + PITCH / 2
        labels.append(Label(8, y, f"and {left:,} more", "start", "note"))
    return labels


def _rung_moves(rung: Rung, x: float, largest: int) -> tuple[list[_Bar], list[Label]]:
    moves = sorted(rung.collectives or (), key=lambda c: -c.bytes_in_all)
    bars, labels = [], []
    for row, one in enumerate(moves[:MOST_MOVES]):
        y = HEAD + PITCH * row + PITCH / 2
        length = max(LEAST, 44.0 * one.bytes_in_all / largest)
        group = WORSE if one.rematerialises else SAME
        bars.append((x + 8, y, length, group, f"{rung.name}: {_named(one)}"))
        size = one.amount
        labels.append(Label(x + 58, y, size, "start", "axis", "ink"))
        over = f" {' × '.join(one.mesh_axes)}" if one.mesh_axes else ""
        start = 58 + max(52.0, text_width(size, 9.0) + 8)
        words = shortened(f"{one.kind}{over}", COLUMN - start - 6, 8.0)
        labels.append(Label(x + start, y, words, "start", "tick"))
    if len(moves) > MOST_MOVES:
        y = HEAD + PITCH * MOST_MOVES + PITCH / 2
        labels.append(Label(x + 8, y, f"and {len(moves) - MOST_MOVES:,} smaller", "start", "note"))
    return bars, labels
