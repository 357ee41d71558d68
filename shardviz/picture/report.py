"""Reports and audits as bars: bytes per device, seconds, collectives, least times."""

from __future__ import annotations

from shardviz.core.format import bytes_text, count_text, plural, seconds_text
from shardviz.core.layout.audit import Audit
from shardviz.core.layout.request import Request
from shardviz.core.program.report import Check, Collective, Report
from shardviz.core.program.roofline import Bound, Roofline
from shardviz.picture.page import broken, page, side_by_side
from shardviz.picture.picture import Label, Picture, no_tiles
from shardviz.picture.tables import FINE, ODD, Bar, bars

MOST_ROWS = 40
WIDE = 700.0  # longer sentences take several lines
MARKS = {True: "✓", False: "✗", None: "–"}
_TONES = {True: "good", False: "bad", None: "muted"}


def draw_audit(found: Audit, limit: int = MOST_ROWS, title: str | None = None) -> Picture:
    """What every array takes on each device, the largest first; then those that do not work out.

    Args:
        limit: how many rows to show; the rest become one.

    >>> from shardviz.core.layout.audit import audit
    >>> found = audit([("w", (512, 2048), "embed mlp")], [("mlp", "model")], "data=4, model=2")
    >>> draw_audit(found).tiles.tooltip(0)
    "2 MiB w f32[512, 2048] P(None, 'model')"
    """
    broken = [r for r in found.rows if r.layout is None]
    rows = [_array_bar(r, found.mesh.size) for r in found.largest[:limit]]
    rest = found.largest[limit:]
    if rest:
        total = sum(r.layout.bytes_per_device for r in rest if r.layout is not None)
        rows.append(Bar(total, bytes_text(total), (f"{plural(len(rest), 'smaller array')}",)))
    rows += [
        Bar(None, "✗", (r.array.name, r.array.short, r.problem or ""), tone="bad")
        for r in broken[:limit]
    ]
    heads = ["bytes a device", "array", "type and shape", "spec"]
    total = f"{bytes_text(found.bytes_per_device)} on each device"
    odd = any(b.group == ODD for b in rows)
    return bars(
        rows,
        heads,
        title=f"{plural(len(found.rows), 'array')} on {found.mesh}: {total}"
        if title is None
        else title,
        legend=((FINE, "split"), (ODD, "whole on every device")) if odd else (),
        notes=[f"and {plural(len(broken) - limit, 'more array')} cannot be laid out"]
        if len(broken) > limit
        else [],
        alt=found.explain(),
        facts={"kind": "audit"},
    )


def _array_bar(row: Request, devices: int) -> Bar:
    layout = row.layout
    assert layout is not None  # `largest` has only rows that are laid out
    whole = layout.num_blocks == 1 and devices > 1
    return Bar(
        layout.bytes_per_device,
        bytes_text(layout.bytes_per_device),
        (row.array.name, row.array.short, str(row.spec)),
        ODD if whole else FINE,
    )


def draw_report(report: Report, title: str | None = None) -> Picture:
    """What one compile or run did: its stages, its collectives, its checks.

    >>> picture = draw_report(Report("f", "cpu × 8", lower_s=0.01, compile_s=0.2))
    >>> picture.panels[0][2].tiles.tooltip(1)
    'compile 200 ms'
    """
    state = "failed" if report.error else "ok" if report.ok else "a check failed"
    stale = " (stale)" if report.stale else ""
    panels = [_stages(report)]
    if report.collectives is not None:
        panels.append(draw_collectives(report.collectives))
    if report.checks:
        panels.append(_checks(report.checks))
    notes = [Label(0, 0, t, "start", "note") for t in report_notes(report)]
    if report.error:
        notes.insert(0, Label(0, 0, f"✗ {report.error}", "start", "note", "bad"))
    head = f"{report.program} on {report.target}: {state}{stale}"
    return side_by_side(
        panels,
        title=head if title is None else title,
        notes=notes,
        alt=" ".join([f"{head}.", *(p.alt for p in panels), *(n.text + "." for n in notes)]),
        width=1.0,
        facts={"kind": "report"},
    )


def stage_seconds(report: Report) -> list[tuple[str, float]]:
    """The stages that happened, each with its seconds.

    >>> stage_seconds(Report("f", "cpu", lower_s=0.5))
    [('lower', 0.5)]
    """
    stages = (
        ("lower", report.lower_s),
        ("compile", report.compile_s),
        ("place", report.place_s),
        ("run", report.run_s),
    )
    return [(name, s) for name, s in stages if s is not None]


