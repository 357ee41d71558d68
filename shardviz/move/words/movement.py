"""Sentences about the steps of a collective."""

from __future__ import annotations

from shardviz.base.collective_kind import KINDS, Route
from shardviz.base.format import (
    by_count,
    bytes_text,
    clause,
    joined,
    plural,
    seconds_text,
)
from shardviz.hardware.words.hardware import published_rates
from shardviz.move.movement import Movement, MovementText
from shardviz.move.movement_steps import REGULAR, ListedSent, RegularSent

_ALGORITHMS = {
    "ring": "ring",
    "both directions": "ring in both directions",
    "torus": "torus: one axis after the other",
    "hosts": "within hosts, then between hosts",
    "direct": "direct",
}
# An all-reduce sends between hosts in its middle steps, and an all-gather in its first
# steps.
_BETWEEN_HOSTS = {
    ("gather",): "between hosts, then within hosts",
    ("scatter",): _ALGORITHMS["hosts"],
    ("scatter", "gather"): "within hosts, between hosts, and back",
}
# Phrases for grid axes that are not axes of a torus.
_ALONG = {
    "hosts": "on another host",
    "devices": "on its host",
    "slices": "in another slice",
    "cores": "on its chip",
}
_RECEIVED = "Dashed frames: received since the picture before."
THERE = "■ there, · not there"


def text(fact: MovementText) -> str:
    """Describes a fact about a movement."""
    functions = {
        "algorithm": _algorithm,
        "filled in": _filled_in,
        "rate source": _rate_source,
        "open axes": _open_axes,
        "hops": _hops,
    }
    return functions[fact.code](fact.movement)


def regular(step: RegularSent) -> str:
    """Describes the chunks that every device sends in one step of a collective.

    >>> regular(RegularSent("gather", "", 1, 1, False, 2, 4))
    'Every device sends 1 chunk to the next device; each then holds 2 of 4.'
    """
    phrase = plural(step.chunks, "chunk")
    if step.action == "exchange":
        places = plural(step.hops, "place")
        return f"Every device sends {phrase} to the device {places} further on."
    to, along = "the next device", ""
    if step.axis:
        along = f" {_ALONG.get(step.axis, f'along {step.axis}')}"
    if step.both_ways:
        to, phrase = "each of its two neighbours", "half a chunk"
        if step.chunks > 1:
            phrase = f"halves of {step.chunks:,} chunks"
    then = f"; each then holds {step.reached:,} of {step.count:,}"
    if step.action == "scatter":
        sums = f"{step.reached:,} of {step.count:,} devices"
        then = f", which adds its own part; the sums then include {sums}"
    return f"Every device sends {phrase} to {to}{along}{then}."


def listed(step: ListedSent) -> str:
    """Describes the data that some devices send in a permutation."""
    senders = plural(step.sends, "device sends", "devices send")
    size = bytes_text(step.bytes)
    if step.sends == 1:
        return (
            f"{senders} {size} over the network." if step.far else f"{senders} {size}."
        )
    over_network = ""
    if step.far:
        far_senders = plural(step.far, "device sends", "devices send")
        over_network = f"; {far_senders} over the network"
    return f"{senders} {size} in total{over_network}."


def title(m: Movement) -> str:
    """Formats the title: `all-gather that sends 7 MiB over data, 8 devices, ring`."""
    phrase, how = title_parts(m)
    over = clause(" over {}", " × ".join(m.mesh_axes))
    return f"{phrase}{over}, {how}"


def title_parts(m: Movement) -> tuple[str, str]:
    """Returns the title's text before the mesh axes, and after them."""
    phrase = f"{m.kind} that sends {bytes_text(m.sent_bytes)}"
    return phrase, f"{plural(m.size, 'device')}, {_algorithm(m)}"


def formula(m: Movement) -> str:
    """Returns the general formula for the bytes that each device sends."""
    array = "operand" if KINDS[m.kind].counts_operand else "result"
    if m.kind not in REGULAR:
        return array
    return f"{_factor(m, '(n - 1) / n')} × {array}"


def head_lines(m: Movement) -> list[str]:
    """Describes the bytes sent and the least time."""
    general = formula(m)
    lines = [f"{general[0].upper()}{general[1:]}: {m.filled_in}."]
    if m.seconds is not None:
        words = f"At least {seconds_text(m.seconds)}"
        if m.latency:
            words += f", {seconds_text(m.latency)} of it latency"
        lines.append(f"{words} ({m.rate_source}).")
    return [*lines, *map(str, m.notes)]


def before_first(m: Movement) -> str:
    """Describes the data on every device before the first step, with notes."""
    has = "its own data only"
    if m.sums:
        has = "its own part of every sum"
    words = [f"Before the first step: every device has {has}."]
    return " ".join([*words, *map(str, m.notes)])


def player_facts(m: Movement) -> str:
    """Returns the formula for the bytes that each device sends, and the least time."""
    words = f"each sends {formula(m)}: {m.filled_in}"
    if m.seconds is not None:
        words += f" · at least {seconds_text(m.seconds)}, {m.rate_source}"
    return words


