"""Sentences about the differences between a lock and the current program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from shardviz.advise.lock import LockDiff, LockedCollective, folded_layers
from shardviz.base.format import bytes_text, clause, plural, told_apart

_NUMBERED = "as they are numbered"


def lock_difference(diff: LockDiff) -> str:
    """Describes one difference per line; equal differences of layers share a line."""
    if diff.same:
        return "Nothing changed."
    return "\n".join(_lines(diff))


def _lines(diff: LockDiff) -> Iterator[str]:
    before, after = diff.before, diff.after
    if diff.remeshed:
        yield f"Mesh: {before.mesh} -> {after.mesh}"
    # A lock only records a device order that is not the order of the ids.
    if diff.reordered:
        old, new = before.device_order or _NUMBERED, after.device_order or _NUMBERED
        yield f"Order of the devices: {old} -> {new}"
    counts = {
        "changed": len(diff.changed),
        "new": len(diff.added),
        "gone": len(diff.removed),
    }
    counted = [_counted("array", counts)]
    counts = {
        "gained": sum(c.count for c in diff.gained),
        "lost": sum(c.count for c in diff.lost),
    }
    counted.append(_counted("collective", counts))
    if any(counted):
        yield "; ".join(filter(None, counted)) + "."
    held, holds = before.bytes_per_device, after.bytes_per_device
    # Skip a difference that disappears in the rounded figures.
    if held is not None and holds is not None and bytes_text(held) != bytes_text(holds):
        arrays = f"Each device held {bytes_text(held)} of these arrays"
        yield f"{arrays} and holds {bytes_text(holds)}."
    if diff.gained or diff.lost:
        took, take = told_apart([_sum(before.collectives), _sum(after.collectives)])
        yield f"The results of collectives took {took} on each device and take {take}."
    for lead, collectives in (("Gained", diff.gained), ("Lost", diff.lost)):
        for collective in sorted(collectives, key=lambda c: -c.bytes_in_all):
            yield f"{lead}: {_collective(collective)}"
    for name, (old, new) in folded_layers(diff.changed):
        yield f"{name}: {_changed(old, new)}"
    for name, array in folded_layers(diff.added):
        yield f"New: {name}, {array}"
    for name, array in folded_layers(diff.removed):
        yield f"Gone: {name}, {array}"
    yield from _made_with(diff)


def _counted(noun: str, counts: Mapping[str, int]) -> str:
    """Formats counts: `2 arrays changed, 1 new`; `""` for none."""
    words: list[str] = []
    for word, number in counts.items():
        if number:
            # Only the first entry contains the noun.
            amount = f"{number:,}" if words else plural(number, noun)
            words.append(f"{amount} {word}")
    return ", ".join(words)


def _collective(one: LockedCollective) -> str:
    """Formats a collective: `2 × all-gather of 1 KiB × 12 over data, mlp/dot_general`"""
    many = loops = ""
    if one.count > 1:
        many = f"{one.count:,} × "
    if one.executions is None:
        # The trip count of the loop is unknown.
        loops = " × ?"
    elif one.executions != 1:
        loops = f" × {one.executions:,}"
    over = clause(" over {}", " × ".join(one.over))
    where = clause(", {}", one.where)
    return f"{many}{one.kind} of {bytes_text(one.bytes)}{loops}{over}{where}"


def _changed(old: str, new: str) -> str:
    old_type, _, old_spec = old.partition("] ")
    new_type, _, new_spec = new.partition("] ")
    # If shape and dtype are unchanged, only the sharding is shown.
    if old_type == new_type:
        return f"{old_spec} -> {new_spec}"
    return f"{old} -> {new}"


def _sum(collectives: Iterable[LockedCollective] | None) -> int:
    return sum(c.bytes_in_all for c in collectives or ())


def _made_with(diff: LockDiff) -> Iterator[str]:
    """Describes other possible causes: another jax version, another target."""
    leads = {"jax": "The lock was made with jax", "target": "It was made for"}
    why = ""
    if diff.same_specs:
        why = " Every spec is as locked: XLA's partitioner chose otherwise."
    for what, lead in leads.items():
        old, new = diff.before.made_with.get(what), diff.after.made_with.get(what)
        if old and new and old != new:
            yield f"{lead} {old}, and this is {new}.{why}"


EXPLANATIONS = {LockDiff: lock_difference}
