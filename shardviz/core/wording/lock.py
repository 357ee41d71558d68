"""What differs between a lock and what is so now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardviz.core.format import bytes_text, plural
from shardviz.core.program.lock import (
    ChangedArray,
    LockDiff,
    LockedCollective,
    folded_layers,
)


def lock_difference(diff: LockDiff) -> str:
    """The difference, one sentence on each line, and one line for all layers."""
    if diff.same:
        return "Nothing changed."
    return "\n".join(_lines(diff))


def _lines(diff: LockDiff) -> Iterator[str]:
    before, after = diff.before, diff.after
    if diff.remeshed:
        yield f"Mesh: {before.mesh} -> {after.mesh}"
    if diff.reordered:
        old = before.device_order or "as they are numbered"
        new = after.device_order or "as they are numbered"
        yield f"Order of the devices: {old} -> {new}"
    counted = _counted(diff)
    if counted:
        yield counted
    yield from _bytes(diff)
    for one in sorted(diff.gained, key=_size):
        yield f"Gained: {_collective(one)}"
    for one in sorted(diff.lost, key=_size):
        yield f"Lost: {_collective(one)}"
    for name, change in folded_layers(diff.changed):
        yield f"{name}: {_changed(change)}"
    for name, array in folded_layers(diff.added):
        yield f"New: {name}, {array.text}"
    for name, array in folded_layers(diff.removed):
        yield f"Gone: {name}, {array.text}"
    # What else may be the reason: another version of jax, another target.
    leads = {"jax": "The lock was made with jax", "target": "It was made for"}
    only = not (diff.respecified or diff.remeshed or diff.reordered)
    why = " Every spec is as locked: XLA's partitioner chose otherwise." if only else ""
    for what, (old, new) in diff.remade.items():
        yield f"{leads[what]} {old}, and this is {new}.{why}"


def _collective(one: LockedCollective) -> str:
    """`2 × all-gather of 1 KiB × 12 over data, mlp/dot_general`"""
    many = f"{one.count:,} × " if one.count > 1 else ""
    often = "?" if one.executions is None else f"{one.executions:,}"
    loops = f" × {often}" if one.executions != 1 else ""
    over = f" over {' × '.join(one.over)}" if one.over else ""
    where = f", {one.where}" if one.where else ""
    return f"{many}{one.kind} of {bytes_text(one.bytes)}{loops}{over}{where}"


def _size(one: LockedCollective) -> int:
    return -one.bytes_in_all


def _changed(change: ChangedArray) -> str:
    old, new = change
    if old.has_type_of(new):
        return f"{old.placed} -> {new.placed}"
    return f"{old.text} -> {new.text}"


def _counted(diff: LockDiff) -> str:
    """`2 arrays changed, 1 new; 3 collectives gained.`, or `""`."""
    sides = []
    for noun, counts in diff.counts.items():
        words: list[str] = []
        for word, number in counts.items():
            if number:
                # The first says of what: `2 arrays changed, 1 new`.
                amount = f"{number:,}" if words else plural(number, noun)
                words.append(f"{amount} {word}")
        if words:
            sides.append(", ".join(words))
    return "; ".join(sides) + "." if sides else ""


def _bytes(diff: LockDiff) -> Iterator[str]:
    old, new = diff.before.bytes_per_device, diff.after.bytes_per_device
    if old is not None and new is not None and bytes_text(old) != bytes_text(new):
        held, holds = bytes_text(old), bytes_text(new)
        yield f"Each device held {held} of these arrays and holds {holds}."
    if diff.communicates:
        took, take = _sum(diff.before.collectives), _sum(diff.after.collectives)
        yield f"The results of collectives took {took} on each device and take {take}."


def _sum(some: Iterable[LockedCollective] | None) -> str:
    return bytes_text(sum(one.bytes_in_all for one in some or ()))


EXPLANATIONS = {LockDiff: lock_difference}
