"""Sentences for a program's timeline: its least times, in order."""

from __future__ import annotations

from shardviz.base.format import bytes_text, count_text, told_apart
from shardviz.compiled.measured import Measured, MeasuredRow
from shardviz.compiled.timeline import Span, Timeline
from shardviz.compiled.words.measured import WAITING
from shardviz.compiled.words.roofline import NOTES, time_text

NOT_YET = "Least times are being added up…"
NO_CHIP = "Least times need a chip: choose one under Target."
NOT_PLANNED = "There is no plan, so least times and memory are not known."
NO_PLAN = "There is no plan yet: the program is planned once you pause editing."
NOTHING = (
    "XLA may fuse every operation of this program, so there are no least times to show."
)
#: The names of the two schedules, each with an explanation.
SERIAL = ("One after another", "Each begins when the one before has ended.")
OVERLAPPED = (
    "Perfect overlap",
    "Arithmetic, memory accesses and collectives each run in order, all three at the same"
    " time: no schedule is faster.",
)
LEAST = "Least times are lower bounds from published rates, not measurements."
PLANNED = (
    "An estimate: the order, the operations and the collectives come from the plan, and the"
    " compiler may choose differently."
)
COMPILED = (
    "The collectives and the least time come from the compiled program; the order and the"
    " operations come from the plan. Collectives that share a source line are spread evenly"
    " over the line's operations."
)
LIVE = "Live bytes come from the plan, before XLA fuses operations."
MEASURED = (
    "The measured lane has its own time scale. It shows the median over the devices, in the"
    f" order in which operations began. {WAITING}"
)
UNKNOWN_TRIPS = NOTES["unknown trips"]


def summary(fact: Timeline) -> str:
    """Summarises the least times: one after another, and with perfect overlap."""
    serial, overlapped = told_apart([fact.serial_s, fact.overlapped_s], time_text, 3)
    words = (
        f"Least time: {serial} if operations run one after another, {overlapped} with"
        f" perfect overlap, on {fact.least.where}."
    )
    if fact.least.has_unknown_trips:
        words += f" {UNKNOWN_TRIPS}"
    if fact.unknown:
        words += f" {unknown(fact.unknown)}"
    return words


def peak(live: int) -> str:
    """Labels the most live bytes of a plan.

    >>> peak(3 << 30)
    'peak about 3 GiB'
    """
    return f"peak about {bytes_text(live)}"


def unknown(count: int) -> str:
    """Counts the unknown times, which the sums leave out.

    >>> unknown(1)
    '1 operation or collective has no known time, so the sums leave it out.'
    """
    if count == 1:
        return "1 operation or collective has no known time, so the sums leave it out."
    return (
        f"{count:,} operations or collectives have no known time, so the sums leave"
        " them out."
    )


def fused(count: int) -> str:
    """Counts the operations that are not drawn because they may be free.

    >>> fused(2)
    '2 operations are not drawn: they are free if XLA fuses them with a neighbour.'
    """
    if count == 1:
        return "1 operation is not drawn: it is free if XLA fuses it with a neighbour."
    return (
        f"{count:,} operations are not drawn: they are free if XLA fuses them with a"
        " neighbour."
    )


def span(fact: Span) -> str:
    """Describes the least time of a span, and the rate that limits it.

    >>> span(Span("dot_general", "product", 64e-6, "FLOP/s", 4e8, trips=32))
    'At least 64 µs: 32 × 2 µs, bound by FLOP/s: 400 MFLOP.'
    """
    if fact.seconds is None:
        return f"Time not known. {fact.note or ''}".rstrip()
    if not fact.bound:
        return f"Free if XLA fuses it with a neighbour.{_alone(fact)}"
    amount = bytes_text(int(fact.amount or 0))
    if fact.bound == "FLOP/s":
        amount = f"{count_text(fact.amount or 0)}FLOP"
    elif fact.kind == "collective":
        amount += " sent per device"
        if fact.latency:
            amount += f", {time_text(fact.latency)} of it latency"
    words = f"At least {_times(fact)}, bound by {fact.bound}: {amount}"
    if fact.kind == "op":
        return f"{words} that cannot be fused.{_alone(fact)}"
    return f"{words}."


def measured(fact: MeasuredRow) -> str:
    """Describes a bar of the measured lane.

    >>> measured(MeasuredRow("dot_general", "op", 1e-3, 1e-3, 1e-3, 1.0))
    'Measured: 1 ms per call.'
    """
    return f"Measured: {fact}"


def measured_lane(fact: Measured) -> str:
    """Labels the measured lane with the busy time of a call."""
    return f"measured {time_text(fact.seconds)}"


def _times(fact: Span) -> str:
    seconds = fact.seconds or 0.0
    if fact.trips == 1:
        return time_text(seconds)
    if fact.trips is None:
        return f"{time_text(seconds)} × ?"
    trip = time_text(seconds / fact.trips)
    return f"{time_text(seconds)}: {fact.trips:,} × {trip}"


def _alone(fact: Span) -> str:
    if not fact.alone or fact.alone <= (fact.seconds or 0.0):
        return ""
    return f" Without fusion it takes at least {time_text(fact.alone)}."


SENTENCES = {Timeline: summary, Span: span}
