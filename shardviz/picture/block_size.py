"""How large the blocks of an array are on a page: in proportion, and large enough to
read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardviz.core.layout.layout import Layout
from shardviz.picture.blocks import BlockSelection
from shardviz.picture.grid import PAGE
from shardviz.picture.page import text_width

# Points that an array takes, unless its blocks need more.
WIDEST, HIGHEST, STRIP, SCALAR = 430.0, 250.0, 54.0, 150.0
AREA = 240_000.0  # square points for all blocks, as long as they can still be read
ASPECTS = (0.45, 4.5)  # width over height; arrays beyond are drawn at these
MOST_LABELLED = 1024  # blocks that hold text; more of them form an image
# Points: a block of an image, at least and where the page has space.
THINNEST, THIN = 1.2, 2.0
MOST_ACROSS = 32


def block_size(
    layout: Layout, selection: BlockSelection, samples: Sequence[str]
) -> tuple[tuple[float, float], bool]:
    """Width and height of a block in points, and whether it is true to proportion.

    Args:
        samples: what the first and the last block say of their devices.
    """
    sizes = [max(1, layout.shape[dim]) for dim in selection.dims]
    counts = [layout.block_counts[dim] for dim in selection.dims]
    number = math.prod(layout.block_counts[dim] for dim in selection.axes)
    width, height = page_extent(sizes)
    # Where steps stand side by side, each is smaller.
    steps = number / math.prod(counts)
    smaller = min(1.0, max(0.4, 1.3 * steps**-0.5))
    across, down = [1, 1, *counts][-1], [1, *counts][-2] if len(counts) == 2 else 1
    wide, high = smaller * width / across, smaller * height / down
    least = _least(number, counts, layout.replicas, samples)
    if _is_image(selection, counts, least, number):
        cell = _image_cell(wide, high, counts, _least_side(number))
    else:
        cell = _within(max(wide, least[0]), max(high, least[1]), least, number)
    if len(sizes) < 2:
        return cell, True
    proportion = (sizes[1] / counts[1]) / (sizes[0] / counts[0])
    return cell, abs(cell[0] / cell[1] / proportion - 1) < 0.1


def page_extent(sizes: Sequence[int]) -> tuple[float, float]:
    """The width and height of an array of up to two dimensions, in points."""
    if not sizes:
        return SCALAR, STRIP
    if len(sizes) == 1:
        return WIDEST, STRIP
    aspect = min(max(sizes[1] / sizes[0], ASPECTS[0]), ASPECTS[1])
    width = min(WIDEST, HIGHEST * aspect)
    return width, width / aspect


def _within(
    wide: float, high: float, least: tuple[float, float], number: int
) -> tuple[float, float]:
    """A block no larger than lets all of them share AREA, down to the least size."""
    if wide * high * number > AREA:
        wide = max(least[0], min(wide, AREA / number / high))
    if wide * high * number > AREA:
        high = max(least[1], min(high, AREA / number / wide))
    return wide, high


def _is_image(
    selection: BlockSelection,
    counts: Sequence[int],
    least: tuple[float, float],
    number: int,
) -> bool:
    """Whether a page split both ways has space for all blocks, but not for their text."""
    if len(selection.axes) != 2 or min(counts) < 2:
        return False
    high, long = counts
    labelled = number <= MOST_LABELLED and _fit(long * least[0], high * least[1])
    return not labelled and _fit(long * THINNEST, high * THINNEST)


def _fit(width: float, height: float) -> bool:
    return width <= PAGE[0] and height <= PAGE[1]


def _image_cell(
    wide: float, high: float, counts: Sequence[int], side: float
) -> tuple[float, float]:
    """A block too small for text.

    It has the proportion of the array as long as a block can be seen, and is as large
    as the page allows: a folded row would no longer look like one.
    """
    most_wide, most_high = PAGE[0] / counts[1], PAGE[1] / counts[0]
    grown = min(side / min(wide, high), most_wide / wide, most_high / high)
    wide, high = wide * max(1.0, grown), high * max(1.0, grown)
    return max(wide, min(most_wide, THIN)), max(high, min(most_high, THIN))


def _least_side(number: int) -> float:
    """The side at which one of so many blocks can be seen; none of them holds text."""
    if number > 262144:
        return 1.2
    if number > 16384:
        return 2.6
    return 4.6 if number > 4096 else 9.0


def _least(
    number: int, counts: Sequence[int], replicas: int, samples: Sequence[str]
) -> tuple[float, float]:
    """The least width and height of a block at which it can still be read."""
    if number > MOST_LABELLED:
        side = _least_side(number)
        return side, side
    needed = max(text_width(words, 8.5, bold=True) for words in samples) + 10
    # A long row is folded, so no row has many more blocks than a page of them all
    # would; but the rows of two dimensions are not folded as long as their blocks can
    # be seen.
    across: float = [1, *counts][-1]
    if len(counts) < 2 or across > MOST_ACROSS:
        across = min(across, math.sqrt(1.7 * number))
    least, height = 28.0, 22.0
    if number > 64:
        least, height = 20.0, 14.0
    elif replicas > 1:  # a second line says how many
        height = 34.0
    return min(max(needed, least), max(least, 900.0 / across)), height
