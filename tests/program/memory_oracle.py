"""XLA's own peak, by a second way to read what it writes: the events of its heap, replayed."""

from __future__ import annotations

from collections import Counter

from shardviz.core.xla.wire import Message


def heap_peaks(final: bytes) -> tuple[int, dict[int, int]]:
    """What lasts in the main memory, and the most of each kind of memory's simulated heap."""
    assignment = Message(final).message(3)
    size = {value.number(1): value.number(2) for value in assignment.messages(1)}
    color = {value.number(1): value.number(4) for value in assignment.messages(1)}
    lasting = 0
    for allocation in assignment.messages(3):
        lasts = any(allocation.number(field) for field in (5, 7, 12))
        if lasts and not allocation.number(8):
            lasting += allocation.number(2)
    most: dict[int, int] = {}
    for trace in assignment.messages(4):
        live = highest = 0
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
            highest = max(highest, live)
        if first:
            kind_of_memory = color[next(iter(first))]
            most[kind_of_memory] = max(most.get(kind_of_memory, 0), highest)
    return lasting, most
