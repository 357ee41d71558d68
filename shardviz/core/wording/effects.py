"""Effects: what a program does beside computing, where it may run, and what happened."""

from __future__ import annotations

from typing import Any

from shardviz.core.format import clause, plural
from shardviz.core.program.effects import (
    DeviceCount,
    Effects,
    EffectToken,
    EffectUse,
    Event,
    HostCall,
    Observed,
    Refusal,
    RunsOn,
)

_STAGES = {"program": "before tracing", "trace": "at tracing", "lower": "at lowering"}
# What a cause of a refusal means, and what to do.
_CAUSES = {
    "not allowed there": (
        "jax keeps a list of the effects that it allows there, and this one is not on it."
    ),
    "not differentiable": (
        "jax cannot differentiate what happens on the host. Give the function its"
        " derivative with jax.custom_jvp, or put jax.lax.stop_gradient around what the"
        " callback takes."
    ),
    "ordered under vmap": (
        "The calls for the elements of a batch have no order among them. Take ordered=True"
        " away, or loop with jax.lax.map in place of vmap."
    ),
    "branch under vmap": (
        "Under vmap the elements share one loop or take both branches, so the callback"
        " would be called for elements that do not need it. Use jax.lax.map in place of"
        " vmap."
    ),
    "part of the mesh": (
        "Give shard_map all axes of the mesh, or call the host outside of it."
    ),
    "not lowered": (
        "jax keeps a list of the effects that it knows how to lower, and this one is not"
        " on it."
    ),
    "ref inside": (
        "jax turns reads and writes of a ref into plain values before it lowers, and knows"
        " no way to do so inside this operation. Make the ref inside a function that is"
        " not wrapped so."
    ),
}
NO_EFFECT = "No effect: jax may drop it, repeat it or move it."
_RULES_UNKNOWN = (
    "This jax keeps its lists of effects elsewhere, so what is ordered is known by name"
    " only, and where an effect is allowed is not known before tracing."
)


def event(fact: Event) -> str:
    """One time that an effect happened."""
    who = "some device"
    if fact.device is not None:
        who = f"device {fact.device}"
    of = clause(" of {}", fact.values)
    return f"{who}: {fact.name} {fact.what!r} ({fact.nesting}){of}"


def token(fact: EffectToken) -> str:
    """A token of a lowered module and where it is."""
    where = fact.sharding or "on every device"
    return f"token {fact.direction} {fact.index}: {where}"


def refusal(fact: Refusal) -> str:
    """Why a program may not run at all."""
    message = fact.said
    # It is jax's own, and ends as jax likes.
    if not message.endswith((".", "!", "?", "…")):
        message += "."
    advice = clause(" {}", _CAUSES.get(fact.cause))
    return f"refused {_STAGES[fact.stage]}, because {message}{advice}"


def runs_on(fact: RunsOn) -> str:
    """Whether a program may run on a number of devices, and why.

    >>> runs_on(RunsOn("one device", 1, "io callback, ordered"))
    'It may run on 1 device: one device keeps the order.'
    """
    count, effect = plural(fact.devices, "device"), fact.effect.partition(",")[0]
    if fact.code == "refused":
        return f"It is {fact.refusal}"
    if fact.code == "own mesh":
        own = plural(fact.own or 0, "device")
        return f"The function names a mesh of {own} itself and cannot run on {count}."
    if fact.code == "single device":
        return (
            f"jax orders {effect}s on one device only, and the mesh has"
            f" {fact.devices:,}. Take ordered=True away, or use"
            " jax.experimental.io_callback(..., ordered=True), which it can order on many."
        )
    if fact.code == "host only":
        return (
            "Its results come from the host only, since it uses none of its arguments, and"
            " jax cannot say how such results are placed on several devices. Use an"
            " argument, or give out_specs."
        )
    why = {
        "no effects": "it has no effects.",
        "unordered": "none of its effects is ordered.",
        "one device": "one device keeps the order.",
        "orderable": f"jax can order {effect}s on many devices.",
    }
    return f"It may run on {count}: {why[fact.code]}"


def device_count(fact: DeviceCount) -> str:
    """On how many devices a program may run."""
    if fact.count is None:
        return "any number of devices"
    if not fact.count:
        return "none"
    return plural(fact.count, "device")


