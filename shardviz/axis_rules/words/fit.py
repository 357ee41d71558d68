"""Sentences on whether arrays or a program fit in a device's memory."""

from __future__ import annotations

from shardviz.axis_rules.fit import Fit, LargeArray, LargestArrays, Uncounted
from shardviz.base.format import bytes_text, clause, plural, told_apart


def fit(fact: Fit) -> str:
    """Formats a Fit as one sentence.

    >>> fit(Fit(3 << 30, 4 << 30))
    'Fits: 3 GiB of 4 GiB per device.'
    >>> fit(Fit(21 << 30, 16 << 30, "TPU v5e"))
    'Does not fit: 21 GiB per device; TPU v5e has 16 GiB.'
    """
    compared = [fact.needed, fact.capacity or 0]
    if fact.code == "not now":
        compared[1] = fact.free or 0
    size, limit = told_apart(compared)
    note = uncounted(fact.uncounted)
    # Activations need memory in addition to the arrays.
    if fact.arrays_only:
        note += ", before activations"
    needed = f"{size} per device{note}"
    if fact.code == "too large":
        owner = fact.device or "a device"
        has = limit
        if fact.reserved:
            whole = bytes_text((fact.capacity or 0) + fact.reserved)
            has = f"{whole}, {limit} of it usable"
        return f"Does not fit: {needed}; {owner} has {has}."
    if fact.code == "not now":
        return f"Does not fit now: {needed}; {limit} is free."
    if fact.capacity is None:
        return f"{needed}; the memory of a device is not known."
    # If some arrays are not counted, don't claim that all of them fit.
    head = "Fits:"
    if fact.uncounted:
        head = "At least"
    of = f"{size} of {limit} per device"
    return f"{head} {of}{clause(' ({})', fact.device)}{note}."


def uncounted(fact: Uncounted) -> str:
    """Formats the end of a sentence about uncounted arrays; `""` if there are none.

    >>> uncounted(Uncounted(1, 16384))
    ', not counting 1 array (16 KiB)'
    """
    if not fact:
        return ""
    size = bytes_text(fact.bytes)
    if fact.arrays > 1:
        size += " in total"
    return f", not counting {plural(fact.arrays, 'array')} ({size})"


def largest_arrays(fact: LargestArrays) -> str:
    """Lists the largest arrays and how they are split; `""` if there are none."""
    if not fact.arrays:
        return ""
    return f"The largest arrays: {'; '.join(map(_large_array, fact.arrays))}."


def _large_array(fact: LargeArray) -> str:
    layout = fact.layout
    size = bytes_text(layout.bytes_per_device)
    name = fact.name
    if fact.count > 1:
        name, size = f"{fact.count:,} × {name}", f"{size} each"
    if layout.num_blocks == 1:
        return f"{name}, {size} per device, not split"
    split = f"split {layout.num_blocks:,} ways"
    # Layouts that were created from shard indices have no spec.
    if layout.spec is not None:
        split += clause(" over {}", " × ".join(dict.fromkeys(layout.spec.axes)))
    return f"{name}, {size} per device, {split}"


SENTENCES = {Fit: fit, Uncounted: uncounted, LargestArrays: largest_arrays}
