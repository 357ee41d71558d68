"""Outlines around the devices of each host."""

from __future__ import annotations

import numpy as np

from shardviz.core.layout.mesh import MeshSpec
from shardviz.picture.shapes import Frame

MOST_DEVICES = 4096
MOST_FRAMES = 512


def host_frames(
    mesh: MeshSpec, corners: np.ndarray, cell: tuple[float, float], gap: float
) -> list[Frame]:
    """A dashed frame around every host: more than one where its devices stand apart.

    None for a single host, and none where frames would be finer than a reader can see: there the
    colour and the tooltip say the host.

    Args:
        corners: float64 [2, devices], the top left corner of every device.
    """
    if len(mesh.processes) < 2 or mesh.size > MOST_DEVICES:
        return []
    _, row = np.unique(np.round(corners[1], 3), return_inverse=True)
    _, column = np.unique(np.round(corners[0], 3), return_inverse=True)
    board = np.full((row.max() + 1, column.max() + 1), -1, np.int64)
    place = np.empty(board.shape, np.int64)
    board[row, column] = mesh.process_indices.reshape(-1)
    place[row, column] = np.arange(mesh.size)
    runs = _runs(board)
    if len(runs) > MOST_FRAMES:
        return []
    out = 0.42 * gap
    frames = []
    for top, bottom, left, right, process in runs:
        x, y = corners[:, place[top, left]]
        far_x, far_y = corners[:, place[bottom, right]]
        frames.append(
            Frame(
                float(x - out),
                float(y - out),
                float(far_x - x + cell[0] + 2 * out),
                float(far_y - y + cell[1] + 2 * out),
                f"host {process}",
                dashed=gap >= 5,
            )
        )
    return frames


def _runs(board: np.ndarray) -> list[tuple[int, int, int, int, int]]:
    """Rectangles of one host on a board of hosts: top, bottom, left, right, host."""
    done: list[tuple[int, int, int, int, int]] = []
    alive: dict[tuple[int, int, int], int] = {}
    for row, line in enumerate(board):
        breaks = np.flatnonzero(np.diff(line)) + 1
        starts = [0, *breaks.tolist()]
        ends = [*(breaks - 1).tolist(), len(line) - 1]
        now = {}
        for left, right in zip(starts, ends, strict=True):
            process = int(line[left])
            if process >= 0:
                key = (left, right, process)
                now[key] = alive.pop(key, row)
        done += [(top, row - 1, left, right, p) for (left, right, p), top in alive.items()]
        alive = now
    last = len(board) - 1
    done += [(top, last, left, right, p) for (left, right, p), top in alive.items()]
    return sorted(done)