def effect_note(use: EffectUse) -> str:
    """What to expect of an effect.

    >>> effect_note(EffectUse("debug callback", "DebugEffect", False, True))
    'It may happen in any order, and is done for certain only after a barrier.'
    """
    if use.on_refs:
        return "jax turns reads and writes of refs into plain values before it lowers."
    if not use.ordered:
        return (
            "It may happen in any order, and is done for certain only after a barrier."
        )
    if not use.shardable:
        return "It happens in the order of the program, on one device only."
    return (
        "It happens in the order of the program: once for all devices, or once on each"
        " inside shard_map, and there no order holds between devices."
    )


def effects_head(effects: Effects) -> str:
    """How many effects a program has and where it runs."""
    count = plural(len(effects.uses), "effect")
    return f"{effects.program}: {count}; runs on {effects.devices}"


def effect_lines(use: EffectUse) -> list[str]:
    """An effect, how often it happens and where."""
    where = clause(" ({})", "; ".join(use.nesting))
    calls = plural(use.calls, "operation")
    return [f"{use.name}, {use.kind}: {_order(use)}; {calls}{where}", effect_note(use)]


def _order(one: EffectUse | Event) -> str:
    return "ordered" if one.ordered else "unordered"


def host_call(call: HostCall) -> str:
    """A call of the host that is no effect."""
    return f"{call.operation} ({call.nesting}): {NO_EFFECT[0].lower()}{NO_EFFECT[1:]}"


def where_it_runs(effects: Effects) -> list[str]:
    """Its tokens, whether it runs on its mesh, and what is not known."""
    lines = []
    if effects.tokens is not None:
        taken = sum(token.direction == "in" for token in effects.tokens)
        lines.append(
            f"Lowered for {plural(effects.lowered_for, 'device')}, it takes"
            f" {plural(taken, 'token')} and returns {len(effects.tokens) - taken}."
        )
        lines += [f"  {one}" for one in effects.tokens]
    if effects.mesh_size is not None and not effects.refused:
        lines.append(str(effects.on(effects.mesh_size)))
    if not effects.rules_known:
        lines.append(_RULES_UNKNOWN)
    return lines


def unknown_rules(effects: Effects) -> str:
    """What could not be found out of a program's effects; `""` where everything could."""
    return "" if effects.rules_known else _RULES_UNKNOWN


def effects_explained(effects: Effects) -> str:
    """Everything on the effects of a program, a line each."""
    lines = [effects_head(effects)]
    if effects.refused:
        lines.append(f"✗ {effects.refused}")
    for use in effects.uses:
        first, note = effect_lines(use)
        lines.append(first)
        if use.allowed is not None:
            lines.append(f"  allowed in: {', '.join(use.allowed) or 'nothing'}")
        lines.append(f"  {note}")
    lines += map(host_call, effects.host_calls)
    return "\n".join([*lines, *where_it_runs(effects)])


def effect_rows(effects: Effects) -> list[dict[str, Any]]:
    """The rows of `Effects.rows`, with `where` each is allowed and a `note`."""
    rows = []
    for use, row in zip(effects.uses, effects.rows(), strict=False):
        where = "not known"
        if use.allowed is not None:
            where = ", ".join(use.allowed) or "nowhere"
        rows.append({**row, "where": where, "note": effect_note(use)})
    for row in effects.rows()[len(effects.uses) :]:
        rows.append({**row, "where": "everywhere", "note": NO_EFFECT})
    return rows


def observed_head(observed: Observed) -> str:
    """How many events a run had."""
    return (
        f"{observed.program}: {plural(len(observed.events), 'event')} up to the barrier"
    )


def promises(observed: Observed) -> list[str]:
    """Why a run failed, and which order of its events jax promises."""
    lines = []
    if observed.report.error is not None:
        lines.append(f"✗ {observed.report.error}")
    if any(not one.ordered for one in observed.events):
        lines.append("Unordered events may come in another order the next time.")
    if any(one.ordered for one in observed.events):
        lines.append(
            "Ordered events of one device come in the order of the program, every time;"
            " between devices no order holds."
        )
    return lines


def observed_explained(observed: Observed) -> str:
    """The events of a run as lines, and which of their order jax promises."""
    digits = len(str(len(observed.events)))
    lines = [observed_head(observed)]
    for one in observed.events:
        lines.append(f"{one.number + 1:>{digits}}  {one}; {_order(one)}")
    return "\n".join([*lines, *promises(observed)])


SENTENCES = {
    Event: event,
    EffectToken: token,
    Refusal: refusal,
    RunsOn: runs_on,
    DeviceCount: device_count,
}
EXPLANATIONS = {Effects: effects_explained, Observed: observed_explained}
