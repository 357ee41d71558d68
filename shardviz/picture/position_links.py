"""The strokes between chips: neighbours, ways around, planes, switches and the network."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shardviz.core.layout.links import Links
from shardviz.picture.positions import Board
from shardviz.picture.shapes import MANY_GROUPS, NO_GROUP, Edges, make_edges

MOST_IDLE = 20_000  # idle links beyond that are finer than a reader can see
MOST_BESIDE = 1024  # chips: with more of them, idle links only hide those in use
Strokes = tuple[np.ndarray, ...]  # x0, y0, x1, y1, group, width


def link_edges(placed: Board, links: Links | None) -> Edges:
    """The links of a topology as strokes, those in use in the colour of their group.

    Args:
        placed: where the chips stand.
        links: what a collective asks of them; None for none.
    """
    torus = placed.torus
    parts = list(_torus(placed, links)) if torus.shape else list(_cluster(placed, links))
    if torus.shape and torus.parts > 1:
        parts += _between_slices(placed, links)
    if not parts:
        return make_edges([], [], [], [])
    columns = [np.concatenate(values) for values in zip(*parts, strict=True)]
    # What is in use is painted last, on top.
    order = np.argsort(columns[4] != NO_GROUP, kind="stable")
    idle = int((columns[4] == NO_GROUP).sum())
    if idle > MOST_IDLE or (idle < len(order) and torus.chips > MOST_BESIDE):
        order = order[columns[4][order] != NO_GROUP]
    return make_edges(*(c[order] for c in columns))


def _ink(placed: Board, load: np.ndarray, owner: np.ndarray, most: float) -> Strokes:
    """Group and width of each stroke, by what it carries."""
    group = np.where(load > 0, np.where(owner < 0, MANY_GROUPS, owner), NO_GROUP)
    thin, thick = max(0.5, placed.gap * 0.045), min(3.6, max(0.9, placed.gap * 0.32))
    share = load / most if most else load
    return group, np.where(load > 0, thick * (0.45 + 0.55 * share), thin)


def _torus(placed: Board, links: Links | None) -> Iterable[Strokes]:
    torus = placed.torus
    middle = placed.corners + np.array([[placed.cell[0] / 2], [placed.cell[1] / 2]])
    most = float(links.ici.max(initial=0.0)) if links is not None else 0.0
    for axis in range(len(torus.shape)):
        following = torus.next_chip(axis)
        here = np.flatnonzero(following >= 0)
        there = following[here]
        if links is None:
            load, owner = np.zeros(len(here)), np.full(len(here), NO_GROUP)
        else:
            load = np.maximum(links.ici[here, axis, 0], links.ici[there, axis, 1])
            owner = links.owner[here, axis]
        group, width = _ink(placed, load, owner, most)
        ends = middle[:, here], middle[:, there]
        wraps = torus.coords[there, axis] < torus.coords[here, axis]
        if axis < 2:
            yield _straight(ends, group, width, ~wraps)
            yield from _around(placed, ends, group, width, wraps, axis)
        else:
            yield from _through(placed, ends, group, width)


def _straight(ends: tuple, group: np.ndarray, width: np.ndarray, some: np.ndarray) -> Strokes:
    (x0, y0), (x1, y1) = ends
    return x0[some], y0[some], x1[some], y1[some], group[some], width[some]


def _around(
    placed: Board, ends: tuple, group: np.ndarray, width: np.ndarray, some: np.ndarray, axis: int
) -> Iterable[Strokes]:
    """The way around an axis: a stroke out of the last chip and one into the first."""
    reach = placed.cell[axis] / 2 + placed.gap * 0.85
    for (x, y), sign in zip(ends, (1.0, -1.0), strict=True):
        out_x = x[some] + (sign * reach if axis == 0 else 0.0)
        out_y = y[some] + (sign * reach if axis == 1 else 0.0)
        yield x[some], y[some], out_x, out_y, group[some], width[some]


def _through(placed: Board, ends: tuple, group: np.ndarray, width: np.ndarray) -> Iterable[Strokes]:
    """Links along z: a slanted stroke up towards the next plane, and one down from the last."""
    across, down = placed.cell[0] / 2, placed.cell[1] / 2
    reach = placed.gap * 0.32  # shorter than half the gap: chips side by side are not joined
    for (x, y), sign in zip(ends, (1.0, -1.0), strict=True):
        x0, y0 = x + sign * across * 0.8, y - sign * down * 0.8
        x1, y1 = x + sign * (across + reach), y - sign * (down + reach)
        yield x0, y0, x1, y1, group, width


def _cluster(placed: Board, links: Links | None) -> Iterable[Strokes]:
    """GPUs: a rail below each host for NVLink, and a rail on its left for the network."""
    torus, gpus = placed.torus, placed.plane[0]
    x, y = placed.corners
    middle, foot = x + placed.cell[0] / 2, y + placed.cell[1]
    rail = foot + placed.gap * 0.5
    nvlink = np.zeros(torus.chips) if links is None else links.nvlink
    network = np.zeros(torus.chips) if links is None else links.network
    owner = np.full(torus.chips, NO_GROUP) if links is None else links.chip_group
    group, width = _ink(placed, nvlink, owner, float(nvlink.max(initial=0.0)))
    yield middle, foot, middle, rail, group, width
    first = np.arange(0, torus.chips, gpus)
    if gpus > 1:
        host, load = _of_hosts(nvlink, owner, gpus)
        kind, wide = _ink(placed, load, host, float(load.max(initial=0.0)))
        yield middle[first], rail[first], middle[first + gpus - 1], rail[first], kind, wide
    if len(first) > 1:
        yield from _network_rail(placed, network, owner, gpus)


def _of_hosts(load: np.ndarray, owner: np.ndarray, gpus: int) -> tuple[np.ndarray, np.ndarray]:
    """The group that a host's rail belongs to, or several; and the most that it carries."""
    loads, owners = load.reshape(-1, gpus), owner.reshape(-1, gpus)
    same = (owners == owners[:, :1]).all(axis=1)
    return np.where(same, owners[:, 0], MANY_GROUPS), loads.max(axis=1)


