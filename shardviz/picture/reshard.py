"""A state on other devices: what a reshard sends, and what restoring a checkpoint reads.

Of a reshard, which device sends how much to which, as a matrix: rows send and columns receive. Of
many devices, those of a host or of several are one row. Of a checkpoint, bars for processes and for
arrays.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardviz.core.format import (
    Fold,
    bytes_text,
    fold,
    ids_text,
    joined,
    listed,
    plural,
    seconds_text,
    shown,
)
from shardviz.core.layout.checkpoint import MUCH, ProcessReads, Restore, RestoreRow, SavedArray
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.reshard import Reshard, ReshardRow
from shardviz.core.layout.rule_uses import first_lines
from shardviz.picture.page import (
    PAD,
    and_more,
    page,
    paragraphs,
    side_by_side,
    text_page,
    text_width,
)
from shardviz.picture.picture import (
    NO_DEVICE,
    Frame,
    Label,
    Picture,
    Slot,
    make_tiles,
)
from shardviz.picture.tables import HIGHLIGHTED, NORMAL, Bar, bars, short_type

MOST_SIDE = 64  # rows and columns of a matrix
MOST_ROWS, MOST_LINES, MOST_SHADES, SHOWN = 12, 20, 6, 5
MOST_LETTERS = 40  # of device ids in a sentence
GAP, TOP = 1.0, 16.0
NOTHING = 3  # the palest colour of verdicts


def draw_reshard(reshard: Reshard, title: str | None = None) -> Picture:
    """Who sends how much to whom, and the arrays that move most.

    Args:
        title: `""` for none.

    >>> import shardviz as sv
    >>> moved = sv.reshard([("w", (8, 8), "a b")], ("x=4", [("a", "x")]), ("x=4", [("b", "x")]))
    >>> matrix, arrays = (picture for *_, picture in draw_reshard(moved).panels)
    >>> matrix.panels[0][2].tiles.tooltip(0), arrays.tiles.tooltip(0)
    ('device 0 to device 1: 16 B', "192 B w f32[8, 8] P('x', None) P(None, 'x') all-to-all")
    """
    lines = _summary(reshard)
    head = title_of(reshard) if title is None else title
    if not len(reshard.sends):
        rows = [(line, "text") for line in [*lines[1:], *_left(reshard)]]
        return text_page(rows, title=head, alt=" ".join(lines), facts={"kind": "reshard"})
    folds = _folds(reshard)
    drawn = [_bar(one) for one in folds[:MOST_ROWS]]
    hidden = sum(len(one.items) for one in folds[MOST_ROWS:])
    table = bars(
        drawn,
        ["bytes moved", "array", "type and shape", "from", "to", "amounts to"],
        notes=and_more(hidden, "array"),
        alt=_largest(reshard, folds),
    )
    return side_by_side(
        [_matrix(reshard), table],
        title=head,
        notes=[*lines[1:], *_left(reshard)],
        alt=" ".join(lines),
        width=1.0,
        facts={"kind": "reshard"},
    )


def title_of(reshard: Reshard) -> str:
    """`2 arrays from x=8 to x=4: 24 KiB sent`."""
    sides = zip(*((row.before.mesh, row.after.mesh) for row in reshard.rows), strict=True)
    names = [_mesh_words(meshes) for meshes in sides] or ["nowhere", "nowhere"]
    arrays = plural(len(reshard.rows), "array")
    sent = f"{bytes_text(reshard.bytes_moved)} sent" if len(reshard.sends) else "nothing is sent"
    return f"{arrays} from {names[0]} to {names[1]}: {sent}"


def _mesh_words(meshes: Sequence[MeshSpec]) -> str:
    """A mesh as text, or how many devices several have."""
    some = list({id(mesh): mesh for mesh in meshes}.values())
    if len({str(mesh) for mesh in some}) == 1:
        return str(some[0])
    return plural(
        len(np.unique(np.concatenate([m.device_ids.reshape(-1) for m in some]))), "device"
    )


@dataclass(frozen=True)
class _Side:
    """The rows of a matrix, which are its columns, too.

    Attributes:
        names: what each is called, `"device 3"`.
        short: the same where there is little space.
        of: int64 [devices]: the row of each device.
        devices: whether each is one device.
    """

    names: list[str]
    short: list[str]
    of: np.ndarray
    devices: bool


def _side(reshard: Reshard) -> _Side:
    ids, count = reshard.device_ids, len(reshard.device_ids)
    if count <= MOST_SIDE:
        texts = [str(n) for n in ids.tolist()]
        return _Side([f"device {n}" for n in texts], texts, np.arange(count), True)
    hosts = reshard.host_ids
    noun, values, row = "device", ids, np.arange(count)
    if len(hosts) > 1:
        noun, values, row = "host", hosts, np.searchsorted(hosts, reshard.hosts)
    each = -(-len(values) // MOST_SIDE)
    runs = [values[n : n + each] for n in range(0, len(values), each)]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    names = [f"{noun}{'s' * (len(r) > 1)} {t}" for r, t in zip(runs, texts, strict=True)]
    return _Side(names, texts, row // each, False)


def _matrix(reshard: Reshard) -> Picture:
    side = _side(reshard)
    count = len(side.names)
    source, target, amount = reshard.sends.T
    sums = np.zeros(count * count, np.int64)
    np.add.at(sums, side.of[source] * count + side.of[target], amount)
    shade, legend = _shades(sums)
    amounts, number = np.unique(sums, return_inverse=True)
    words = tuple(map(bytes_text, amounts.tolist()))
    cell = 44.0 if count <= 8 else 20.0 if count <= 16 else 640.0 / count
    left = max(text_width(name, 9.0) for name in side.names) + 10
    row, column = np.divmod(np.flatnonzero(sums), count)
    wide = max(text_width(word, 8.0) for word in words) + 6 <= cell
    names = tuple(side.names)
    pitch = cell + GAP
    tiles = make_tiles(
        left + column * pitch, TOP + row * pitch, cell, cell, shade[sums > 0],
        reshard.device_ids[row] if side.devices else NO_DEVICE,
        text=(Slot("amount", words=words),) if wide else (),
        hint=(
            Slot("row", words=names), " to ", Slot("column", words=names), ": ",
            Slot("amount", words=words),
        ),
        columns={"row": row, "column": column, "amount": number.reshape(-1)[sums > 0]},
        radius=2.0 if cell > 8 else 0.0,
    )  # fmt: skip
    note = "Rows send, columns receive."
    if not side.devices:
        note += " Squares on the diagonal are sent within them."
    width = count * pitch
    inside = page(
        tiles, _names(side, cell, left), legend=legend, size=(left + width, TOP + width),
        notes=[note], frames=_host_frames(reshard, side, cell, left), groups=len(legend) + 1,
        colormap="ramp", alt=note,
    )  # fmt: skip
    lines = make_tiles(
        PAD + left, PAD + TOP + np.arange(count) * pitch, width - GAP, cell, NOTHING,
        hint=[f"{name} sends" for name in side.names],
    )  # fmt: skip
    return Picture(
        inside.width, inside.height, lines, alt=note, colormap="verdicts", groups=4,
        panels=((0.0, 0.0, inside),),
    )  # fmt: skip


def _shades(sums: np.ndarray) -> tuple[np.ndarray, list[tuple[int, str]]]:
    """The shade of each amount, 0 for nothing, and what the others mean."""
    some = np.unique(sums[sums > 0])
    if len(some) < MOST_SHADES:
        texts = [bytes_text(n) for n in some.tolist()]
        return np.searchsorted(some, sums, "right"), list(enumerate(texts, 1))
    ends = np.geomspace(some[0], some[-1], MOST_SHADES)[1:]
    ends[-1] = some[-1]
    found = np.where(sums > 0, np.searchsorted(ends, sums, "left") + 1, 0)
    most = [int(some[np.searchsorted(some, end, "right") - 1]) for end in ends]
    return found, list(enumerate((f"up to {bytes_text(n)}" for n in most), 1))


def _names(side: _Side, cell: float, left: float) -> list[Label]:
    pitch = cell + GAP
    widest = max(text_width(name, 8.0) for name in side.short) + 6
    across, down = (max(1, -int(-need // pitch)) for need in (widest, 11.0))
    labels = [
        Label(left + n * pitch + cell / 2, 6, side.short[n], role="tick")
        for n in range(0, len(side.names), across)
    ]
    return labels + [
        Label(left - 6, TOP + n * pitch + cell / 2, side.names[n], "end", "tick")
        for n in range(0, len(side.names), down)
    ]


def _host_frames(reshard: Reshard, side: _Side, cell: float, left: float) -> list[Frame]:
    """A frame around what is sent within each host, where its devices are in one run."""
    hosts = reshard.hosts
    runs = np.split(np.arange(len(hosts)), np.flatnonzero(np.diff(hosts)) + 1)
    if not side.devices or len(runs) < 2 or len(runs) != len(reshard.host_ids):
        return []
    pitch = cell + GAP
    return [
        Frame(
            left + run[0] * pitch - GAP, TOP + run[0] * pitch - GAP,
            len(run) * pitch + GAP, len(run) * pitch + GAP, f"host {int(hosts[run[0]])}",
        )
        for run in runs
    ]  # fmt: skip


def _folds(reshard: Reshard) -> list[Fold[ReshardRow]]:
    """The arrays that move, largest first; those that differ in the number of a layer as one."""
    some = [row for row in reshard.rows if row.bytes_moved]
    alike = fold(some, lambda r: r.path, lambda r: (_words(r), r.bytes_moved))
    return sorted(alike, key=_fold_bytes, reverse=True)


def _fold_bytes(one: Fold[ReshardRow]) -> int:
    return sum(row.bytes_moved for row in one.items)


def _words(row: ReshardRow) -> tuple[str, str, str, str]:
    specs = ["other blocks" if v.spec is None else str(v.spec) for v in row[2:4]]
    return row.array.short, *specs, row.kind  # type: ignore[return-value]


def _amount(one: Fold[ReshardRow]) -> str:
    return f"{one.count}{bytes_text(one.items[0].bytes_moved)}"


def _bar(one: Fold[ReshardRow]) -> Bar:
    return Bar(_fold_bytes(one), _amount(one), (one.name, *_words(one.items[0])))


def _summary(reshard: Reshard) -> list[str]:
    """What is sent, by what, where to; a sentence or two in a line."""
    lines = [f"{title_of(reshard)}."]
    if len(reshard.sends):
        lines += [_split(reshard), _largest(reshard, _folds(reshard)), _busiest(reshard)]
    if reshard.rows:
        before, after = (int(side.max()) for side in (reshard.bytes_before, reshard.bytes_after))
        lines.append(
            f"On the fullest device {bytes_text(before)} before and {bytes_text(after)} after; at"
            f" most {bytes_text(reshard.peak_bytes_per_device)} while both are there, or"
            f" {bytes_text(reshard.peak_bytes_donated)} where each array is donated and moved by"
            " itself."
        )
    if reshard.link_seconds:
        times = [f"{name} {seconds_text(s)}" for name, s in reshard.link_seconds.items()]
        known = reshard.seconds is not None
        least = (
            f"At least {seconds_text(reshard.seconds)}" if known else "The least time is unknown"
        )
        lines.append(f"{least}: {joined(times)} ({reshard.rate_source}).")
    return [*lines, *reshard.notes]


def _split(reshard: Reshard) -> str:
    if len(reshard.host_ids) == 1:
        return "All of it stays on one host."
    inside, between = reshard.bytes_within_hosts, reshard.bytes_between_hosts
    hosts = plural(len(reshard.host_ids), "host")
    return f"{bytes_text(inside)} within hosts, {bytes_text(between)} between {hosts}."


_LIKE = {
    "copy": "copied to other devices",
    "all-gather": "as all-gathers",
    "all-to-all": "as all-to-alls",
    "collective-permute": "as collective-permutes",
}


def _largest(reshard: Reshard, folds: Sequence[Fold[ReshardRow]]) -> str:
    """What most of it is, in one sentence."""
    alike: dict[tuple[str, str, str], list[Fold[ReshardRow]]] = {}
    for one in folds:
        alike.setdefault(_words(one.items[0])[1:], []).append(one)
    (before, after, kind), most = max(alike.items(), key=lambda kv: sum(map(_fold_bytes, kv[1])))
    share = sum(map(_fold_bytes, most)) / sum(map(_fold_bytes, folds))
    part = "All of it" if share == 1 else "Nearly all" if share > 0.99 else f"{share:.0%} of it"
    count = sum(len(one.items) for one in most)
    arrays = most[0].name if len(most) == 1 else f"{count:,} arrays, {most[0].name} first"
    specs = f"by {before} on both sides" if before == after else f"from {before} to {after}"
    return f"{part} is {arrays}, {specs}, {_LIKE[kind]}."


def _busiest(reshard: Reshard) -> str:
    """Which devices send and receive most."""
    found = []
    for amounts in (reshard.bytes_sent, reshard.bytes_received):
        ids, most = reshard.device_ids[amounts == amounts.max()], bytes_text(int(amounts.max()))
        others = "" if len(ids) == (amounts > 0).sum() else ", and others less"
        found.append((_devices(ids, len(amounts)), f"{most}{' each' * (len(ids) > 1)}{others}"))
    (senders, sent), (receivers, received) = found
    if found[0] == found[1]:
        return f"Sending and receiving most: {senders}, {sent}."
    return f"Sending most: {senders}, {sent}. Receiving most: {receivers}, {received}."


def _devices(ids: np.ndarray, count: int) -> str:
    """`device 3`, `devices 0–3`; how many, of more than fit in a line."""
    if len(ids) == count > 1:
        return "all devices"
    text = ids_text(ids)
    some = f"device{'s' * (len(ids) > 1)} {text}"
    return some if len(text) <= MOST_LETTERS else plural(len(ids), "device")


def _left(reshard: Reshard) -> list[str]:
    """Why arrays are left behind: a line for each reason."""
    alike: dict[str, list[str]] = {}
    for path, sentence in reshard.left_behind.items():
        alike.setdefault(sentence, []).append(path)
    if not alike:
        return []
    lines = []
    for sentence, paths in alike.items():
        names = [one.name for one in fold(paths, str)]
        lines.append(f"  {joined(names, limit=SHOWN)}: {sentence}")
    head = f"{plural(len(reshard.left_behind), 'array')} left behind, and not counted above:"
    return first_lines(head, lines).split("\n")


def reshard_text(reshard: Reshard, width: int, full: bool = False) -> str:
    """A reshard: what is sent, by whom, the peak of memory, and the arrays, the largest first.

    Args:
        width: letters per line.
        full: every array in a line of its own, also those that do not move.

    >>> import shardviz as sv
    >>> print(reshard_text(sv.reshard([("w", (8, 8), "a b")], ("x=4", "x"), ("x=2", "x")), 80))
    1 array from x=4 to x=2: 192 B sent.
    All of it stays on one host.
    All of it is w, by P('x') on both sides, copied to other devices.
    Sending most: devices 1–3, 64 B each. Receiving most: device 1, 128 B, and
      others less.
    On the fullest device 64 B before and 128 B after; at most 192 B while both are
      there, or 192 B where each array is donated and moved by itself.
    """
    lines = [*_summary(reshard), *_left(reshard)]
    folds: Sequence[Fold[ReshardRow]] = _folds(reshard)
    if full:
        folds = [Fold(((row.path,),), 1, (row,)) for row in reshard.rows]
    shown = folds if full else folds[:MOST_LINES]
    if len(reshard.rows) > 1 and shown:
        lines.append("Bytes moved, the largest first:")
        left = max(len(_amount(one)) for one in shown)
        for one in shown:
            short, before, after, kind = _words(one.items[0])
            specs = before if before == after else f"{before} → {after}"
            parts = [one.name, short, specs, kind or "stays"]
            lines.append(f"  {_amount(one):>{left}}  {' · '.join(parts)}")
        hidden = sum(len(one.items) for one in folds[len(shown) :])
        still = len(reshard.rows) - sum(len(one.items) for one in folds)
        lines += [f"  {more}" for more in and_more(hidden, "array")]
        lines += [f"  nothing of {plural(still, 'array')} is sent"] if still else []
    return paragraphs(lines, width)


MOST_ARRAYS = 24
MOST_PROCESSES = 16
MOST_PROBLEMS = 8


def draw_restore(found: Restore, title: str | None = None) -> Picture:
    """What every process reads, and what is read of the arrays; the largest first.

    >>> from shardviz.core.layout.checkpoint import SavedCheckpoint, Wanted, plan_restore
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> checkpoint = SavedCheckpoint("/run/5", 5, "", "zarr", True, ())
    >>> draw_restore(plan_restore(checkpoint, Wanted({}, make_mesh(x=2)))).facts["kind"]
    'restore'
    """
    processes = [_process_bar(p) for p in found.processes[:MOST_PROCESSES]]
    folds = _restore_folds(found)
    arrays = [_array_bar(f) for f in folds[:MOST_ARRAYS]]
    left = sum(len(f.items) for f in folds[MOST_ARRAYS:])
    panels = [
        bars(
            processes,
            ["read", "process", "chunks", "read, of what is needed", "host memory at most"],
            notes=_more_processes(len(found.processes) - len(processes)),
            alt=" ".join(map(_process_line, found.processes[:MOST_PROCESSES])),
        ),
        bars(
            arrays,
            ["read", "array", "type and shape", "saved → wanted", "chunks", ""],
            legend=((NORMAL, "as needed"), (HIGHLIGHTED, "more than is needed")),
            notes=and_more(left, "array"),
            alt=" ".join(map(_array_line, folds[:MOST_ARRAYS])),
        ),
    ]
    notes: list[str | Label] = [Label(0, 0, t, "start", "note", "bad") for t in _problems(found)]
    notes += [found.advice, *(f"{note}." for note in found.notes), _default(found)]
    return side_by_side(
        panels,
        title=_head(found) if title is None else title,
        notes=notes,
        alt=restore_text(found, 10_000),
        width=1.0,
        facts={"kind": "restore"},
    )


def restore_text(found: Restore, width: int, full: bool = False) -> str:
    """What is read: by process, then by array, the largest first; what is wrong before it.

    Args:
        width: letters per line.
        full: every array and process in a line of its own; else arrays that differ only in the
            number of their layer are one line, and the smaller ones are counted.
    """
    if full:
        rows = sorted(found.rows, key=lambda row: -row.bytes_at_most)
        folds = [one for row in rows for one in fold([row], lambda r: r.path)]
    else:
        folds = _restore_folds(found)
    arrays = folds if full else folds[:MOST_ARRAYS]
    processes = found.processes if full else found.processes[:MOST_PROCESSES]
    hidden = sum(len(f.items) for f in folds[len(arrays) :])
    lines = [_head(found), *_problems(found, full), found.advice]
    lines += [_process_line(p) for p in processes]
    lines += _more_processes(len(found.processes) - len(processes))
    if arrays:
        lines.append("Arrays, of which most is read first:")
        lines += [f"  {_array_line(one)}" for one in arrays]
        lines += [f"  {more}" for more in and_more(hidden, "array")]
    return paragraphs([*lines, *(f"{note}." for note in found.notes), _default(found)], width)


def _head(found: Restore) -> str:
    saved = found.checkpoint
    folder = Path(saved.path).parent if saved.item else Path(saved.path)
    name = folder.name if saved.step is None else f"step {saved.step} of {folder.parent.name}"
    item = f", {saved.item}" if saved.item else ""
    stored = "" if saved.stored_bytes is None else f", {bytes_text(saved.stored_bytes)} stored"
    processes = plural(len(found.process_numbers), "process", "processes")
    return (
        f"{name}{item}: {plural(len(saved.arrays), 'array')}, {bytes_text(saved.bytes)}"
        f"{stored} → {found.mesh} · {plural(found.mesh.size, 'device')} · {processes}"
    )


def _more_processes(count: int) -> list[str]:
    return [f"and {plural(count, 'more process', 'more processes')}"] if count > 0 else []


def _problems(found: Restore, full: bool = False) -> list[str]:
    lines = [f"✗ {shown(path)}: {problem}" for path, problem in found.problems.items()]
    hidden = 0 if full else len(lines) - MOST_PROBLEMS
    lines = lines if full else lines[:MOST_PROBLEMS]
    lines += and_more(hidden, "problem")
    if found.missing:
        lines.append(f"✗ wanted and not in the checkpoint: {listed(found.missing)}")
    if found.not_wanted:
        lines.append(
            f"✗ in the checkpoint and not wanted: {listed(found.not_wanted)}; orbax leaves them out"
            " only with partial_restore=True"
        )
    return lines


def _default(found: Restore) -> str:
    return (
        "Counted is what orbax does by default: every process reads the chunks that its own shards"
        f" meet, {found.limit // 10**9:,} GB at once at most (restore_concurrent_gb)."
    )


def _restore_folds(found: Restore) -> list[Fold[RestoreRow]]:
    folds = fold(found.rows, lambda row: row.path, _what_is_read)
    return sorted(folds, key=lambda f: -sum(row.bytes_at_most for row in f.items))


def _what_is_read(row: RestoreRow) -> Hashable:
    problem = None if row.problem is None else re.sub(r"\d+", "#", row.problem)
    saved = row.saved
    return (
        saved.shape, saved.dtype, saved.chunk_shape, saved.spec, row.spec, row.dtype,
        row.bytes_at_most, problem, row.notes,
    )  # fmt: skip


def _range(least: int, most: int) -> str:
    """`2 MiB`, or `1 MiB to 2 MiB` where it depends on what is in memory still."""
    return bytes_text(most) if least == most else f"{bytes_text(least)} to {bytes_text(most)}"


def _times(amplification: tuple[float, float] | None) -> str:
    if amplification is None:
        return "nothing is needed"
    least, most = (f"{value:.2f}".rstrip("0").rstrip(".") for value in amplification)
    return f"{most} ×" if least == most else f"{least} to {most} ×"


def _process_line(p: ProcessReads) -> str:
    stored = ""
    if p.stored_at_least is not None and p.stored_at_most is not None:
        stored = f" ({_range(p.stored_at_least, p.stored_at_most)} stored)"
    return (
        f"process {p.process}: {plural(p.chunks, 'chunk')} in {plural(p.reads, 'read')},"
        f" {_range(p.bytes_at_least, p.bytes_at_most)}{stored} for"
        f" {bytes_text(p.bytes_needed)}, {_times(p.amplification)};"
        f" host memory at most {bytes_text(p.peak_host_bytes)}."
    )


def _process_bar(p: ProcessReads) -> Bar:
    much = (p.amplification or (0.0, 0.0))[1] > MUCH
    return Bar(
        p.bytes_at_most,
        _range(p.bytes_at_least, p.bytes_at_most),
        (
            str(p.process),
            f"{p.chunks:,}" if p.chunks == p.reads else f"{p.chunks:,} in {p.reads:,} reads",
            _times(p.amplification),
            bytes_text(p.peak_host_bytes),
        ),
        HIGHLIGHTED if much else NORMAL,
        _process_line(p),
    )


def _saved_words(saved: SavedArray) -> str:
    if saved.spec is not None:
        return str(saved.spec)
    if saved.kind != "array":
        return {"numpy": "numpy", "scalar": "number"}[saved.kind]
    return saved.device or "unknown"


def _spec_words(spec: Spec | None) -> str:
    return "unknown" if spec is None else str(spec)


def _array_words(row: RestoreRow) -> Sequence[str]:
    saved = row.saved
    chunks = f"{plural(saved.chunks, 'chunk')} of {list(saved.chunk_shape)}"
    return (
        short_type(saved.dtype, saved.shape),
        f"{_saved_words(saved)} → {_spec_words(row.spec)}",
        chunks,
    )


def _array_line(one: Fold[RestoreRow]) -> str:
    row = one.items[0]
    words = " · ".join([one.name, *_array_words(row), *row.notes])
    if row.reads is None:
        return f"{words} · not read"
    read = _range(row.bytes_at_least, row.bytes_at_most)
    return f"{one.count}{read} ({_times(row.amplification)})  {words}"


def _array_bar(one: Fold[RestoreRow]) -> Bar:
    row, total = one.items[0], sum(row.bytes_at_most for row in one.items)
    much = (row.amplification or (0.0, 0.0))[1] > MUCH
    remark = "; ".join([_times(row.amplification), *row.notes])
    tone = "bad" if row.problem else ""
    text = f"{one.count}{_range(row.bytes_at_least, row.bytes_at_most)}"
    words = (one.name, *_array_words(row), row.problem or remark)
    if row.reads is None:
        return Bar(None, "", words, tone=tone)
    return Bar(total, text, words, HIGHLIGHTED if much else NORMAL, _array_line(one), tone)
