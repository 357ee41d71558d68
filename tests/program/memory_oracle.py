"""XLA's own peak, by a second way to read what it writes: the events of its heap, replayed."""

from __future__ import annotations

from collections import Counter

from shardviz.compiled.wire import Message


def heap_peaks(final: bytes) -> tuple[int, dict[int, int]]:
    """What lasts in the main memory, and the most of each kind of memory's simulated heap."""
    lasting, live = heap_bytes(final)
    return lasting, {color: max(after, default=0) for color, after in live.items()}


def heap_bytes(final: bytes) -> tuple[int, dict[int, list[int]]]:
    """What lasts in the main memory, and of each kind the live bytes after each allocation."""
    assignment = Message(final).message(3)
    size = {value.number(1): value.number(2) for value in assignment.messages(1)}
    color = {value.number(1): value.number(4) for value in assignment.messages(1)}
    lasting = 0
    for allocation in assignment.messages(3):
        lasts = any(allocation.number(field) for field in (5, 7, 12))
        if lasts and not allocation.number(8):
            lasting += allocation.number(2)
    found: dict[int, list[int]] = {}
    for trace in assignment.messages(4):
        live = 0
        first: dict[int, int] = {}
        users: Counter[int] = Counter()
        for event in trace.messages(1):
            kind, value = event.number(1), event.number(2)
            if kind != 1:
                first[value] = value if kind == 0 else first[event.number(5)]
            own = first[value]
            before = users[own]
            users[own] += -1 if kind == 1 else 1
            if not before or not users[own]:
                live += size[own] * (1 if users[own] else -1)
            if kind != 1:
                found.setdefault(color[value], []).append(live)
    return lasting, found
