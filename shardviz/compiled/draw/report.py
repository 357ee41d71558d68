"""Draws the report of a compile or run: stages, collectives and checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from shardviz.base.collective import (
    Collective,
    Member,
    sent_in_all_text,
)
from shardviz.base.display import explanation
from shardviz.base.format import (
    Fold,
    bytes_text,
    count_text,
    fold,
    seconds_text,
)
from shardviz.compiled.draw.measured import measured_lines
from shardviz.compiled.draw.memory import peak_lines
from shardviz.compiled.draw.processes import draw_processes, process_lines
from shardviz.compiled.report import Check, Report
from shardviz.draw import words as wording
from shardviz.draw.page import (
    and_more,
    broken,
    note,
    paragraphs,
    sentences,
    side_by_side,
    text_page,
    titled,
    unfolded,
)
from shardviz.draw.picture import Picture
from shardviz.draw.tables import Bar, Table
from shardviz.plans.draw.plan import draw_plan, plan_text
from shardviz.plans.plan_folds import fold_collectives, fold_line, name_of_fold
from shardviz.programs.failure import NeedsMoreMemory

MOST_ROWS, MOST_MEMBERS = 40, 3
# The most lines in text output.
MOST_FOLDS, MOST_CHECKS = 20, 12
# Sentences longer than this are wrapped, in points.
WIDE = 700.0
_MARKS = {True: "✓", False: "✗", None: "–"}
_TONES = {"✓": "good", "✗": "bad"}


def draw_report(report: Report, title: str | None = None) -> Picture:
    """Draws the stages, collectives and checks of one compile or run."""
    reached, panels = report.without_error, []
    collectives, rows = _collectives(reached), _stages(reached)
    if not rows and collectives is None:
        rows = [Bar(None, "nothing was compiled", ())]
    if report.plan is not None and not report.error:
        panels.append(draw_plan(report.plan))
    elif rows:
        panels.append(Table(("time", "stage", ""), tuple(rows)).picture())
    if collectives is not None:
        panels.append(draw_collectives(collectives))
    if report.processes:
        panels.append(draw_processes(report))
    if reached.checks:
        panels.append(_checks(reached.checks))
    notes = list(map(note, _notes(report)))
    if report.error:
        notes.insert(0, note(f"✗ {report.error}", "bad"))
    elif report.too_large is not None:
        notes.insert(0, note(f"✗ {report.too_large}", "bad"))
    if report.too_large is not None:
        notes[1:1] = map(note, explanation(report.too_large).splitlines())
    return side_by_side(
        panels,
        title=titled(title, _head(report)),
        notes=notes,
        alt=sentences(_lines(report, full=False)),
        width=1.0,
    )


def report_text(report: Report, width: int, full: bool = False) -> str:
    """Formats a report as text: result, stages, memory, cost, collectives and checks.

    Args:
        report: the report.
        width: characters per line.
        full: whether to list every collective and check, even if there are many.
    """
    text = paragraphs(_lines(report, full), width)
    if report.plan is None or report.error:
        return text
    return f"{text}\n{plan_text(report.plan, width, full)}"


def _lines(report: Report, full: bool) -> list[str]:
    large, reached = report.too_large, report.without_error
    lines = [_head(report) if large is None else str(large)]
    if large is not None:
        lines += explanation(large).splitlines()
    if report.error and not isinstance(report.error.cause, NeedsMoreMemory):
        lines.append(f"✗ {report.error}")
    failed, others = _check_lines(reached.checks, full)
    lines += failed
    stages = []
    for row in _stages(reached):
        stages.append(f"{row.words[0]} {row.text}")
    if reached.cache_hit:
        stages.append("from the cache")
    if len(reached.runs_s) > 1:
        stages.append(wording.median_of(len(reached.runs_s)))
    if stages:
        lines.append(" · ".join(stages))
    lines += process_lines(report, full)
    lines += _notes(report)
    if large is None or full:
        lines += peak_lines(reached, full)
    if (collectives := _collectives(reached)) is not None:
        lines += _collective_lines(collectives, full)
    if reached.measured is not None:
        lines += measured_lines(reached.measured, full)
    return lines + others


def _collectives(report: Report) -> tuple[Collective, ...] | None:
    """The final collectives, or the collectives of the last stage that a file has."""
    return report.partitioned if report.collectives is None else report.collectives


def _head(report: Report) -> str:
    state = wording.report_state(
        report.error is not None,
        report.ok,
        too_large=report.too_large is not None,
        compiled=report.without_error.collectives is not None,
    )
    return f"{report.program} on {report.target}: {state}"


def _stages(report: Report) -> list[Bar]:
    """Returns the stages that ran, each with its seconds."""
    seconds = {
        "lower": report.lower_s,
        "compile": report.compile_s,
        "place": report.place_s,
        "run": report.run_s,
    }
    rows = []
    for name, duration in seconds.items():
        remark = ""
        if name == "compile" and report.cache_hit:
            remark = "from the cache"
        elif name == "run" and len(report.runs_s) > 1:
            remark = f"median of {len(report.runs_s)}"
        if duration is not None:
            text = seconds_text(duration)
            rows.append(Bar(duration, text, (name, remark)))
    return rows


def draw_collectives(collectives: tuple[Collective, ...]) -> Picture:
    """Draws collectives as bars of the bytes that a device sends, largest first."""
    if not collectives:
        return text_page([("no collectives", "")], alt="no collectives")
    folds, rows = fold_collectives(collectives), []
    for group in folds[:MOST_ROWS]:
        first = group.items[0]
        words = (
            first.kind,
            first.axes_text or "–",
            first.source,
            name_of_fold(group),
        )
        amount = f"{group.count}{first.amount}"
        rows.append(Bar(sum(c.drawn_bytes for c in group.items), amount, words))
    omitted = unfolded(folds[MOST_ROWS:])
    if omitted:
        total = sent_in_all_text(omitted)
        rows.append(
            Bar(
                sum(c.drawn_bytes for c in omitted), total, (f"{len(omitted)} smaller",)
            )
        )
    heads = ("sent per device", "collective", "over", "line", "operation")
    return Table(heads, tuple(rows)).picture()


def _collective_lines(collectives: tuple[Collective, ...], full: bool) -> list[str]:
    if not collectives:
        return ["no collectives"]
    folds = fold_collectives(collectives)
    limit = MOST_FOLDS
    if full:
        folds = [Fold(((c.op,),), (c,)) for c in unfolded(folds)]
        limit = len(folds)
    lines = [wording.collectives_head(len(collectives))]
    for group in folds[:limit]:
        lines += [f"  {fold_line(group)}", *_member_lines(group.items[0], full)]
    omitted = unfolded(folds[limit:])
    for line in and_more(len(omitted), "collective"):
        lines.append(f"  {line}, {sent_in_all_text(omitted)} in all")
    return lines


def _member_lines(collective: Collective, full: bool) -> list[str]:
    """Lists a combined collective's largest arrays; folds arrays of equal layers."""
    if not collective.members:
        return []

    def words(member: Member) -> str:
        return f"{collective.sent_text(member.bytes_per_device)} of {member.words}"

    if full:
        return ["    " + ", ".join(map(words, collective.members))]
    folds = fold(collective.members, words, _size_and_line)
    names = [f"{group.count}{group.name}" for group in folds[:MOST_MEMBERS]]
    line = f"    {', '.join(names)}"
    if omitted := len(unfolded(folds[MOST_MEMBERS:])):
        line += f" and {omitted:,} more"
    return [line]


