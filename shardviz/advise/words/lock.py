"""Sentences about the differences between a lock and the current program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from shardviz.advise.lock import LockDiff, LockedCollective, folded_layers
from shardviz.base.collective import trips_text
from shardviz.base.format import by_count, clause, plural, told_apart

_NUMBERED = "by id"


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
    if held is not None and holds is not None and held != holds:
        old, new = told_apart([held, holds])
        yield f"The arrays took {old} per device, and now take {new}."
    if diff.gained or diff.lost:
        took, take = told_apart([_sum(before.collectives), _sum(after.collectives)])
        yield f"The results of collectives took {took} per device, and now take {take}."
    sizes = [c.bytes for c in (*diff.gained, *diff.lost)]
    texts = dict(zip(sizes, told_apart(sizes), strict=True))
    for lead, collectives in (("Gained", diff.gained), ("Lost", diff.lost)):
        for collective in sorted(collectives, key=lambda c: -c.bytes_in_all):
            yield f"{lead}: {_collective(collective, texts[collective.bytes])}"
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


def _collective(one: LockedCollective, size: str) -> str:
    """Formats a collective: `2 × all-gather over data, mlp, results 1 KiB × 12`."""
    many = f"{one.count:,} × " if one.count > 1 else ""
    loops = trips_text(one.executions)
    over = clause(" over {}", " × ".join(one.over))
    where = clause(", {}", one.where)
    result = by_count(one.count, "result", "results")
    return f"{many}{one.kind}{over}{where}, {result} {size}{loops}"


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
    sentences = {
        "jax": "The lock was made with jax {}, but this is jax {}.",
        "target": "The lock was made for {}, but the program is now for {}.",
    }
    why = ""
    if diff.same_specs:
        why = " All specs are as locked, so XLA's partitioner chose differently."
    for what, words in sentences.items():
        old, new = diff.before.made_with.get(what), diff.after.made_with.get(what)
        if old and new and old != new:
            yield f"{words.format(old, new)}{why}"


EXPLANATIONS = {LockDiff: lock_difference}
