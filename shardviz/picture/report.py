"""Reports, audits and rooflines as bars: bytes per device, seconds, collectives, minimum times."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from shardviz.core.format import Fold, bytes_text, count_text, fold, plural, seconds_text
from shardviz.core.layout.audit import Audit, fold_bytes
from shardviz.core.layout.optimizer_state import difference_lines, not_counted
from shardviz.core.layout.resolution import Request, kinds_of
from shardviz.core.program.plan import fold_collectives, fold_line, name_of_fold
from shardviz.core.program.report import Check, Collective, Member, Report, fit_words
from shardviz.core.program.roofline import Bound, Roofline
from shardviz.picture.page import and_more, broken, paragraphs, side_by_side, text_page, wrapped
from shardviz.picture.picture import Label, Picture
from shardviz.picture.processes import draw_processes, process_lines
from shardviz.picture.tables import HIGHLIGHTED, MOST_LINES, NORMAL, Bar, bars

MOST_ROWS, MOST_TIMES, MOST_MEMBERS = 40, 30, 3
MOST_FOLDS, MOST_CHECKS = 20, 12  # lines of a text of a report
WIDE = 700.0  # points: longer sentences take several lines
_MARKS = {True: "✓", False: "✗", None: "–"}
_NUMBER = re.compile(r"\d+")
_LINE_TONES = {"✓": "good", "✗": "bad"}
_RESULTS = {True: "passed", False: "failed", None: "not checked"}


def draw_audit(audit: Audit, limit: int = MOST_ROWS, title: str | None = None) -> Picture:
    """What the arrays take on each device, the largest first; then those without a layout.

    Arrays that differ only in the number of their layer are one bar.

    Args:
        limit: how many rows to show; the rest become one.

    >>> from shardviz.core.layout.audit import audit
    >>> found = audit([("w", (512, 2048), "embed mlp")], [("mlp", "model")], "data=4, model=2")
    >>> draw_audit(found).tiles.tooltip(0)
    "2 MiB w f32[512, 2048] P(None, 'model')"
    """
    failed = [f for f in audit.folds if f.items[0].layout is None]
    rows = [_array_bar(f, audit.mesh.size) for f in audit.largest_folds[:limit]]
    rest = [row for f in audit.largest_folds[limit:] for row in f.items]
    if rest:
        total = sum(r.bytes_per_device or 0 for r in rest)
        rows.append(Bar(total, bytes_text(total), (f"{plural(len(rest), 'smaller array')}",)))
    rows += [_failed_bar(f) for f in failed[:limit]]
    arrays = plural(len(audit.rows), "array")
    size = f"{bytes_text(audit.bytes_per_device)} per device{not_counted(kinds_of(audit.rows))}"
    head = f"{arrays} on {audit.mesh}: {size}"
    replicated = any(b.group == HIGHLIGHTED for b in rows)
    hidden = sum(len(f.items) for f in failed[limit:])
    notes = [f"{line}." for line in difference_lines(audit.differences)[:MOST_CHECKS]]
    table = bars(
        rows,
        ["bytes per device", "array", "type and shape", "spec"],
        title=(head if title is None else title) if len(audit.groups) < 2 else "",
        legend=((NORMAL, "split"), (HIGHLIGHTED, "replicated")) if replicated else (),
        notes=[*notes, *(f"{more} without a layout" for more in and_more(hidden, "array"))],
        alt=audit.explain(),
        facts={"kind": "audit"},
    )
    if len(audit.groups) < 2:
        return table
    return side_by_side(
        [_group_bars(audit), table],
        title=head if title is None else title,
        alt=audit.explain(),
        width=1.0,
        facts={"kind": "audit"},
    )


def _group_bars(audit: Audit) -> Picture:
    """What parameters, gradients and optimizer state take, and what of it is replication."""
    rows = [
        Bar(
            group.bytes_per_device,
            bytes_text(group.bytes_per_device),
            (group.name, f"{group.copies:,.3g}", bytes_text(group.waste)),
        )
        for group in (*audit.groups, audit.total)
    ]
    return bars(rows, ["bytes per device", "of", "copies", "replication costs"])


def _failed_bar(one: Fold[Request]) -> Bar:
    row = one.items[0]
    if row.problem:
        return Bar(None, "✗", (one.name, row.array.short, row.problem), tone="bad")
    return Bar(None, "?", (one.name, row.array.short, "unknown"), tone="muted")


def _array_bar(one: Fold[Request], devices: int) -> Bar:
    row = one.items[0]
    assert row.layout is not None  # the largest are all laid out
    return Bar(
        sum(r.bytes_per_device or 0 for r in one.items),
        fold_bytes(one),
        (one.name, row.array.short, _spec_words(row)),
        HIGHLIGHTED if row.spec is not None and row.layout.num_blocks == 1 < devices else NORMAL,
    )


def _spec_words(row: Request) -> str:
    if row.problem:
        return row.problem
    if row.layout is None:
        return "unknown"
    where = "" if row.array.memory_kind is None else f" in {row.array.memory_kind}"
    return f"{'not on the mesh' if row.spec is None else row.spec}{where}"


def audit_text(audit: Audit, width: int, full: bool = False) -> str:
    """An audit: what was found, then the arrays, the largest first.

    Args:
        width: letters per line.
        full: every array in a line of its own; else those that differ only in the number of their
            layer are one line, and the smaller ones are counted.
    """
    rows: Sequence[tuple[str, str, Request]]
    if full:
        rest = [r for r in audit.rows if r.layout is None]
        rows = [
            ("–" if r.bytes_per_device is None else bytes_text(r.bytes_per_device), r.path, r)
            for r in (*rest, *audit.largest)
        ]
    else:
        rows = [(fold_bytes(f), f.name, f.items[0]) for f in audit.largest_folds[:MOST_FOLDS]]
    lines = audit.explain().split("\n")
    left = max([len(size) for size, _, _ in rows], default=0)
    if len(audit.rows) > 1 and rows:
        lines.append("Bytes per device, the largest first:")
        lines += [
            f"  {size:>{left}}  {name} · {row.array.short} · {_spec_words(row)}"
            for size, name, row in rows
        ]
        hidden = [f for f in audit.largest_folds[MOST_FOLDS:] if not full]
        lines += [f"  {more}" for more in and_more(sum(len(f.items) for f in hidden), "array")]
    return paragraphs(lines, width)


def draw_report(report: Report, title: str | None = None) -> Picture:
    """What one compile or run did: its stages, its collectives, its checks.

    >>> picture = draw_report(Report("f", "cpu × 8", lower_s=0.01, compile_s=0.2))
    >>> picture.panels[0][2].tiles.tooltip(1)
    'compile 200 ms'
    """
    panels = [_stages(report)]
    if report.collectives is not None:
        panels.append(draw_collectives(report.collectives))
    if report.processes:
        panels.append(draw_processes(report))
    if report.checks:
        panels.append(_checks(report.checks))
    notes = [Label(0, 0, t, "start", "note") for t in _notes(report)]
    if report.error:
        notes.insert(0, Label(0, 0, f"✗ {report.error}", "start", "note", "bad"))
    head = f"{_head(report)}{' (stale)' * report.stale}"
    return side_by_side(
        panels,
        title=head if title is None else title,
        notes=notes,
        alt=" ".join([f"{head}.", *(p.alt for p in panels), *(n.text + "." for n in notes)]),
        width=1.0,
        facts={"kind": "report"},
    )


def report_text(report: Report, width: int, full: bool = False) -> str:
    """A report: what came of it, stages, memory and cost, collectives, checks; a line each.

    Args:
        width: letters per line.
        full: every collective and check in a line of its own, however many there are.
    """
    lines = [_head(report) + "; stale: the program was edited since" * report.stale]
    if report.error:
        lines.append(f"✗ {report.error}")
    stages = [f"{name} {seconds_text(s)}" for name, s in _stage_seconds(report)]
    if report.cache_hit:
        stages.append("from the cache")
    if len(report.runs_s) > 1:
        stages.append(f"median of {len(report.runs_s)} runs")
    lines += [" · ".join(stages)] if stages else []
    lines += process_lines(report, full)
    lines += _notes(report)
    if report.collectives is not None:
        lines += _collective_lines(report.collectives, full)
    lines += check_lines(report.checks, full)
    return paragraphs(lines, width)


def _head(report: Report) -> str:
    state = "failed" if report.error else "ok" if report.ok else "a check failed"
    return f"{report.program} on {report.target}: {state}"


def _stage_seconds(report: Report) -> list[tuple[str, float]]:
    """The stages that ran, each with its seconds."""
    stages = (
        ("lower", report.lower_s),
        ("compile", report.compile_s),
        ("place", report.place_s),
        ("run", report.run_s),
    )
    return [(name, s) for name, s in stages if s is not None]


def _stages(report: Report) -> Picture:
    stages = _stage_seconds(report)
    rows = []
    for name, seconds in stages:
        remark = "from the cache" if name == "compile" and report.cache_hit else ""
        if name == "run" and len(report.runs_s) > 1:
            remark = f"median of {len(report.runs_s)}"
        text = seconds_text(seconds)
        rows.append(Bar(seconds, text, (name, remark), hint=f"{name} {text}"))
    if not rows:
        rows = [Bar(None, "nothing was compiled", ())]
    times = ", ".join(f"{name} {seconds_text(s)}" for name, s in stages) or "none"
    return bars(rows, ["time", "stage", ""], alt=f"Stages: {times}.")


def draw_collectives(collectives: tuple[Collective, ...]) -> Picture:
    """Collectives as bars of bytes per device, the largest first."""
    if not collectives:
        return text_page([("no collectives", "")], alt="No collectives.")
    folds = fold_collectives(collectives)
    rows = [_fold_bar(one) for one in folds[:MOST_ROWS]]
    rest = [c for one in folds[MOST_ROWS:] for c in one.items]
    if rest:
        total = sum(c.bytes_in_all for c in rest)
        rows.append(Bar(total, bytes_text(total), (f"{len(rest)} smaller",)))
    shown = "; ".join(
        f"{one.count}{c.kind}{(c.over or ' over unnamed axes').replace(' × ', ', ')}, {c.amount}"
        for one in folds[:MOST_ROWS]
        for c in one.items[:1]
    )
    return bars(
        rows,
        ["bytes per device", "collective", "over", "line", "operation"],
        alt=f"{plural(len(collectives), 'collective')}: {shown}.",
    )


def _fold_bar(one: Fold[Collective]) -> Bar:
    first, total = one.items[0], sum(c.bytes_in_all for c in one.items)
    words = (first.kind, first.over.removeprefix(" over ") or "–", first.source, name_of_fold(one))
    return Bar(total, f"{one.count}{first.amount}", words)


def _collective_lines(collectives: tuple[Collective, ...], full: bool) -> list[str]:
    if not collectives:
        return ["no collectives"]
    folds = fold_collectives(collectives)
    if full:
        folds = [Fold(((c.op,),), 1, (c,)) for one in folds for c in one.items]
    lines = [f"{plural(len(collectives), 'collective')}:"]
    most = len(folds) if full else MOST_FOLDS
    for one in folds[:most]:
        lines += [f"  {fold_line(one)}", *_member_lines(one.items[0], full)]
    if rest := [c for one in folds[most:] for c in one.items]:
        total = bytes_text(sum(c.bytes_in_all for c in rest))
        lines.append(f"  {and_more(len(rest), 'collective')[0]}, {total} in all")
    return lines


def _member_lines(one: Collective, full: bool) -> list[str]:
    """The largest arrays of a combined collective; arrays of its layers count as one."""
    if not one.members:
        return []
    folds = fold(one.members, lambda m: m.words, lambda m: (m.bytes_per_device, *_lines_in(m)))
    if full:
        folds = [Fold(((m.words,),), 1, (m,)) for m in one.members]
    most = len(folds) if full else MOST_MEMBERS
    named = ", ".join(f"{f.count}{f.name}" for f in folds[:most])
    left = sum(len(f.items) for f in folds[most:])
    return [f"    {named}{f' and {left:,} more' if left else ''}"]


def _lines_in(member: Member) -> list[str]:
    return re.findall(r":\d+", member.words)


def _checks(checks: tuple[Check, ...]) -> Picture:
    texts = [(line, _LINE_TONES.get(line[0], "muted")) for line in check_lines(checks)]
    results = "; ".join(f"{c.name} {_RESULTS[c.ok]}" for c in checks)
    return text_page(
        [(line, tone) for text, tone in texts for line in broken(text, WIDE, 8.5, indent="    ")],
        alt=f"Checks: {results}.",
    )


def check_lines(checks: Sequence[Check], full: bool = False) -> list[str]:
    """Checks, a line each; of many, those that passed are counted: `✓ 234 of 234: 8 shards`.

    Args:
        full: a line for each, however many there are.

    >>> many = [Check(f"w_{n}: indices", True, "All there.") for n in range(20)]
    >>> check_lines([*many, Check("y: indices", False, "A shard is missing.")])
    ['✗ y: indices: A shard is missing.', '✓ 20 of 21: indices']
    """
    if full or len(checks) <= MOST_CHECKS:
        return [_check_line(c) for c in checks]
    failed = [c for c in checks if c.ok is False]
    lines = [_check_line(c) for c in failed[:MOST_CHECKS]]
    lines += [f"{more} that failed" for more in and_more(len(failed) - MOST_CHECKS, "check")]
    folds = fold([c for c in checks if c.ok is not False], _checked, lambda c: c.ok)
    total = Counter(_NUMBER.sub("", _checked(c)) for c in checks)
    for one in folds[:MOST_CHECKS]:
        first, count = one.items[0], total[_NUMBER.sub("", _checked(one.items[0]))]
        why = f": {first.detail}" if first.ok is None else ""
        words = f"{_MARKS[first.ok]} {len(one.items):,} of {count:,}: {one.name}{why}"
        lines.append(_check_line(first) if count == 1 else words)
    return lines + and_more(sum(len(one.items) for one in folds[MOST_CHECKS:]), "check")


def _checked(check: Check) -> str:
    """What was checked, without the array that the name of a check begins with."""
    return check.name.rpartition(": ")[2]


def _check_line(check: Check) -> str:
    return f"{_MARKS[check.ok]} {check.name}: {check.detail}"


def _notes(report: Report) -> list[str]:
    """Memory, cost, effects and the report's own notes, a line each, where there are some."""
    memory, lines = report.memory, []
    device = _sizes(
        arguments=memory.arguments,
        outputs=memory.outputs,
        temporaries=memory.temporaries,
        aliased=memory.aliased,
    )
    host = _sizes(
        arguments=memory.host_arguments or None,
        outputs=memory.host_outputs or None,
        temporaries=memory.host_temporaries or None,
    )
    if device:
        lines.append(f"memory per device: {device}")
    if host:
        lines.append(f"and in the host's memory, per device: {host}")
    cost = [
        f"{count_text(report.cost[k])} {k}" for k in ("flops", "bytes accessed") if k in report.cost
    ]
    if words := fit_words(report):
        lines.append(words)
    if cost:
        lines.append(f"cost: {', '.join(cost)}")
    if report.effects:
        lines.append(f"effects: {', '.join(report.effects)}")
    return [*lines, *report.notes]


