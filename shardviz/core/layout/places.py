"""Where the devices of a described topology sit: ids, coordinates, processes, in jax's order.

The order is libtpu's own, found by asking it (`tests/layout/test_topology.py` still does):
processes one after another, x fastest; in a process its chips, x fastest; in a chip its cores.
Ids count the cores of a whole slice, x fastest, and begin anew at 100,000 times the number of the
slice, from 1, where there are several.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FIRST_ID = 100_000  # of the first of several slices, and the step from one to the next


@dataclass(frozen=True)
class Places:
    """One row a device; arrays are read-only.

    Attributes:
        ids: int64 `[devices]`.
        coords: int64 `[devices, 3]`.
        cores: int64 `[devices]`.
        processes: int64 `[devices]`.
        slices: int64 `[devices]`.
    """

    ids: np.ndarray
    coords: np.ndarray
    cores: np.ndarray
    processes: np.ndarray
    slices: np.ndarray

    def __post_init__(self) -> None:
        for array in vars(self).values():
            array.flags.writeable = False


def tpu_places(
    shape: tuple[int, ...], host_shape: tuple[int, ...], cores: int, slices: int
) -> Places:
    """The devices of some slices of TPUs.

    Args:
        shape: chips along each axis of a slice.
        host_shape: chips of a host along each axis.
        cores: devices a chip.
        slices: how many slices.
    """
    x, y, z = (*shape, 1, 1)[:3]
    a, b, c = (*host_shape, 1, 1)[:3]
    grid = np.indices((slices, z // c, y // b, x // a, c, b, a, cores), dtype=np.int64)
    which, hz, hy, hx, dz, dy, dx, core = grid.reshape(8, -1)
    cx, cy, cz = hx * a + dx, hy * b + dy, hz * c + dz
    first = FIRST_ID * (which + 1) if slices > 1 else 0
    ids = first + core + cores * (cx + x * (cy + y * cz))
    hosts = (z // c) * (y // b) * (x // a)
    process = which * hosts + (hz * (y // b) + hy) * (x // a) + hx
    return Places(ids, np.stack([cx, cy, cz], axis=1), core.copy(), process, which.copy())


def gpu_places(shape: tuple[int, ...]) -> Places:
    """The devices of a cluster of GPUs: host by host; coordinates are GPU, host, 0."""
    hosts, gpus = shape
    host, gpu = np.indices((hosts, gpus), dtype=np.int64).reshape(2, -1)
    zeros = np.zeros_like(host)
    coords = np.stack([gpu, host, zeros], axis=1)
    return Places(np.arange(hosts * gpus), coords, zeros.copy(), host.copy(), zeros.copy())
