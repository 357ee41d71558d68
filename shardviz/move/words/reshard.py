"""Sentences about a reshard: bytes sent, senders and peak memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardviz.base.format import (
    Fold,
    by_count,
    bytes_text,
    fold,
    ids_text,
    joined,
    listed,
    plural,
    seconds_text,
    told_apart,
)
from shardviz.base.mesh import MeshSpec
from shardviz.move.reshard import Reshard, ReshardRow

SHOWN, MOST_REASONS = 5, 10
ROWS_SEND = "Rows send, columns receive."
WITHIN = "Squares on the diagonal show bytes sent among the devices of a row."
LARGEST_FIRST = "Bytes moved, the largest first:"
_KINDS = {
    "copy": "copied to other devices",
    "all-gather": "as all-gathers",
    "all-to-all": "as all-to-alls",
    "collective-permute": "as collective-permutes",
}


def not_sent(arrays: int) -> str:
    """Returns the number of arrays that do not move, as text."""
    return f"{plural(arrays, 'array is', 'arrays are')} not sent"


def title(reshard: Reshard) -> str:
    """Formats the title: `2 arrays from x=8 to x=4: 24 KiB sent`."""
    if not reshard.rows:
        return "No array is counted"
    before = _meshes([row.before.mesh for row in reshard.rows])
    after = _meshes([row.after.mesh for row in reshard.rows])
    sent = "nothing is sent"
    if len(reshard.sends):
        sent = f"{bytes_text(reshard.bytes_moved)} sent"
    return f"{plural(len(reshard.rows), 'array')} from {before} to {after}: {sent}"


def _meshes(meshes: Sequence[MeshSpec]) -> str:
    """Formats a mesh as text; for several meshes, their number of devices."""
    # Usually all arrays of a model share one mesh object.
    distinct = list({id(mesh): mesh for mesh in meshes}.values())
    if len(set(map(str, distinct))) == 1:
        return str(distinct[0])
    # Count a device once even if it is in several meshes.
    ids = np.concatenate([mesh.device_ids.reshape(-1) for mesh in distinct])
    return plural(len(np.unique(ids)), "device")


def folds(reshard: Reshard) -> list[Fold[ReshardRow]]:
    """Returns the arrays that move, folded by layer, largest first."""
    moving = [row for row in reshard.rows if row.bytes_moved]
    alike = fold(moving, lambda r: r.path, lambda r: (*words(r), r.bytes_moved))
    return sorted(alike, key=fold_bytes, reverse=True)


def fold_bytes(layer_rows: Fold[ReshardRow]) -> int:
    """Returns the total bytes that the arrays of a fold move."""
    return sum(row.bytes_moved for row in layer_rows.items)


def words(row: ReshardRow) -> tuple[str, str, str, str]:
    """Returns an array's type, its old and new spec, and the equivalent collective."""
    # A layout defined by shard indices has no spec.
    before = str(row.before.spec or "other blocks")
    after = str(row.after.spec or "other blocks")
    return row.array.short, before, after, row.kind


def summary(reshard: Reshard) -> list[str]:
    """Describes the bytes sent, the hosts, the memory and the least time."""
    lines = [f"{title(reshard)}."]
    if len(reshard.sends):
        lines += [_hosts(reshard), _largest(folds(reshard))]
    if reshard.rows:
        lines.append(_memory(reshard))
    if reshard.link_seconds:
        times = []
        for name, seconds in reshard.link_seconds.items():
            times.append(f"{name} {seconds_text(seconds)}")
        least = "The least time is unknown"
        if reshard.seconds is not None:
            least = f"At least {seconds_text(reshard.seconds)}"
        lines.append(f"{least}: {joined(times)} ({reshard.rate_source}).")
    if reshard.assumed_hosts:
        lines.append(_assumed(reshard.assumed_hosts))
    return lines


