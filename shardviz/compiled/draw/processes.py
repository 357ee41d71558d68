"""Draws processes: their devices, and their reports on a compile or run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardviz.base.format import bytes_text, fold, ids_text, plural, seconds_text
from shardviz.base.mesh import MeshSpec
from shardviz.compiled.processes import (
    STAGES,
    ProcessGroup,
    ProcessGroups,
    ProcessReport,
    by_process,
    stage_words,
)
from shardviz.compiled.report import Report
from shardviz.compiled.words.stages import sent
from shardviz.draw import words as wording
from shardviz.draw.page import (
    and_more,
    paragraphs,
    sentences,
    text_page,
    titled,
    unfolded,
)
from shardviz.draw.picture import Picture
from shardviz.draw.tables import Bar, Table
from shardviz.hardware.draw.mesh import draw_mesh

MOST_LINES, MOST_PROCESSES = 6, 16
HEADS = ("time", "process", "host", "other stages", "memory")


def draw_process_group(group: ProcessGroup, title: str | None = None) -> Picture:
    """Draws the devices of each process, process by process."""
    lines = _group_lines(group)
    head = titled(title, lines[0])
    if not group.devices:
        return text_page([(line, "") for line in lines], title=head)
    ranks: list[int] = []
    for process in group.processes:
        ranks += [process.rank] * len(process.device_ids)
    # Device ids may repeat until the processes are connected.
    mesh = MeshSpec(
        ("device",),
        (group.devices,),
        (),
        group.device_ids,  # type: ignore[arg-type]
        ranks,  # type: ignore[arg-type]
        True,
    )
    return replace(draw_mesh(mesh, by="host", title=head), alt=sentences(lines))


def process_group_text(group: ProcessGroup, width: int) -> str:
    """Lists the host and devices of each process."""
    return paragraphs(_group_lines(group), width)


def _group_lines(group: ProcessGroup) -> list[str]:
    lines = [f"{group.name}: {plural(group.devices, 'device')}"]
    for process in group.processes[:MOST_PROCESSES]:
        devices = f"{process.platform.upper()} {ids_text(process.device_ids)}"
        name = f"process {process.rank} · {process.host} · pid {process.pid}"
        lines.append(f"{name} · {devices}")
    lines += and_more(len(group.processes) - MOST_PROCESSES, "process")
    if group.problem:
        lines.append(f"✗ {group.problem}")
    return lines


def process_lines(report: Report, full: bool = False) -> list[str]:
    """Describes a report on several processes: times, collectives, memory and output.

    Args:
        report: the report.
        full: whether to list every collective and all output.
    """
    processes: Sequence[ProcessReport] = report.processes
    if not processes:
        return []
    count = plural(len(processes), "process", "processes")
    lines = [f"{count}: {'; '.join(stage_words(processes))}"]
    lines += _collective_lines(report, full)
    sizes = []
    for process in processes[:MOST_LINES]:
        if process.memory:
            sizes.append(f"{bytes_text(process.memory)} in process {process.rank}")
    if sizes:
        sizes += and_more(len(processes) - MOST_LINES, "process")
        lines.append(wording.memory_of_processes(sizes))
    errors = []
    for process in processes:
        if process.error is not None:
            errors.append(f"✗ process {process.rank}: {process.error}")
    # A single error is the report's error, which is already shown.
    if len(errors) > 1:
        lines += errors[:MOST_LINES]
    return lines + _printed_lines(processes, full)


def _collective_lines(report: Report, full: bool) -> list[str]:
    reached = report.without_error
    if not reached.collectives or reached.mesh is None:
        return []
    lines, groups = [], by_process(reached.collectives, reached.mesh)
    # Collectives between processes are slow, so they come first. None means unknown.
    for between in (True, None, False):
        selected = [group for group in groups if group.between is between]
        if not selected:
            continue
        size = sent([group.collective for group in selected])
        place = "between processes" if between else selected[0].words
        count = plural(len(selected), "collective")
        lines.append(f"{count} {place}: {size}")
        if between:
            lines += _crossing_lines(selected, full)
    return lines


def _crossing_lines(groups: Sequence[ProcessGroups], full: bool) -> list[str]:
    folds = fold(
        groups,
        lambda group: f"{group.collective.words} {group.words}",
        lambda group: (group.collective.words, group.groups),
    )
    limit = MOST_LINES
    if full:
        limit = len(folds)
    lines: list[str] = []
    for group in folds[:limit]:
        first = group.items[0]
        lines.append(f"  {group.count}{first.collective.words} {first.words}")
    for omitted in and_more(len(unfolded(folds[limit:])), "collective"):
        lines.append(f"  {omitted}")
    return lines


def _printed_lines(processes: Sequence[ProcessReport], full: bool) -> list[str]:
    """Lists the warnings and output of each process."""
    lines: list[str] = []
    for process in processes:
        printed = [f"warned: {line}" for line in process.warnings]
        for line in process.output.splitlines():
            if line.strip():
                printed.append(f"printed: {line}")
        limit = MOST_LINES
        if full:
            limit = len(printed)
        for line in printed[:limit]:
            lines.append(f"process {process.rank} {line}")
        for omitted in and_more(len(printed) - limit, "line"):
            lines.append(f"process {process.rank}: {omitted}")
    return lines


def draw_processes(report: Report) -> Picture:
    """Draws the seconds of each process by stage, slowest process first."""
    processes: Sequence[ProcessReport] = sorted(
        report.processes, key=_seconds, reverse=True
    )
    rows = []
    for process in processes[:MOST_PROCESSES]:
        last, earlier = _last_stage(process), []
        for stage in STAGES:
            if stage in process.seconds and stage != last:
                earlier.append(f"{stage} {seconds_text(process.seconds[stage])}")
        seconds, text = process.seconds.get(last), "✗"
        if seconds is not None:
            text = f"{last} {seconds_text(seconds)}"
        name, memory, tone = f"process {process.rank}", "", ""
        if process.memory is not None:
            memory = bytes_text(process.memory)
        if not process.ok:
            tone = "bad"
        words = (name, process.host, ", ".join(earlier), memory)
        rows.append(Bar(seconds, text, words, tone=tone))
    lines = process_lines(report)
    return Table(HEADS, tuple(rows)).picture(notes=lines[1:], alt=sentences(lines))


def _last_stage(process: ProcessReport) -> str:
    if "run" in process.seconds:
        return "run"
    return "compile"


def _seconds(process: ProcessReport) -> float:
    return process.seconds.get(_last_stage(process), 0.0)