def _stages(report: Report) -> Picture:
    stages = stage_seconds(report)
    rows = []
    for name, seconds in stages:
        word = "from the cache" if name == "compile" and report.cache_hit else ""
        if name == "run" and len(report.runs_s) > 1:
            word = f"median of {len(report.runs_s)}"
        text = seconds_text(seconds)
        rows.append(Bar(seconds, text, (name, word), hint=f"{name} {text}"))
    if not rows:
        rows = [Bar(None, "nothing was compiled", ())]
    said = ", ".join(f"{name} {seconds_text(s)}" for name, s in stages) or "none"
    return bars(rows, ["time", "stage", ""], alt=f"Stages: {said}.")


def draw_collectives(collectives: tuple[Collective, ...]) -> Picture:
    """Collectives as bars of bytes on each device, the largest first."""
    ordered = sorted(collectives, key=lambda c: -c.bytes_in_all)
    rows = [
        Bar(c.bytes_in_all, c.amount,
            (c.kind, " × ".join(c.mesh_axes) or "–", c.source, c.op))
        for c in ordered[:MOST_ROWS]
    ]  # fmt: skip
    rest = ordered[MOST_ROWS:]
    if rest:
        total = sum(c.bytes_in_all for c in rest)
        rows.append(Bar(total, bytes_text(total), (f"{len(rest)} smaller",)))
    if not rows:
        return page(no_tiles(), [Label(0, 6, "no collectives", "start", "note")],
                    size=(120, 12), alt="No collectives.")  # fmt: skip
    said = "; ".join(
        f"{c.kind} over {', '.join(c.mesh_axes) or 'no axis by name'},"
        f" {c.amount}" for c in ordered[:MOST_ROWS]
    )  # fmt: skip
    heads = ["bytes a device", "collective", "over", "line", "operation"]
    return bars(rows, heads, alt=f"{plural(len(collectives), 'collective')}: {said}.")


def _checks(checks: tuple[Check, ...]) -> Picture:
    # Where there are many, those that fail come first and some of those that hold are left out.
    order = sorted(checks, key=lambda c: c.ok is not False) if len(checks) > MOST_ROWS else checks
    lines = [(f"{MARKS[c.ok]} {c.name}: {c.detail}", _TONES[c.ok]) for c in list(order)[:MOST_ROWS]]
    if len(checks) > MOST_ROWS:
        held = sum(c.ok is True for c in order[MOST_ROWS:])
        lines.append((f"and {len(checks) - MOST_ROWS:,} more, {held:,} of which hold", "muted"))
    lines = [
        (part, tone) for text, tone in lines for part in broken(text, WIDE, 8.5, indent="    ")
    ]
    labels = [
        Label(0, 7 + 15.0 * i, text, "start", "note", tone) for i, (text, tone) in enumerate(lines)
    ]
    words = {True: "holds", False: "fails", None: "not checked"}
    said = "; ".join(f"{c.name} {words[c.ok]}" for c in checks)
    return page(no_tiles(), labels, size=(200, 15.0 * len(lines)), alt=f"Checks: {said}.")


def report_notes(report: Report) -> list[str]:
    """Memory, cost, effects and the report's own notes, a line each, where there are some.

    >>> report_notes(Report("f", "cpu", cost={"flops": 2e9}))
    ['cost: 2 G flops']
    """
    memory = report.memory
    parts = [
        f"{name} {bytes_text(value)}"
        for name, value in (
            ("arguments", memory.arguments), ("outputs", memory.outputs),
            ("temporaries", memory.temporaries), ("aliased", memory.aliased),
        )
        if value is not None
    ]  # fmt: skip
    host = [
        f"{name} {bytes_text(value)}"
        for name, value in (
            ("arguments", memory.host_arguments), ("outputs", memory.host_outputs),
            ("temporaries", memory.host_temporaries),
        )
        if value
    ]  # fmt: skip
    lines = []
    if parts:
        room = f" of {bytes_text(memory.capacity)}" if memory.capacity is not None else ""
        lines.append(f"memory on each device: {', '.join(parts)}{room}")
    if host:
        lines.append(f"beside that in the host's memory, for each device: {', '.join(host)}")
    cost = [
        f"{count_text(report.cost[k])} {k}" for k in ("flops", "bytes accessed") if k in report.cost
    ]
    if cost:
        lines.append(f"cost: {', '.join(cost)}")
    if report.effects:
        lines.append(f"effects: {', '.join(report.effects)}")
    return [*lines, *report.notes]


MOST_TIMES = 30


def draw_roofline(found: Roofline, title: str | None = None, limit: int = MOST_TIMES) -> Picture:
    """What bounds a program: its arithmetic, its memory, each collective, the longest first.

    Args:
        title: `""` for none.
        limit: how many rows to show of the parts, and of the operations.

    >>> from shardviz.core.program.report import Report
    >>> from shardviz.core.program.roofline import roofline
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
