"""What the tests of sharded_jit share: arrays, and their own version of what integer parts mean."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from shardviz.legacy.partitions import Parts


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def block(shape: tuple[int, ...], parts: tuple[int, ...] | None, device: int) -> tuple[slice, ...]:
    """The shard index of a device: the blocks of an array are numbered row by row."""
    parts = (1,) * len(shape) if parts is None else parts
    position = np.unravel_index(device, parts) if np.prod(parts) > 1 else (0,) * len(shape)
    steps = [size // count for size, count in zip(shape, parts, strict=True)]
    return tuple(slice(int(p) * s, (int(p) + 1) * s) for p, s in zip(position, steps, strict=True))


def assert_split(array: Any, parts: Parts | None, count: int) -> None:
    """Compares every shard of an array, numbers included, with what its parts say."""
    assert isinstance(array, jax.Array)
    full = np.asarray(array)
    shards = {s.device: s for s in array.addressable_shards}
    assert list(shards) == jax.devices()[:count]
    for k, shard in enumerate(shards.values()):
        index = block(array.shape, parts, k)
        found = tuple(
            slice(*i.indices(n)[:2]) for i, n in zip(shard.index, array.shape, strict=True)
        )
        assert found == index
        np.testing.assert_array_equal(np.asarray(shard.data), full[index])