def _size_and_line(member: Member) -> tuple[object, ...]:
    # Members are folded if they differ only in their layer, not in their source line.
    return member.bytes_per_device, member.source, member.operand.source


def _checks(checks: Sequence[Check]) -> Picture:
    lines = []
    for text in check_lines(checks):
        for line in broken(text, WIDE, 8.5, indent="    "):
            lines.append((line, _TONES.get(text[0], "muted")))
    return text_page(lines, alt=sentences(check_lines(checks)))


def check_lines(checks: Sequence[Check], full: bool = False) -> list[str]:
    """Lists checks, one per line, failed ones first.

    If there are many, checks that did not fail are grouped and counted.

    Args:
        checks: the checks.
        full: whether to list every check, even if there are many.

    >>> many = [Check("indices", True, "All there.", array=f"w_{n}") for n in range(20)]
    >>> check_lines([*many, Check("indices", False, "A shard is missing.", array="y")])
    ['✗ y: indices: A shard is missing.', '✓ 20 of 21: indices']
    """
    failed, others = _check_lines(checks, full)
    return failed + others


def _check_lines(checks: Sequence[Check], full: bool) -> tuple[list[str], list[str]]:
    """Returns the lines of failed checks, and the lines of all other checks."""
    failed: list[str] = []
    others: list[str] = []
    total = Counter(check.of_any_number for check in checks)
    alike: dict[tuple[str, bool | None], list[Check]] = {}
    for check in checks:
        line = f"{_MARKS[check.ok]} {check.name}: {check.detail}"
        if check.ok is False:
            failed.append(line)
        elif full or len(checks) <= MOST_CHECKS:
            others.append(line)
        else:
            alike.setdefault((check.of_any_number, check.ok), []).append(check)
    if not full:
        failed[MOST_CHECKS:] = and_more(len(failed) - MOST_CHECKS, "failed check")
    for (kind, ok), similar in alike.items():
        names = {check.of_any_array for check in similar}
        text = names.pop() if len(names) == 1 else kind
        # For undecided checks, only the first one's reason is shown.
        if ok is None:
            text += f": {similar[0].detail}"
        others.append(f"{_MARKS[ok]} {len(similar):,} of {total[kind]:,}: {text}")
    return failed, others


def _notes(report: Report) -> list[str]:
    """Lists memory, cost, effects and the report's notes, one per line."""
    reached = report.without_error
    memory, device, host = reached.memory, [], []
    for name in ("arguments", "outputs", "temporaries", "aliased"):
        size = getattr(memory, name)
        if size is not None:
            device.append(f"{name} {bytes_text(size)}")
        # Few programs keep arrays in host memory, so zeros are left out.
        if on_host := getattr(memory, f"host_{name}", None):
            host.append(f"{name} {bytes_text(on_host)}")
    if memory.generated_code:  # of programs for accelerators
        device.append(f"code {bytes_text(memory.generated_code)}")
    lines = wording.memory_lines(", ".join(device), ", ".join(host))
    # For a program that does not fit, the largest values are already listed.
    if memory.peak is not None and report.too_large is None:
        lines.append(str(memory.peak))
    fit = reached.fit
    if fit is not None and fit.ok is not None:
        lines.append(str(fit))
    order = getattr(reached.roofline, "order", None)
    if order is not None:
        lines.append(str(order))
    cost = []
    for kind in ("flops", "bytes accessed"):
        if kind in reached.cost:
            cost.append(f"{count_text(reached.cost[kind])} {kind}")
    if cost:
        counts_once = wording.LOOPS_ONCE if reached.loops else ""
        lines.append(f"cost: {', '.join(cost)}{counts_once}")
    if reached.effects:
        lines.append(f"effects: {', '.join(reached.effects)}")
    return [*lines, *map(str, report.notes)]
