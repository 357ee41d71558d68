"""Answers of the short lessons, from the ninth on: most are numbers.

The exercises are in `short.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardviz.api.programs import plan, program
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.layout import lay_out
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.partition_spec import Spec
from shardviz.exercises.layouts import count_kind, names_kind, number_kind
from shardviz.exercises.registry import MAKERS, Setup


def _shard_bytes(g: Setup, array: ArraySpec) -> int:
    layout = lay_out(array.shape, array.spec or Spec(), g.mesh, array.dtype)
    return layout.bytes_per_device


# Lesson 9: memory over time.


def _group_size(g: Setup) -> int:
    """How many layers a group has with which the fewest inputs are kept."""

    def kept(size: int) -> int:
        return g.layers // size + size

    sizes = [size for size in range(1, g.layers + 1) if g.layers % size == 0]
    return min(sizes, key=kept)


number_kind("saved bytes", "bytes", lambda g: g.layers * _shard_bytes(g, g.x))
count_kind("group size", "layers", _group_size)


# Lesson 10: overlap.


def _hiding_tokens(g: Setup) -> float:
    sent = (g.devices - 1) / g.devices
    # Two operations and two bytes for each parameter; both links are used.
    return sent * g.peak / (2 * g.link)


def _overlapped_seconds(g: Setup) -> float:
    # The first gather has nothing before it, and the last product nothing after it.
    longer = max(g.gather, g.product)
    return (g.gather + (g.gathers - 1) * longer + g.product) * 1e-6


count_kind("hiding tokens", "tokens", _hiding_tokens, 0.01)
number_kind("overlapped seconds", "seconds", _overlapped_seconds, 0.001)


# Lesson 11: ZeRO.


def _zero_1_bytes(parameters: int, devices: int) -> float:
    """Parameters, and a part of both moments of Adam, in float32."""
    return 4 * parameters + 2 * 4 * parameters / devices


def _fewest_devices(g: Setup) -> int:
    devices = 1
    while _zero_1_bytes(g.parameters, devices) > g.most:
        devices *= 2
    return devices


number_kind("ZeRO 1 bytes", "bytes", lambda g: _zero_1_bytes(g.parameters, g.devices))
count_kind("ZeRO 1 devices", "devices", _fewest_devices)


# Lessons 12 and 13: rings of collective-permutes.


def _ring_bytes(g: Setup) -> int:
    """What a device sends to pass everything but the last of what it receives on."""
    passed = [array for array in vars(g).values() if isinstance(array, ArraySpec)]
    return (g.mesh.size - 1) * sum(_shard_bytes(g, array) for array in passed)


def _owner(g: Setup) -> list[str]:
    return [str((g.holder - g.steps) % g.mesh.size)]


def _ids(g: Setup) -> list[str]:
    return [str(device) for device in range(g.mesh.size)]


number_kind("ring bytes", "bytes", _ring_bytes)
names_kind("owner", "The devices", _ids, _owner)
# A step multiplies twice, 4 T² H D operations, and sends 4 T H D bytes.
count_kind("ring tokens", "tokens", lambda g: g.peak / g.link, 0.01)


# Lesson 14: the KV cache.


def _decode_seconds(g: Setup) -> float:
    cache = g.token * g.sequences * g.length
    return (g.weights + cache) / (g.chips * g.reading)


number_kind("decode seconds", "seconds", _decode_seconds, 0.03)


# Lesson 15: pipelines.


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


# Lesson 16: several slices.


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


# Lesson 17: experts.


def _dropped(g: Setup) -> int:
    return sum(max(0, count - g.capacity) for count in g.chosen)


def _exchanged(g: Setup) -> float:
    return 2 * (g.devices - 1) / g.devices * g.boxes.bytes


count_kind("dropped", "tokens", _dropped)
number_kind("exchanged bytes", "bytes", _exchanged)


# Lesson 18: Explicit mode.

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
