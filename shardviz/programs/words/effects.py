"""Describes a program's side effects, and how many devices it can run on."""

from __future__ import annotations

from typing import Any

from shardviz.base.format import clause, plural
from shardviz.programs.effects import (
    DeviceCount,
    Effects,
    EffectUse,
    HostResults,
    NamesOwnMesh,
    NoEffects,
    OneDeviceOrders,
    OrderedOnMany,
    OrderedOnOne,
    Refusal,
    RefusedAnywhere,
    RunsOn,
    UnorderedEffects,
)

_STAGES = {"program": "before tracing", "trace": "at tracing", "lower": "at lowering"}
# Explanation and advice for each cause of a refusal.
_CAUSES = {
    "not differentiable": (
        "jax cannot differentiate what happens on the host. Define the function's"
        " derivative with jax.custom_jvp, or put jax.lax.stop_gradient around the"
        " callback's arguments."
    ),
    "ordered under vmap": (
        "Under vmap, the calls for the elements of a batch have no order. Remove"
        " ordered=True, or loop with jax.lax.map instead of vmap."
    ),
    "branch under vmap": (
        "Under vmap, all elements share one loop or take both branches, so the callback"
        " would be called for elements that do not need it. Use jax.lax.map instead of"
        " vmap."
    ),
}


def refusal(fact: Refusal) -> str:
    """Explains why a program cannot run on any number of devices."""
    message = fact.said
    # jax's messages may lack a final full stop.
    if not message.endswith((".", "!", "?", "…")):
        message += "."
    advice = clause(" {}", _CAUSES.get(fact.cause))
    return f"refused {_STAGES[fact.stage]}, because {message}{advice}"


def runs_on(fact: RunsOn) -> str:
    """Explains whether a program can run on a number of devices.

    >>> runs_on(OneDeviceOrders(1, "io callback, ordered"))
    'It can run on 1 device, which keeps the order of its effects.'
    """
    count = plural(fact.devices, "device")
    match fact:
        case RefusedAnywhere(refusal=refused):
            return f"It is {refused}"
        case NamesOwnMesh(named=named):
            own = plural(named, "device")
            return (
                f"The function uses its own mesh of {own}, so it cannot run on {count}."
            )
        case OrderedOnOne(effect=effect):
            return (
                f"jax orders {_kind(effect)}s on one device only, and the mesh has"
                f" {fact.devices:,}. Remove ordered=True, or use"
                " jax.experimental.io_callback(..., ordered=True), which jax can order on"
                " many devices."
            )
        case HostResults():
            return (
                "Its results come only from the host, since it uses none of its arguments,"
                " and jax does not know how to place such results on several devices. Use"
                " an argument, or give out_specs."
            )
        case NoEffects():
            return "No side effects: safe on any number of devices."
        case UnorderedEffects():
            return f"It can run on {count}, because none of its effects is ordered."
        case OneDeviceOrders():
            return f"It can run on {count}, which keeps the order of its effects."
        case OrderedOnMany(effect=effect):
            why = f"jax can order {_kind(effect)}s on many devices."
            return f"It can run on {count}: {why}"
    raise TypeError(type(fact))


def _kind(effect: str) -> str:
    """Returns the kind of an effect, without its order: `"io callback"`."""
    return effect.partition(",")[0]


def device_count(fact: DeviceCount) -> str:
    """Describes how many devices a program can run on."""
    if fact.count is None:
        return "any number of devices"
    return plural(fact.count, "device") if fact.count else "none"


def effect_note(use: EffectUse) -> str:
    """Describes when and how often an effect happens.

    >>> effect_note(EffectUse("debug callback", "DebugEffect"))
    'It may run in any order; only a barrier guarantees that it has finished.'
    """
    if not use.kind:
        return "No effect: jax may drop it, repeat it or move it."
    if "ref" in use.name.split():
        return "jax replaces reads and writes of refs by plain values before lowering."
    if not use.ordered:
        return (
            "It may run in any order; only a barrier guarantees that it has finished."
        )
    if not use.shardable:
        return "It runs in the order of the program, on one device only."
    return (
        "It runs in the order of the program, once for all devices. Inside shard_map it"
        " runs once on each device, without an order between the devices."
    )


def effects_explained(effects: Effects) -> str:
    """Describes all effects of a program, one per line."""
    count = plural(len(effects.uses), "effect")
    lines = [f"{effects.program}: {count}; runs on {effects.devices}"]
    if effects.refused:
        lines.append(f"✗ {effects.refused}")
    for use in (*effects.uses, *effects.host_calls):
        calls = plural(use.calls, "operation")
        kind = clause(", {}", use.kind)
        order = "ordered" if use.ordered else "unordered"
        nesting = clause(" ({})", "; ".join(use.nesting))
        lines.append(f"{use.name}{kind}: {order}; {calls}{nesting}")
        if use.allowed is not None:
            lines.append(f"  allowed in: {', '.join(use.allowed) or 'nothing'}")
        lines.append(f"  {effect_note(use)}")
    if effects.tokens:
        tokens = plural(effects.tokens, "token")
        lines.append(f"To keep the order, the program takes and returns {tokens}.")
    if effects.mesh_size is not None and not effects.refused:
        lines.append(str(effects.on(effects.mesh_size)))
    return "\n".join(lines)


def effect_rows(effects: Effects) -> list[dict[str, Any]]:
    """Returns each effect and `pure_callback` as a row of plain data."""
    rows = []
    for use in (*effects.uses, *effects.host_calls):
        row = {
            "name": use.name,
            "ordered": use.ordered,
            "shardable": use.shardable,
            "nesting": list(use.nesting),
            "note": effect_note(use),
        }
        rows.append(row)
    return rows


SENTENCES = {Refusal: refusal, RunsOn: runs_on, DeviceCount: device_count}
EXPLANATIONS = {Effects: effects_explained}
