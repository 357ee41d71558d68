"""Answers of the short lessons 9 to 13, which are numbers and the id of a device.

The exercises are in `short_a.md`.
"""

from __future__ import annotations

from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.layout import lay_out
from shardviz.core.layout.partition_spec import Spec
from shardviz.exercises.layouts import names_kind, number_kind
from shardviz.exercises.registry import Setup
from shardviz.exercises.short import count_kind


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
