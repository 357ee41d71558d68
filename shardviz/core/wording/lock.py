"""What differs between a lock and what is so now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardviz.core.format import bytes_text, clause, plural
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
    # No order is locked where the devices come as they are numbered.
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
    why = ""
    if not (diff.respecified or diff.remeshed or diff.reordered):
        why = " Every spec is as locked: XLA's partitioner chose otherwise."
    for what, (old, new) in diff.remade.items():
        yield f"{leads[what]} {old}, and this is {new}.{why}"


def _collective(one: LockedCollective) -> str:
    """`2 × all-gather of 1 KiB × 12 over data, mlp/dot_general`"""
    many = loops = ""
    if one.count > 1:
        many = f"{one.count:,} × "
    if one.executions is None:
        # In a loop whose trip count the compiler does not say.
        loops = " × ?"
    elif one.executions != 1:
        loops = f" × {one.executions:,}"
    over = clause(" over {}", " × ".join(one.over))
    where = clause(", {}", one.where)
    return f"{many}{one.kind} of {bytes_text(one.bytes)}{loops}{over}{where}"


def _size(one: LockedCollective) -> int:
    return -one.bytes_in_all


def _changed(change: ChangedArray) -> str:
    old, new = change
    # Where shape and dtype stay, the sharding alone says it.
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
                amount = plural(number, noun)
                if words:
                    amount = f"{number:,}"
                words.append(f"{amount} {word}")
        if words:
            sides.append(", ".join(words))
    return clause("{}.", "; ".join(sides))


def _bytes(diff: LockDiff) -> Iterator[str]:
    old, new = diff.before.bytes_per_device, diff.after.bytes_per_device
    # Differences that no one would see in these units are none.
    if old is not None and new is not None and bytes_text(old) != bytes_text(new):
        held, holds = bytes_text(old), bytes_text(new)
        yield f"Each device held {held} of these arrays and holds {holds}."
    if diff.communicates:
        took, take = _sum(diff.before.collectives), _sum(diff.after.collectives)
        yield f"The results of collectives took {took} on each device and take {take}."


def _sum(collectives: Iterable[LockedCollective] | None) -> str:
    return bytes_text(sum(one.bytes_in_all for one in collectives or ()))


EXPLANATIONS = {LockDiff: lock_difference}
