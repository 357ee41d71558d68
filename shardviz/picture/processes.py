"""Processes: which devices each has, what each did in a compile or run, and which rows it loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardviz.core.format import bytes_text, fold, ids_text, plural, seconds_text
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.process_rows import ProcessPart, ProcessRows, ranges_text
from shardviz.core.program.processes import (
    STAGES,
    ProcessGroup,
    ProcessGroups,
    ProcessReport,
    by_process,
    stage_words,
)
from shardviz.core.program.report import Report
from shardviz.picture.blocks import array_title
from shardviz.picture.mesh import draw_mesh
from shardviz.picture.page import and_more, page, paragraphs, text_page, text_width
from shardviz.picture.picture import Label, Picture, make_tiles
from shardviz.picture.tables import Bar, bars

MOST_LINES, MOST_PROCESSES = 6, 16


def draw_process_group(group: ProcessGroup, title: str | None = None) -> Picture:
    """The devices of every process, process by process.

    >>> from shardviz.core.program.processes import HostProcess
    >>> one = HostProcess(1, "node2", 4711, (2048, 2049))
    >>> draw_process_group(ProcessGroup("1 host x 2", [one])).device_ids().tolist()
    [2048, 2049]
    """
    head = f"{group.name}: {plural(group.devices, 'device')}" if title is None else title
    if not group.devices:
        return text_page([(line, "") for line in _group_lines(group)], title=head)
    ranks = [p.rank for p in group.processes for _ in p.device_ids]
    mesh = MeshSpec(("device",), (group.devices,), (), group.device_ids, ranks, True)  # type: ignore[arg-type]
    alt = " ".join(f"{line}." for line in _group_lines(group))
    return replace(draw_mesh(mesh, by="host", title=head), alt=alt)


def process_group_text(group: ProcessGroup, width: int) -> str:
    """Processes: where each runs and which devices it has.

    >>> from shardviz.core.program.processes import HostProcess
    >>> one = HostProcess(1, "node2", 4711, (2048, 2049))
    >>> print(process_group_text(ProcessGroup("1 host x 2", [one]), 80))
    1 host x 2: 2 devices
    process 1 · node2 · pid 4711 · CPU 2048, 2049
    """
    return paragraphs(_group_lines(group), width)


def _group_lines(group: ProcessGroup) -> list[str]:
    shown = group.processes[:MOST_PROCESSES]
    lines = [f"{group.name}: {plural(group.devices, 'device')}"]
    lines += [
        f"process {p.rank} · {p.host} · pid {p.pid} · {p.platform.upper()} {ids_text(p.device_ids)}"
        for p in shown
    ]
    lines += and_more(len(group.processes) - len(shown), "process")
    return [*lines, f"✗ {group.problem}"] if group.problem else lines


def process_lines(report: Report, full: bool = False) -> list[str]:
    """What several processes did, in few lines: times, collectives between them, memory, output.

    Args:
        full: every collective and all that was printed.
    """
    processes: Sequence[ProcessReport] = report.processes
    if not processes:
        return []
    lines = [
        f"{plural(len(processes), 'process', 'processes')}: {'; '.join(stage_words(processes))}"
    ]
    lines += _collective_lines(report, full)
    held = sorted((p for p in processes if p.memory), key=lambda p: -(p.memory or 0))
    if held:
        sizes = [f"{bytes_text(p.memory or 0)} in process {p.rank}" for p in held[:MOST_LINES]]
        more = and_more(len(held) - MOST_LINES, "process")
        lines.append(f"memory of the processes: {', '.join([*sizes, *more])}")
    if sum(p.error is not None for p in processes) > 1:
        lines += [f"✗ process {p.rank}: {p.error}" for p in processes if p.error][:MOST_LINES]
    return lines + _printed_lines(processes, full)


def _collective_lines(report: Report, full: bool) -> list[str]:
    if not report.collectives or report.mesh is None:
        return []
    lines = []
    found = by_process(report.collectives, report.mesh)
    for between in (True, None, False):
        some = [g for g in found if g.between is between]
        if not some:
            continue
        total = sum(g.collective.bytes_in_all for g in some)
        where = some[0].words if between is not True else "between processes"
        lines.append(f"{plural(len(some), 'collective')} {where}: {bytes_text(total)} per device")
        if between:
            lines += _crossing_lines(some, full)
    return lines


def _crossing_lines(some: Sequence[ProcessGroups], full: bool) -> list[str]:
    folds = fold(
        some,
        lambda g: f"{g.collective.words} {g.words}",
        lambda g: (g.collective.words, g.groups),
    )
    most = len(folds) if full else MOST_LINES
    lines = [f"  {one.count}{one.items[0].collective.words} {one.items[0].words}"
             for one in folds[:most]]  # fmt: skip
    left = sum(len(one.items) for one in folds[most:])
    return lines + [f"  {line}" for line in and_more(left, "collective")]


def _printed_lines(processes: Sequence[ProcessReport], full: bool) -> list[str]:
    lines = []
    for process in processes:
        said = [f"warned: {line}" for line in process.warnings]
        said += [f"printed: {line}" for line in process.output.splitlines() if line.strip()]
        most = len(said) if full else MOST_LINES
        lines += [f"process {process.rank} {line}" for line in said[:most]]
        more = and_more(len(said) - most, "line")
        lines += [f"process {process.rank}: {line}" for line in more]
    return lines


def draw_processes(report: Report) -> Picture:
    """The seconds that each process spent in its stages, the slowest process first.

    >>> one = ProcessReport(1, "node2", 4711, (2048,), {"run": 0.25})
    >>> draw_processes(Report("f", "2 hosts x 1", processes=(one,))).tiles.tooltip(0)
    'process 1: run 250 ms'
    """
    processes: Sequence[ProcessReport] = sorted(
        report.processes, key=lambda p: -p.seconds.get("run", p.seconds.get("compile", 0.0))
    )
    rows = []
    for process in processes[:MOST_PROCESSES]:
        stage = "run" if "run" in process.seconds else "compile"
        seconds = process.seconds.get(stage)
        others = ", ".join(
            f"{s} {seconds_text(process.seconds[s])}"
            for s in STAGES
            if s in process.seconds and s != stage
        )
        memory = "" if process.memory is None else bytes_text(process.memory)
        text = "✗" if seconds is None else f"{stage} {seconds_text(seconds)}"
        words = (f"process {process.rank}", process.host, others, memory)
        hint = f"process {process.rank}: {text}"
        rows.append(Bar(seconds, text, words, hint=hint, tone="" if process.ok else "bad"))
    heads = ["time", "process", "host", "other stages", "memory"]
    return bars(
        rows,
        heads,
        notes=process_lines(report)[1:],
        alt=" ".join(f"{line}." for line in process_lines(report)),
    )


MOST_LISTED = 16  # processes; of more, those that yield the same array share a row
MOST_ROWS = 40
MOST_RANGES = 512  # that are drawn of one process
WIDE, HIGH, GAP = 430.0, 22.0, 4.0
LEAST = 1.5  # points: of a range that is drawn
SIZE = 9.0


@dataclass(frozen=True)
class _Row:
    """Processes that yield the same array, and the number of their group."""

    name: str
    part: ProcessPart
    group: int


def _rows(rows: ProcessRows) -> list[_Row]:
    """One row per process, or per group of those that yield the same where there are many."""
    number = {process: i for i, group in enumerate(rows.groups) for process in group}
    if len(rows.parts) <= MOST_LISTED:
        return [_Row(f"process {p.process}", p, number[p.process]) for p in rows.parts]
    first = {group[0]: group for group in rows.groups}
    return [
        _Row(_name(first[p.process]), p, number[p.process])
        for p in rows.parts
        if p.process in first
    ]


def _name(group: tuple[int, ...]) -> str:
    word = "process" if len(group) == 1 else "processes"
    return f"{word} {ids_text(group)}"


def draw_process_rows(rows: ProcessRows, title: str | None = None, name: str = "") -> Picture:
    """The rows of every process, from the first row of the array on the left to the last.

    Processes of one colour yield the same array.

    Args:
        title: `""` for none.
        name: what the array is called.

    >>> from shardviz.core.layout.layout import lay_out
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> from shardviz.core.layout.process_rows import process_rows
    >>> mesh = make_mesh(data=4, model=2, processes=2)
    >>> rows = process_rows(lay_out((256, 512), Spec.parse("data"), mesh))
    >>> draw_process_rows(rows).tiles.label(1)
    '128:256'
    """
    known = _rows(rows)
    shown = known[:MOST_ROWS]
    names = [row.name for row in shown]
    left = max(text_width(name, SIZE) for name in names) + 10
    total = rows.layout.shape[0] if rows.layout.rank else 1
    scale = WIDE / max(1, total)
    ranges = [
        (i, row, start, stop)
        for i, row in enumerate(shown)
        for start, stop in (row.part.rows or ((0, 1),))[:MOST_RANGES]
    ]
    tiles = make_tiles(
        [left + scale * start for _, _, start, _ in ranges],
        [16 + i * (HIGH + GAP) for i, *_ in ranges],
        [max(LEAST, scale * (stop - start) - 1) for *_, start, stop in ranges],
        HIGH,
        [row.group for _, row, _, _ in ranges],
        text=[f"{start}:{stop}" if rows.layout.rank else "" for *_, start, stop in ranges],
        hint=[f"{row.name}: {_about(rows, row.part)}" for _, row, _, _ in ranges],
        radius=3.0,
    )
    labels = [
        Label(left, 6, "row 0", "start", "tick"),
        Label(left + WIDE, 6, str(total), "end", "tick"),
    ]
    for i, row in enumerate(shown):
        y = 16 + i * (HIGH + GAP) + HIGH / 2
        labels.append(Label(0, y, row.name, "start"))
        own = [r for r in ranges if r[0] == i]
        narrow = any(scale * (b - a) < text_width(f"{a}:{b}", SIZE, bold=True) for *_, a, b in own)
        words = f"rows {ranges_text(row.part.rows, 2)} · " if narrow and rows.layout.rank else ""
        labels.append(Label(left + WIDE + 8, y, words + _short(rows, row.part), "start", "note"))
    return page(
        tiles,
        labels if rows.layout.rank else labels[2:],
        title=_title(rows, name) if title is None else title,
        notes=[*and_more(len(known) - len(shown), "row"), *rows.sentences],
        size=(left + WIDE, 16 + len(shown) * (HIGH + GAP)),
        alt=f"Rows of each process, {_title(rows, name)}. {' '.join(rows.sentences)}",
        groups=len(rows.groups),
        colormap="blocks",
        facts={"kind": "processRows"},
    )


def _title(rows: ProcessRows, name: str) -> str:
    layout = rows.layout
    spec = "" if layout.spec is None else f" as {layout.spec}"
    count = plural(len(rows.parts), "process", "processes")
    return f"{array_title(layout, name)}{spec} on {layout.mesh}: {count}"


def _short(rows: ProcessRows, part: ProcessPart) -> str:
    """The other dimensions of a part that are not full, its shape and its size."""
    shape = rows.layout.shape
    others = [
        f"dimension {d} {ranges_text(some, 2)}"
        for d, some in enumerate(part.ranges)
        if d and some != ((0, shape[d]),)
    ]
    return " · ".join([*others, f"{list(part.shape)}", bytes_text(part.bytes)])


def _about(rows: ProcessRows, part: ProcessPart) -> str:
    held = ", ".join(ranges_text(some) for some in part.ranges)
    devices = plural(part.devices, "device")
    return (
        f"[{held}] of {list(rows.layout.shape)}\nlocal shape {list(part.shape)},"
        f" {bytes_text(part.bytes)} · {devices}"
    )


def process_rows_text(rows: ProcessRows, width: int, name: str = "") -> str:
    """A line per process, then what a loader has to heed.

    >>> from shardviz.core.layout.layout import lay_out
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> from shardviz.core.layout.process_rows import process_rows
    >>> mesh = make_mesh(data=4, model=2, processes=2)
    >>> print(process_rows_text(process_rows(lay_out((256, 512), Spec.parse("data"), mesh)), 80))
    f32[256, 512] as P('data') on data=4, model=2: 2 processes
      process 0  [0:128, 0:512]    local shape [128, 512], 256 KiB
      process 1  [128:256, 0:512]  local shape [128, 512], 256 KiB
    No row is loaded twice.
    """
    known = _rows(rows)
    shown = known[:MOST_ROWS]
    cells = [
        (row.name, f"[{', '.join(ranges_text(some) for some in row.part.ranges)}]",
         f"local shape {list(row.part.shape)}, {bytes_text(row.part.bytes)}")
        for row in shown
    ]  # fmt: skip
    wide = [max(len(cell[i]) for cell in cells) for i in (0, 1)]
    lines = [f"  {a:<{wide[0]}}  {b:<{wide[1]}}  {c}" for a, b, c in cells]
    if max(map(len, lines)) > width:
        lines = ["  " + ": ".join((a, b)) + f", {c}" for a, b, c in cells]
    more = and_more(len(known) - len(shown), "row")
    return paragraphs([_title(rows, name), *lines, *more, *rows.sentences], width)
