"""Pictures side by side: in rows, or below a shorter one of their row."""

from __future__ import annotations

import pytest

from shardviz.draw.page import side_by_side
from shardviz.draw.picture import Picture, no_tiles

# Sizes of the pictures, the width of the page, and the corner of each picture.
PAGES = {
    "one row": ([(300, 200), (300, 400)], 640, [(0, 0), (300, 0)]),
    "equal heights stay in rows": (
        [(300, 200)] * 3, 640, [(0, 0), (300, 0), (0, 200)]),
    "below the shorter of a row": (
        [(300, 400), (300, 200), (300, 300)], 640, [(0, 0), (300, 0), (300, 200)]),
    "too wide for the shorter": (
        [(300, 200), (300, 400), (320, 200)], 640, [(0, 0), (300, 0), (0, 400)]),
    "not too high for a screen": ([(420, 400), (380, 200)], 960, [(0, 0), (420, 0)]),
    "never below a row of one": (
        [(640, 100), (300, 400), (300, 200), (300, 300)], 640,
        [(0, 0), (0, 100), (300, 100), (300, 300)]),
}  # fmt: skip


@pytest.mark.parametrize(("sizes", "width", "corners"), PAGES.values(), ids=PAGES)
def test_pictures_stand_where_the_page_is_smallest(sizes, width, corners):
    pictures = [Picture(w, h, no_tiles()) for w, h in sizes]
    page = side_by_side(pictures, width=width)
    assert [(x, y) for x, y, _ in page.panels] == corners
    right = max(x + picture.width for x, _, picture in page.panels)
    bottom = max(y + picture.height for _, y, picture in page.panels)
    assert (page.width, page.height) == (right, bottom)