def _sizes(**sizes: int | None) -> str:
    return ", ".join(f"{name} {bytes_text(n)}" for name, n in sizes.items() if n is not None)


def draw_roofline(roofline: Roofline, title: str | None = None, limit: int = MOST_TIMES) -> Picture:
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
    panels = [_bounds(roofline.rows, "part of the program", limit)]
    if roofline.ops:
        panels.append(_bounds(roofline.ops, "operation, before XLA fuses it", limit))
    tone = "bad" if roofline.fits is False else "text"
    notes = [Label(0, 0, roofline.words, "start", "note", tone)]
    notes += [Label(0, 0, note, "start", "note") for note in roofline.notes]
    head = f"minimum times on {roofline.where}"
    return side_by_side(
        panels,
        title=head if title is None else title,
        notes=notes,
        alt=" ".join([f"{head}.", *(p.alt for p in panels), *(n.text for n in notes)]),
        width=1.0,
        facts={"kind": "roofline"},
    )


def _bounds(rows: tuple[Bound, ...], what: str, limit: int) -> Picture:
    longest = max((r.seconds or 0.0 for r in rows), default=0.0)
    drawn = [
        Bar(
            row.seconds,
            seconds_text(row.seconds),
            (row.name, row.bound, _amount(row), row.source or row.note),
            HIGHLIGHTED if row.seconds and row.seconds == longest else NORMAL,
            hint=f"{row.name}: {seconds_text(row.seconds)}, bound by {row.bound or '–'}",
        )
        for row in rows[:limit]
    ]
    if len(rows) > limit:
        total = sum(r.seconds or 0.0 for r in rows[limit:])
        drawn.append(Bar(total, seconds_text(total), (f"{len(rows) - limit:,} shorter",)))
    if not drawn:
        drawn = [Bar(None, "its cost is not known", ())]
    times = "; ".join(f"{r.name} {seconds_text(r.seconds)}" for r in rows[:limit]) or "none"
    return bars(drawn, ["minimum time", what, "bound by", "amount", "line"], alt=f"{times}.")


