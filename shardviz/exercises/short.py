"""Answers of the short lessons, from the ninth on.

The exercises are in `short_b.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardviz.api.programs import plan, program
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.exercises.answers import read_number
from shardviz.exercises.layouts import names_kind, number_kind
from shardviz.exercises.registry import MAKERS, Found, Setup, kind


def count_kind(
    name: str, what: str, right: Callable[[Setup], float], tolerance: float = 1e-9
) -> None:
    """Adds a kind of answer that is a number of things.

    Args:
        what: is counted, such as `"tokens"`.
        right: the right number, of what is given.
        tolerance: how far the answer may be off, as a part of the right one.
    """

    @kind(name, lambda g: f"{right(g):.0f}")
    def _read(g: Setup, answer: Any, of: str) -> Found:
        value = read_number(answer, what)
        facts = {"value": value, "right": right(g), "tolerance": tolerance}
        return Found(f"{value:,g} {what}", facts)


# Lesson 14: the KV cache


def _decode_seconds(g: Setup) -> float:
    cache = g.token * g.sequences * g.length
    return (g.weights + cache) / (g.chips * g.reading)


number_kind("decode seconds", "seconds", _decode_seconds, 0.03)


# Lesson 15: pipelines


def _microbatches(g: Setup) -> int:
    many = 1
    while 100 * (g.stages - 1) > g.percent * (many + g.stages - 1):
        many += 1
    return many


def _pipeline_seconds(g: Setup) -> float:
    tick = g.unsplit / g.stages / g.microbatches
    return tick * (g.microbatches + g.stages - 1)


count_kind("microbatches", "microbatches", _microbatches)
number_kind("pipeline seconds", "seconds", _pipeline_seconds, 0.01)


# Lesson 16: several slices


def _network_bytes(g: Setup) -> float:
    slices = g.topology.slices
    part = g.gradient.bytes / (g.topology.chips // slices)
    return 2 * (slices - 1) / slices * part


def _hidden_tokens(g: Setup) -> float:
    # For one parameter: seconds on the network, and of arithmetic for one token.
    slices, chips = g.topology.slices, g.topology.chips
    sent = 2 * (slices - 1) / slices * 2 / (chips // slices)
    computed = 6 / (chips * g.peak)
    return sent / g.network / computed


number_kind("network bytes", "bytes", _network_bytes)
count_kind("hidden tokens", "tokens", _hidden_tokens, 0.03)


# Lesson 17: experts


def _dropped(g: Setup) -> int:
    return sum(max(0, count - g.capacity) for count in g.chosen)


def _exchanged(g: Setup) -> float:
    return 2 * (g.devices - 1) / g.devices * g.boxes.bytes


count_kind("dropped", "tokens", _dropped)
number_kind("exchanged bytes", "bytes", _exchanged)


# Lesson 18: Explicit mode

_OPERATIONS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "total": ("A + B", lambda a, b: a + b),
    "aligned": ("A + B.T", lambda a, b: a + b.T),
    "outer": ("A @ B", lambda a, b: a @ b),
    "inner": ("B @ A", lambda a, b: b @ a),
    "sine": ("jnp.sin(A) * A", lambda a, b: _sine(a) * a),
}


def _sine(a: Any) -> Any:
    import jax.numpy as jnp

    return jnp.sin(a)


def _typed(g: Setup, words: str) -> MeshSpec:
    return make_mesh("U=4, V=2", axis_types="Explicit")


def _listed(g: Setup, words: str) -> str:
    lines = [f"\n    {name}: {text}" for name, (text, _) in _OPERATIONS.items()]
    return "".join(lines)


def _refused(g: Setup) -> list[str]:
    refused = []
    for name, (_, function) in _OPERATIONS.items():
        # JAX itself decides: a plan traces the function on the typed mesh.
        if plan(program(function, g.A, g.B, mesh=g.mesh)).error is not None:
            refused.append(name)
    return refused


MAKERS["typed"] = _typed
MAKERS["operations"] = _listed
names_kind("refused", "The operations", lambda g: _OPERATIONS, _refused)
