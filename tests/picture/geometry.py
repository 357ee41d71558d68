"""What must hold for the tiles and labels of any picture."""

from __future__ import annotations

import numpy as np

from shardviz.draw.page import label_span
from shardviz.draw.picture import Picture

SLACK = 0.02  # points: tiles are float32


def check_page(picture: Picture) -> None:
    """Tiles and labels stand inside the page, tiles do not overlap, and there are words."""
    tiles = picture.tiles
    assert picture.alt
    if len(tiles):
        assert (tiles.width > 0).all()
        assert (tiles.height > 0).all()
        assert tiles.x.min() >= -SLACK
        assert tiles.y.min() >= -SLACK
        assert (tiles.x + tiles.width).max() <= picture.width + SLACK
        assert (tiles.y + tiles.height).max() <= picture.height + SLACK
        assert tiles.group.min() >= 0
        assert tiles.group.max() < max(picture.groups, 10 if picture.groups <= 10 else 0)
        assert not overlaps(picture)
    for label in picture.labels:
        left, right = label_span(label)
        assert left >= -SLACK, label
        assert right <= picture.width + SLACK, label
        assert 0 <= label.y <= picture.height, label
    for x, y, panel in picture.panels:
        assert x + panel.width <= picture.width + SLACK
        assert y + panel.height <= picture.height + SLACK
        check_page(panel)


def overlaps(picture: Picture) -> bool:
    """Whether two tiles share more than an edge."""
    tiles = picture.tiles
    left, top = tiles.x.astype(float), tiles.y.astype(float)
    right, bottom = left + tiles.width - SLACK, top + tiles.height - SLACK
    left, top = left + SLACK, top + SLACK
    beside = (left[:, None] < right) & (left < right[:, None])
    below = (top[:, None] < bottom) & (top < bottom[:, None])
    return bool((beside & below).sum() > len(tiles))


def covered_area(picture: Picture) -> float:
    """The area of all tiles, in square points."""
    return float((picture.tiles.width.astype(float) * picture.tiles.height).sum())


def bounding_area(picture: Picture, some: np.ndarray) -> float:
    """The area of the smallest rectangle around some tiles, in square points."""
    tiles = picture.tiles
    wide = (tiles.x + tiles.width)[some].max() - tiles.x[some].min()
    high = (tiles.y + tiles.height)[some].max() - tiles.y[some].min()
    return float(wide) * float(high)