def _amount(row: Bound) -> str:
    """The work or the bytes of a row, and how often it runs: `2 G flops`, `16 MiB × 12`."""
    text = f"{count_text(row.amount)} flops"
    if row.bound != "FLOP/s":
        text = bytes_text(int(row.amount))
    if row.trips is None:
        return f"{text} × ?"
    return f"{text} × {row.trips:,}" if row.trips > 1 else text


def roofline_text(roofline: Roofline, width: int) -> str:
    """A roofline: its summary, a line per part and per operation, its notes."""
    lines = wrapped(roofline.words, width, "  ") + _bound_lines(roofline.rows, width)
    if roofline.ops:
        lines += wrapped("operations on each device, before XLA fuses them:", width, "  ")
        lines += _bound_lines(roofline.ops, width)
    for note in roofline.notes:
        lines += wrapped(note, width, "  ")
    return "\n".join(lines)


def _bound_lines(rows: Sequence[Bound], width: int) -> list[str]:
    left = max((len(seconds_text(r.seconds)) for r in rows), default=0)
    lines = []
    for row in rows[:MOST_LINES]:
        parts = [row.name, row.bound, _amount(row), row.source, row.note]
        start = f"{seconds_text(row.seconds):>{left}}  {' · '.join(p for p in parts if p)}"
        lines += wrapped(start, width, " " * (left + 2))
    if len(rows) > MOST_LINES:
        lines.append(f"and {len(rows) - MOST_LINES:,} more")
    return lines