def _memory(reshard: Reshard) -> str:
    sizes = (int(reshard.bytes_before.max()), int(reshard.bytes_after.max()))
    peaks = (reshard.peak_bytes_per_device, reshard.peak_bytes_donated)
    before, after, peak, donated = told_apart([*sizes, *peaks])
    text = (
        f"The fullest device holds {before} before and {after} after. While both layouts"
        f" are in memory, a device holds at most {peak}"
    )
    if donated != peak:
        text += f", or {donated} if each array is donated and moved separately"
    return f"{text}."


def _hosts(reshard: Reshard) -> str:
    count = len(np.unique(reshard.hosts))
    if count == 1:
        return "All of it stays on one host."
    inside = bytes_text(reshard.bytes_within_hosts)
    between = bytes_text(reshard.bytes_between_hosts)
    return f"{inside} within hosts, {between} between {plural(count, 'host')}."


def _largest(moving: Sequence[Fold[ReshardRow]]) -> str:
    """Describes the change of specs that moves the most bytes, and its arrays."""
    alike: dict[tuple[str, str, str], list[Fold[ReshardRow]]] = {}
    for layer_rows in moving:
        alike.setdefault(words(layer_rows.items[0])[1:], []).append(layer_rows)
    total: dict[tuple[str, str, str], int] = {}
    for key, members in alike.items():
        total[key] = sum(map(fold_bytes, members))
    largest = max(total, key=total.__getitem__)
    before, after, kind = largest
    arrays = alike[largest][0].name
    if len(alike[largest]) > 1:
        count = sum(len(layer_rows.items) for layer_rows in alike[largest])
        arrays = f"{count:,} arrays such as {arrays}"
    specs = f"from {before} to {after}"
    # The mesh changes, but the spec does not.
    if before == after:
        specs = f"with {before} on both meshes"
    share = f"{bytes_text(total[largest])} of it"
    if len(total) == 1:
        share = "All of it"
    return f"{share} is for {arrays}, {specs}, {_KINDS[kind]}."


def left_behind(reshard: Reshard) -> list[str]:
    """Lists why arrays are not counted, and the entries that match no array."""
    sides = {"from_=": reshard.unused_before, "to=": reshard.unused_after}
    unused = []
    for side, paths in sides.items():
        if paths:
            names = listed(
                [layer_paths.name for layer_paths in fold(paths, str)], limit=SHOWN
            )
            unused.append(f"No array matches {names} in {side}.")
    reasons: dict[str, list[str]] = {}
    for path, reason in reshard.left_behind.items():
        reasons.setdefault(str(reason), []).append(path)
    if not reasons:
        return unused
    count = plural(len(reshard.left_behind), "array")
    verb = by_count(len(reshard.left_behind), "is", "are")
    lines = [f"{count} {verb} not counted above:"]
    for reason, paths in list(reasons.items())[:MOST_REASONS]:
        names = [layer_rows.name for layer_rows in fold(paths, str)]
        lines.append(f"  {joined(names, limit=SHOWN)}: {reason}")
    if len(reasons) > MOST_REASONS:
        lines.append(f"  … and {len(reasons) - MOST_REASONS:,} more")
    return [*lines, *unused]


def no_entry(argument: str) -> str:
    """Explains why an array has no layout: a tree of specs or shardings lacks it."""
    return f"{argument}= has no entry for it."


def short(reshard: Reshard) -> str:
    """Describes the arrays, devices and bytes sent, in short."""
    arrays = plural(len(reshard.rows), "array")
    devices = plural(len(reshard.device_ids), "device")
    words = f"{arrays} on {devices}: {bytes_text(reshard.bytes_moved)} sent"
    if reshard.left_behind:
        words += f", {plural(len(reshard.left_behind), 'array')} left behind"
    return words


def _assumed(device_ids: tuple[int, ...]) -> str:
    """Lists the devices that are assumed to be on host 0."""
    ids = np.array(device_ids)
    devices = f"{plural(len(ids), 'device')} ({ids_text(ids, 60)})"
    return (
        f"Host 0 is assumed for {devices}, because their mesh has only one host. If they are"
        " on other hosts, give sv.mesh(..., processes=...)."
    )


SENTENCES = {Reshard: short}