def sent_so_far(m: Movement, steps_done: int) -> str:
    """Describes the most bytes that a device sends in a step, and in all steps so far.

    >>> from shardviz.move.movement import collective_movement
    >>> sent_so_far(collective_movement("all-gather", 4, 8 << 20), 2)
    'this step 2 MiB, so far 4 of 6 MiB'
    """
    sent = sum(step.bytes for step in m.steps[:steps_done])
    so_far, total = bytes_text(sent), bytes_text(m.sent_bytes)
    number, unit = so_far.split()
    # If both numbers have the same unit, write the unit once.
    if total.endswith(f" {unit}"):
        so_far = number
    return f"this step {bytes_text(m.steps[steps_done - 1].bytes)}, so far {so_far} of {total}"


def too_many_to_draw(m: Movement, largest: int) -> list[str]:
    """Describes a group that is too large to draw."""
    why = f"A group of {m.size:,} devices is not drawn: the limit is {largest}."
    return [why, *step_lines(m, 8)]


def step_lines(m: Movement, largest: int) -> list[str]:
    """Lists the steps; a run of equal steps is one line."""
    if len(m.steps) <= largest:
        return [f"Step {n}: {step.words}" for n, step in enumerate(m.steps, 1)]
    lines, number = [], 1
    for step, times in m.runs():
        line = f"Step {number:,}: {step.words}"
        if times > 1:
            last = number + times - 1
            line = f"Step {number:,}, repeated up to step {last:,}: {step.words}"
        lines.append(line)
        number += times
    if len(lines) > largest:
        lines[largest:] = [f"and {plural(len(lines) - largest, 'more line')}"]
    return lines


def sum_signs(m: Movement) -> str:
    """Returns the legend of a table of sums."""
    return f"■ sum of all {m.size} devices, 2 sum of two, · nothing"


def chunk_legend(m: Movement) -> list[str]:
    """Describes the rows, columns, blocks and frames of a film strip, by line."""
    if KINDS[m.kind].route is Route.EXCHANGE:
        words = (
            "Rows are devices; chunks have the colour of the device that each goes to."
        )
        return [f"{words} {_RECEIVED}"]
    words = "Rows are devices, columns are chunks"
    if m.sums:
        count = f"how many of the {m.contributors} devices its sum includes"
        return [f"{words}. The width of a block shows {count}.", _RECEIVED]
    return [f"{words}. {_RECEIVED}"]


def caption(m: Movement, steps_done: int) -> str:
    """Returns the caption for a picture of one step."""
    if steps_done == len(m.steps):
        return f"After {plural(steps_done, 'step')}: the data of every device."
    step = m.steps[steps_done]
    largest = f"{bytes_text(step.bytes)} per device"
    return f"Next, step {steps_done + 1} of {len(m.steps):,}, {largest}: {step.words}"


def still_title(m: Movement, steps_done: int) -> str:
    """Returns the title of one picture in a film strip."""
    if not m.steps:
        return "nothing is sent"
    if steps_done == len(m.steps):
        return "end"
    return f"after step {steps_done}" if steps_done else "start"


def _algorithm(m: Movement) -> str:
    name = m.method.name
    if name == "hosts":
        return _BETWEEN_HOSTS[KINDS[m.kind].steps]
    if name == "torus" and len(m.method.directions) > 1:
        return f"{_ALGORITHMS[name]}, in both directions"
    return _ALGORITHMS[name]


def _filled_in(m: Movement) -> str:
    steps = f"in {plural(len(m.steps), 'step')}"
    sent = f"{bytes_text(m.sent_bytes)} sent per device"
    if m.kind not in REGULAR:
        return f"{sent}, {steps}"
    factor = _factor(m, f"{m.size - 1} / {m.size}")
    return f"{factor} × {bytes_text(m.bytes_per_device)} = {sent}, {steps}"


def _factor(m: Movement, factor: str) -> str:
    # An all-reduce is a reduce-scatter followed by an all-gather.
    rounds = KINDS[m.kind].rounds
    return factor if rounds == 1 else f"{rounds} × {factor}"


def _rate_source(m: Movement) -> str:
    if m.topology is None:
        return "The rates of the links are not known: give topology=, such as 'tpu:v5e:4x4'."
    if m.seconds is None:
        return f"The rate of these links is not published for {m.topology.chip.title}."
    return published_rates(m.topology)


def _open_axes(m: Movement) -> str:
    axes = m.method.open_axes
    verb = by_count(len(axes), "does", "do")
    return (
        f"{joined(axes)} {verb} not form a ring: data from the last device to the first"
        " crosses all links between them."
    )


def _hops(m: Movement) -> str:
    if m.hops == 1:
        return "Every send crosses at most one link."
    return f"The farthest send crosses {plural(m.hops or 0, 'link')} between chips."


SENTENCES = {MovementText: text, RegularSent: regular, ListedSent: listed}
