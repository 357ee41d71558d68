"""The least times of a program's parts as bars."""

from __future__ import annotations

from shardviz.core.program.costs.roofline import Bound, Roofline
from shardviz.picture.bars import FINE, ODD, Bar, bars
from shardviz.picture.compose import side_by_side
from shardviz.picture.shapes import Label, Picture
from shardviz.picture.units import bytes_text, count_text, seconds_text

MOST_ROWS = 30


def draw_roofline(found: Roofline, title: str | None = None, limit: int = MOST_ROWS) -> Picture:
    """What bounds a program: its arithmetic, its memory, each collective, the longest first.

    Args:
        title: `""` for none.
        limit: how many rows to show of the parts, and of the operations.

    >>> from shardviz.core.program.report import Report
    >>> from shardviz.core.program.costs.roofline import roofline
    >>> report = Report("f", "tpu:v5e:4x4", cost={"flops": 197e12})
    >>> draw_roofline(roofline(report, "tpu:v5e:4x4")).panels[0][2].tiles.tooltip(0)
    'compute: 1.0 s, bound by FLOP/s'
    """
    panels = [_rows(found.rows, "part of the program", limit)]
    if found.ops:
        panels.append(_rows(found.ops, "operation, before XLA fuses it", limit))
    notes = [Label(0, 0, found.words, "start", "note", "bad" if found.fits is False else "ink")]
    notes += [Label(0, 0, note, "start", "note") for note in found.notes]
    head = f"least times on {found.where}"
    return side_by_side(
        panels,
        title=head if title is None else title,
        notes=notes,
        alt=" ".join([f"{head}.", *(p.alt for p in panels), *(n.text for n in notes)]),
        width=1.0,
        facts={"kind": "roofline"},
    )


def amount_text(row: Bound) -> str:
    """What a row is about, in its own unit: `2 G flops`, `16 MiB × 12`.

    >>> amount_text(Bound("compute", "compute", 1.0, "FLOP/s", 2e9))
    '2 G flops'
    """
    text = f"{count_text(row.amount)} flops"
    if row.bound != "FLOP/s":
        text = bytes_text(int(row.amount))
    if row.trips is None:
        return f"{text} × ?"
    return f"{text} × {row.trips:,}" if row.trips > 1 else text


def _rows(rows: tuple[Bound, ...], what: str, limit: int) -> Picture:
    longest = max((r.seconds or 0.0 for r in rows), default=0.0)
    drawn = [
        Bar(
            row.seconds,
            seconds_text(row.seconds),
            (row.name, row.bound, amount_text(row), row.source or row.note),
            ODD if row.seconds and row.seconds == longest else FINE,
            hint=f"{row.name}: {seconds_text(row.seconds)}, bound by {row.bound or '–'}",
        )
        for row in rows[:limit]
    ]
    if len(rows) > limit:
        total = sum(r.seconds or 0.0 for r in rows[limit:])
        drawn.append(Bar(total, seconds_text(total), (f"{len(rows) - limit:,} shorter",)))
    if not drawn:
        drawn = [Bar(None, "nothing is known of its cost", ())]
    said = "; ".join(f"{r.name} {seconds_text(r.seconds)}" for r in rows[:limit]) or "none"
    return bars(drawn, ["least time", what, "bound by", "amount", "line"], alt=f"{said}.")
