"""Block numbers: a mixed-radix number a dimension, as few additions as the mesh allows.

With axes `(a, b)` of sizes `A, B`, a device at mesh coordinates `(i, j)` holds block `i * B + j`:
along every mesh axis the number grows by a constant stride. All arrays here broadcast to the mesh.
"""

from __future__ import annotations

import functools
import operator

import numpy as np

from shardviz.core.layout.mesh import MeshSpec

#: From this many devices on, doubling what is written beats adding for each device.
LARGE = 1 << 15


def strides(axes: tuple[str, ...], mesh: MeshSpec) -> dict[int, int]:
    """Mesh position of an axis to the stride of the block number along it; size 1 left out.

    >>> strides(("b", "a"), MeshSpec(("a", "b", "c"), (2, 3, 4)))
    {0: 1, 1: 2}
    """
    found: dict[int, int] = {}
    stride = 1
    for axis in reversed(axes):
        size = mesh.shape[axis]
        if size > 1:
            found[mesh.positions[axis]] = stride
            stride *= size
    return found


def block_numbers(axes: tuple[str, ...], mesh: MeshSpec) -> np.ndarray | None:
    """int64, of length 1 along axes that do not split; None where nothing does.

    >>> block_numbers(("b", "a"), MeshSpec(("a", "b"), (2, 3))).tolist()
    [[0, 2, 4], [1, 3, 5]]
    """
    lanes = [_lane(mesh, at, stride) for at, stride in strides(axes, mesh).items()]
    return functools.reduce(operator.add, lanes) if lanes else None


def _lane(mesh: MeshSpec, at: int, stride: int) -> np.ndarray:
    lane = mesh.lane(mesh.axis_names[at])
    return lane if stride == 1 else lane * stride


def write_bounds(
    starts: np.ndarray, stops: np.ndarray, axes: tuple[str, ...], step: int, mesh: MeshSpec
) -> None:
    """Writes `number * step` and `number * step + step` into two arrays in mesh shape."""
    if len(axes) > 1 and mesh.size >= LARGE:
        along = [0] * len(mesh.axis_sizes)
        for at, stride in strides(axes, mesh).items():
            along[at] = stride * step
        _write_progression(starts, along)
        np.add(starts, step, out=stops)
        return
    number = block_numbers(axes, mesh) if axes else None
    first = 0 if number is None else number * step
    starts[...] = first
    stops[...] = first + step


def _write_progression(out: np.ndarray, along: list[int]) -> None:
    """Fills `out` with the sum of `along[axis] * index`, doubling along one axis after the other.

    Each doubling is one long addition of one number, where numpy is near a bare copy; adding rows
    to columns is four times slower.
    """
    out[(0,) * out.ndim] = 0
    before: tuple[slice, ...] = (slice(0, 1),) * out.ndim
    for axis in reversed(range(out.ndim)):
        lead, done = before[:axis], 1
        while done < out.shape[axis]:
            more = min(done, out.shape[axis] - done)
            written, wanted = out[(*lead, slice(0, more))], out[(*lead, slice(done, done + more))]
            np.add(written, along[axis] * done, out=wanted)
            done += more
