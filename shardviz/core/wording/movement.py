"""What a collective or a reshard sends, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shardviz.core.format import by_count, bytes_text, clause, joined, plural
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.program.movement import Movement, MovementText
from shardviz.core.program.movement_steps import (
    MOST_LISTED,
    ListedSent,
    RegularSent,
    RegularSteps,
)

#: Code of an algorithm to what it is called.
ALGORITHMS = {
    "ring": "ring",
    "both directions": "ring in both directions",
    "torus": "torus: one axis after the other",
    "hosts": "within hosts, then between hosts",
    "direct": "direct",
}
# What goes between hosts does so in the middle of an all-reduce, and first of a gather.
_BETWEEN_HOSTS = {
    "all-gather": "between hosts, then within hosts",
    "all-reduce": "within hosts, between hosts, and back",
}
# Along which axis of a grid that is none of a torus.
_ALONG = {
    "hosts": "on another host",
    "devices": "on its host",
    "slices": "in another slice",
    "cores": "on its chip",
}


def text(fact: MovementText) -> str:
    """One thing to be said of a movement."""
    return TEXTS[fact.code](fact.movement)


def regular(step: RegularSent) -> str:
    """What every device sends in one step of a collective.

    >>> regular(RegularSent("gather", "", 1, 1, False, 2, 4))
    'Every device sends 1 chunk to its right neighbour; each then holds 2 of 4.'
    """
    along = ""
    if step.axis:
        along = f" {_ALONG.get(step.axis, f'along {step.axis}')}"
    what, to = plural(step.chunks, "chunk"), "its right neighbour"
    if step.action == "exchange":
        places = plural(step.hops, "place")
        return f"Every device sends {what} to the device {places} further on."
    if step.both_ways:
        to, what = "each of its two neighbours", "half a chunk"
        if step.chunks > 1:
            what = f"halves of {step.chunks:,} chunks"
    then = f"; each then holds {step.reached:,} of {step.count:,}"
    if step.action == "scatter":
        sums = f"sums of {step.reached:,} of {step.count:,} devices"
        then = f", which adds its own part: {sums}"
    return f"Every device sends {what} to {to}{along}{then}."


def listed(step: ListedSent) -> str:
    """What some devices send in one step of a permutation or a reshard."""
    senders = plural(step.sends, "device sends", "devices send")
    total = bytes_text(step.bytes)
    if step.sends > 1:
        total += " in all"
    across = clause(", {:,} of them to another host", step.far)
    return f"{senders} {total}{across}."


def algorithm(m: Movement) -> str:
    """What the algorithm is called."""
    name = m.method.name
    if name == "hosts":
        return _BETWEEN_HOSTS.get(m.kind, ALGORITHMS[name])
    if name == "torus" and len(m.method.ways) > 1:
        return f"{ALGORITHMS[name]}, in both directions"
    return ALGORITHMS[name]


def title(m: Movement) -> str:
    """`all-gather of 8 MiB over data, 8 devices, ring`."""
    count = plural(m.size, "device")
    if m.layouts:
        before, after = (str(v.spec or "other blocks") for v in m.layouts)
        array = ArraySpec("array", m.layouts[0].shape, None, m.layouts[0].dtype)
        return f"{m.kind} of {array.short} from {before} to {after}, {count}"
    over = clause(" over {}", " × ".join(m.mesh_axes))
    return (
        f"{m.kind} of {bytes_text(m.bytes_per_device)}{over}, {count}, {algorithm(m)}"
    )


def formula(m: Movement) -> str:
    """What each device sends, in general."""
    if m.layouts:
        return "bytes of the new block that are not in the old one"
    if not isinstance(m.steps, RegularSteps):
        return "bytes"
    return f"{_factor(m, filled=False)} × bytes"


def filled_in(m: Movement) -> str:
    """The formula with its numbers, and in how many steps."""
    steps = f"in {plural(len(m.steps), 'step')}"
    sent = f"{bytes_text(m.sent_bytes)} sent per device"
    if m.layouts:
        return f"{sent} at most, {bytes_text(m.total_sent)} in all, {steps}"
    if not isinstance(m.steps, RegularSteps):
        return f"{sent}, {steps}"
    size = bytes_text(m.bytes_per_device)
    return f"{_factor(m, filled=True)} × {size} = {sent}, {steps}"


def _factor(m: Movement, filled: bool) -> str:
    """By what the bytes are multiplied, with letters or with numbers."""
    factor = "(n - 1) / n"
    if filled:
        factor = f"{m.size - 1} / {m.size}"
    # An all-reduce is a reduce-scatter and an all-gather.
    if m.kind == "all-reduce":
        factor = f"2 × {factor}"
    return factor


def rate_source(m: Movement) -> str:
    """Whose rates the time is from, or why there is no time."""
    if m.layouts:
        return "The time of a reshard is not estimated."
    if m.topology is None:
        return "The rates of the links are not known: give topology=, such as 'tpu:v5e:4x4'."
    chip = m.topology.chip.title
    if m.seconds is None:
        return f"The rate of these links is not published for {chip}."
    return f"published rates of {chip}, {m.topology}"


def summed_up(m: Movement) -> str:
    """What is not listed device by device."""
    if not isinstance(m.steps, RegularSteps):
        return f"Of {m.size:,} devices, holdings are not listed."
    return (
        f"Every device does the same: of {m.size:,}, the steps list what the first"
        f" {MOST_LISTED} receive."
    )


def open_axes(m: Movement) -> str:
    """Which axes of a torus do not close to a ring."""
    axes = m.method.open_axes
    verb = by_count(len(axes), "does", "do")
    return (
        f"{joined(axes)} {verb} not close to a ring: what goes from the last device to the"
        " first crosses all links between them."
    )


TEXTS: Mapping[str, Callable[[Movement], str]] = {
    "algorithm": algorithm,
    "title": title,
    "formula": formula,
    "filled in": filled_in,
    "rate source": rate_source,
    "summed up": summed_up,
    "open axes": open_axes,
}
SENTENCES = {MovementText: text, RegularSent: regular, ListedSent: listed}