def _network_rail(
    placed: Board, network: np.ndarray, owner: np.ndarray, gpus: int
) -> Iterable[Strokes]:
    x, y = placed.corners
    first = np.arange(0, len(x), gpus)
    trunk = x[first] - placed.gap * 0.36 - 9.0
    level = y[first] + placed.cell[1] / 2
    host, load = _of_hosts(network, owner, gpus)
    group, width = _ink(placed, load, host, float(load.max(initial=0.0)))
    yield trunk, level, x[first], level, group, width
    used = bool(load.any())
    same = bool((host == host[0]).all())
    kind = np.array([(int(host[0]) if same else MANY_GROUPS) if used else NO_GROUP])
    if used and kind[0] < 0:
        kind = np.array([MANY_GROUPS])
    thick = np.array([width.max()])
    for column in np.unique(trunk):
        mine = level[trunk == column]
        yield (
            np.array([column]),
            np.array([mine.min()]),
            np.array([column]),
            np.array([mine.max()]),
            kind,
            thick,
        )


def _between_slices(placed: Board, links: Links | None) -> list[Strokes]:
    """The data-center network: a stroke from each slice to the next one on the page."""
    topology, torus = placed.topology, placed.torus
    load = np.zeros(torus.parts)
    owner = np.full(torus.parts, NO_GROUP)
    if links is not None:
        load = links.network.reshape(torus.parts, -1).max(axis=1)
        owners = links.chip_group.reshape(torus.parts, -1)
        same = (owners == owners[:, :1]).all(axis=1)
        owner = np.where(same, owners[:, 0], MANY_GROUPS)
    group, width = _ink(placed, load, owner, float(load.max(initial=0.0)))
    boxes = np.array([placed.slice_corner(i) for i in range(topology.slices)])
    block = placed.block
    strokes = []
    for one in range(topology.slices - 1):
        (x0, y0), (x1, y1) = boxes[one], boxes[one + 1]
        if y0 == y1:
            ends = x0 + block[0], y0 + block[1] / 2, x1, y0 + block[1] / 2
        elif x0 == x1:
            ends = x0 + block[0] / 2, y0 + block[1], x0 + block[0] / 2, y1
        else:  # the first of a row hangs on the one above it
            above = boxes[: one + 1][boxes[: one + 1, 0] == x1][-1]
            ends = x1 + block[0] / 2, above[1] + block[1], x1 + block[0] / 2, y1
        row = (*(np.array([v]) for v in ends), group[one : one + 1], width[one : one + 1])
        strokes.append(row)
    return strokes
