"""Observed and Event: the order in which effects really happened. Pure data; knows no jax."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shardviz.core.display import Displayed
from shardviz.core.errors import plural
from shardviz.core.program.report import Report


@dataclass(frozen=True)
class Event:
    """One time that an effect happened.

    Attributes:
        number: its place in the order in which the host saw the events, from 0.
        name: the effect in words, or `"pure_callback"` for a host call that is no effect.
        what: the text that was printed from, or the name of the function that was called.
        stands: where in the program, such as `"top level"` or `"shard_map > scan"`.
        ordered: whether jax keeps its order.
        device: the id of the device it happened for; None where that cannot be told.
        values: what it was given, as short text.

    >>> print(Event(0, "debug callback", "{x}", "scan", False, 3, "1.0"))
    device 3: debug callback '{x}' (scan) of 1.0
    """

    number: int
    name: str
    what: str
    stands: str
    ordered: bool
    device: int | None
    values: str

    def __str__(self) -> str:
        who = "some device" if self.device is None else f"device {self.device}"
        of = f" of {self.values}" if self.values else ""
        return f"{who}: {self.name} {self.what!r} ({self.stands}){of}"


@dataclass(frozen=True, repr=False)
class Observed(Displayed):
    """The order in which a program's effects happened in one run, up to the barrier.

    Attributes:
        program: its name.
        events: the events, in the order in which the host saw them.
        report: the Report of the run, with its error where it failed.

    >>> from shardviz.core.program.report import Report
    >>> first = Event(0, "debug callback", "{x}", "top level", False, 0, "1.0")
    >>> Observed("f", (first,), Report("f", "CPU × 1")).per_device().keys()
    dict_keys([0])
    """

    program: str
    events: tuple[Event, ...]
    report: Report = field(compare=False)

    def per_device(self) -> dict[int | None, tuple[Event, ...]]:
        """The events of every device in order, by its id; None for those of no certain device."""
        ids = sorted({e.device for e in self.events}, key=lambda i: -1 if i is None else i)
        return {i: tuple(e for e in self.events if e.device == i) for i in ids}

    def rows(self) -> list[dict[str, Any]]:
        """One plain dict an event, ready for JSON."""
        return [
            {
                "number": e.number,
                "device": e.device,
                "name": e.name,
                "what": e.what,
                "stands": e.stands,
                "ordered": e.ordered,
                "values": e.values,
            }
            for e in self.events
        ]

    def explain(self) -> str:
        """The events as lines of text, and which of their order jax promises."""
        lines = [f"{self.program}: {plural(len(self.events), 'event')} up to the barrier"]
        if self.report.error is not None:
            lines.append(f"✗ {self.report.error}")
        digits = len(str(len(self.events)))
        lines += [
            f"{e.number + 1:>{digits}}  {e}; {'ordered' if e.ordered else 'unordered'}"
            for e in self.events
        ]
        if any(not e.ordered for e in self.events):
            lines.append("Unordered events may come in another order the next time.")
        if any(e.ordered for e in self.events):
            lines.append(
                "Ordered events of one device come in the order of the program, every time;"
                " between devices no order holds."
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Observed({self.program}: {plural(len(self.events), 'event')})"
