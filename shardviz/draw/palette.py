"""Colours of themes, mesh axes, blocks and verdicts, for light and dark pages.

One colour means one mesh axis. The blocks of an array have tints of the axes that split
it (`Shade`); dimensions that are not split are grey. For other groups, at most ten colours
can be distinguished, also by the colour-blind; beyond ten a ramp shows order. Colour
is never the only sign: every tile also has its id, or its words.

Red means failure, so no group has a colour near it: a red axis or block would look
broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from shardviz.base.errors import ShardvizError
from shardviz.base.format import listed, shown

# In the order of mesh axes; the first five are the farthest apart, and the last two are
# grey. Every two differ by at least 10 (CIEDE2000), also to the colour-blind, and all
# differ as much from the red of errors.
GROUP_COLOURS = (
    "#4c90d6", "#faa812", "#7637b8", "#008053", "#73cfce",
    "#969231", "#a9afff", "#885e92", "#666b71", "#898b94",
)  # fmt: skip

# Four tints of each mesh axis, from pale to full; the last row is grey. Found by a search,
# so that any two of different columns differ by at least 10 (CIEDE2000), of one
# row or of two, also to the colour-blind. `tests/picture/test_palette.py` measures it.
LIGHT_TINTS = (
    ("#e4eeff", "#a5c8f9", "#5e9ee7", "#2a78cc"),
    ("#ffefd7", "#fcd38e", "#f1af30", "#d08700"),
    ("#f5e7ff", "#dbb9f5", "#b78be6", "#935bd1"),
    ("#d4eedf", "#8fc9ab", "#49ab7c", "#008856"),
    ("#d7f2f1", "#8cc7c4", "#35a5a6", "#00857f"),
    ("#f3efd5", "#e1ce8b", "#aca865", "#899219"),
    ("#ecebff", "#bebef1", "#9399e6", "#616fcc"),
    ("#f3e6f6", "#d7b5dd", "#ba8bc5", "#9165ab"),
    ("#eceef1", "#bfc0c2", "#999a9c", "#75777a"),
)
DARK_TINTS = (
    ("#2f4158", "#396391", "#3984cb", "#5aacff"),
    ("#5d420b", "#8a6000", "#b68300", "#efad18"),
    ("#493a56", "#72548d", "#9e70c8", "#c990ff"),
    ("#294637", "#326c51", "#349669", "#3ac698"),
    ("#264545", "#276b6b", "#169393", "#00bab9"),
    ("#444125", "#6a672e", "#8b872e", "#bab43e"),
    ("#3d3e56", "#5a5d8c", "#777dc6", "#959ffe"),
    ("#4a3a4d", "#75577b", "#9f72ab", "#d395e0"),
    ("#3c4043", "#5b6068", "#7d868f", "#a0a6ad"),
)

RAMP_STEPS = 256
TINTS = 4
DEEP = 0.75  # the share of a tint in its outline; the rest is the colour of text


@dataclass(frozen=True)
class Theme:
    """The colours of one look, as `#rrggbb`.

    Attributes:
        paper, panel: behind everything; behind a side panel.
        faint_text: for dashes and hints of lines.
        soft, unsplit: behind small parts, such as tags; a dimension that is not split.
        accent, on_accent, accent_soft: buttons and selected items; text on that colour;
            a background in a pale tint of it.
        groups, ramp: the colours of up to ten groups; stops of the ramp for order.
        tints: a row per mesh axis, and a last row of grey: from pale to full.
        verdicts: the colours of good, lost, broken, other.
        rest: the share of the full colour in a tile.
    """

    name: str
    paper: str
    panel: str
    text: str
    muted: str
    faint_text: str
    line: str
    shadow: str
    soft: str
    unsplit: str
    accent: str
    on_accent: str
    accent_soft: str
    good: str
    warn: str
    bad: str
    groups: tuple[str, ...]
    ramp: tuple[str, ...]
    tints: tuple[tuple[str, ...], ...]
    verdicts: tuple[str, ...]
    rest: float


LIGHT = Theme(
    "light", paper="#ffffff", panel="#f7f8fa", text="#1f2430", muted="#5f697d",
    faint_text="#98a2b3", line="#e2e5ea", shadow="#000000", soft="#eef1f6", unsplit="#c9ced8",
    accent="#1f6bbd", on_accent="#ffffff", accent_soft="#e6f1fc",
    good="#187734", warn="#8f5a00", bad="#bd1f01", groups=GROUP_COLOURS, tints=LIGHT_TINTS,
    ramp=(
        "#f6f7d0", "#d9f0c1", "#b3ebbd", "#90e1cb", "#7bd3d7",
        "#73c2de", "#78b0df", "#849cda", "#9187cb",
    ),
    verdicts=("#2da44e", "#ffa90e", "#bd1f01", "#94a4a2"), rest=0.5,
)  # fmt: skip

DARK = Theme(
    "dark", paper="#111318", panel="#181b22", text="#e6e9ef", muted="#98a2b3",
    faint_text="#667085", line="#2b303b", shadow="#000000", soft="#222732", unsplit="#454c5a",
    accent="#4a9be8", on_accent="#0b1017", accent_soft="#142534",
    good="#56c271", warn="#ff9a1f", bad="#ff687e", groups=GROUP_COLOURS, tints=DARK_TINTS,
    ramp=(
        "#291c3c", "#29264d", "#25315d", "#183e67", "#054c6b",
        "#025868", "#096565", "#24705c", "#477751",
    ),
    verdicts=("#2da44e", "#ffa90e", "#ff687e", "#94a4a2"), rest=0.5,
)  # fmt: skip

THEMES = {t.name: t for t in (LIGHT, DARK)}


def theme_of(theme: str | Theme) -> Theme:
    """The theme of that name.

    Raises:
        ShardvizError: if there is none.
    """
    if isinstance(theme, Theme):
        return theme
    if isinstance(theme, str) and theme in THEMES:
        return THEMES[theme]
    raise ShardvizError(
        f"A theme is one of {listed(THEMES, 'or')}; got {shown(theme)}."
    )


class Shade(NamedTuple):
    """How one mesh axis changes the colours of an array's blocks.

    Attributes:
        axis: its number in the mesh, which gives the hue; -1 if unknown.
        size, stride: block `n` is at position `n // stride % size` along the axis.
        tint: by how many tints the colour changes with each block along it.
    """

    axis: int
    size: int
    stride: int
    tint: int


Shades = tuple[Shade, ...]


def shades(axes: Sequence[tuple[int, int, int]]) -> Shades:
    """How the blocks of an array are coloured: neighbours never have the same tint.

    The hue is that of the first axis, and changes to those of the others with every
    step along them. Along one axis alone the first eight blocks differ, see `ladder`.

    Args:
        axes: number in the mesh, size and stride of each axis that splits, major to
            minor.

    >>> [shade.tint for shade in shades([(0, 4, 2), (1, 2, 1)])]
    [1, 2]
    """
    result: list[Shade] = []
    for axis, size, stride in reversed(axes):
        # If several axes split a dimension, the later axes start again at 0 when the
        # position along this axis grows by one.
        again, taken_tints = 0, set()
        for later in result:
            again += later.tint * (later.size - 1)
            taken_tints.add(again % TINTS)
        # Two steps if there are only two blocks; with more, tints would repeat.
        wide = len(axes) > 1 and size == 2 and not result
        free = [t for t in ((2, 1, 3) if wide else (1, 2, 3)) if t not in taken_tints]
        result.insert(0, Shade(axis, size, stride, free[0] if free else 1))
    return tuple(result)


def _block_colours(count: int, shades: Shades, theme: Theme) -> np.ndarray:
    """The colour of every block: float64 [count, 3]."""
    number, turn = np.arange(count), 0
    tint = int(1 < count < TINTS)  # a few blocks don't need the palest tint
    for place, shade in enumerate(shades):
        at = number // shade.stride % shade.size
        tint, turn = tint + at * shade.tint, turn + at * place
    rows = np.array([_tint_row(theme, shade.axis) for shade in shades] or [-1])
    table = np.array([_rgb_rows(ladder(row)) for row in theme.tints])
    place = tint % TINTS
    if len(shades) == 1 and count > TINTS:
        place = TINTS + tint % (table.shape[1] - TINTS)
    return table[rows[turn % len(rows)], np.broadcast_to(place, count)]


def ladder(tints: Sequence[str]) -> tuple[str, ...]:
    """The tints of an axis, and after them eight of the same range that all differ.

    Eight blocks, the most common number above four, so have eight colours. Each stands
    at least three steps from its neighbours, which differ as much as tints do.

    >>> ladder(THEMES["light"].tints[0])[:6]
    ('#e4eeff', '#a5c8f9', '#5e9ee7', '#2a78cc', '#e4eeff', '#91bcf4')
    """
    steps = hexed(np.rint(_between(tints, 8)).astype(int))
    return (*tints, *(steps[place] for place in (0, 3, 6, 1, 4, 7, 2, 5)))


def _tint_row(theme: Theme, axis: int) -> int:
    """The row of a mesh axis in a theme's tints; -1, the last row, is grey."""
    return axis % (len(theme.tints) - 1) if axis >= 0 else -1


def colours(
    groups: Any,
    count: int,
    colormap: str = "blocks",
    theme: str | Theme = "light",
    strong: bool = False,
    shades: Shades | None = None,
) -> np.ndarray:
    """The fill colour of every tile: uint8 [tiles, 4], red green blue alpha.

    Args:
        groups: int [tiles], the group of each.
        count: how many groups there are.
        colormap: a Picture's colormap.
        strong: whether to return the colours of outlines.
        shades: for the blocks of an array; None for other groups.

    >>> colours([0, 1, 0], 2, strong=True).tolist()
    [[76, 144, 214, 255], [250, 168, 18, 255], [76, 144, 214, 255]]
    """
    table = palette(count, colormap, theme_of(theme), strong, shades)
    return table[table_index(groups, count, len(table))]


def table_index(groups: Any, count: int, length: int) -> np.ndarray:
    """The index of each group's colour in a palette of `length`: int64 [tiles].

    If there are more groups than colours, groups are spread over the palette, first to
    first and last to last.
    """
    number = np.asarray(groups, np.int64)
    # More groups than colours means a ramp, which must show order.
    if count > length:
        return np.clip(number, 0, count - 1) * (length - 1) // (count - 1)
    return number % length


@lru_cache(maxsize=64)
def palette(
    count: int,
    colormap: str,
    theme: Theme,
    strong: bool = False,
    shades: Shades | None = None,
) -> np.ndarray:
    """The colours that `count` groups are spread over: uint8 [at most 256, 4]."""
    full = _rgb_rows(theme.groups)
    shares = np.full((len(full), 1), theme.rest)
    stops = None
    if colormap == "ramp" or count > (RAMP_STEPS if shades else len(full)):
        stops = theme.ramp
        if shades:
            stops = theme.tints[_tint_row(theme, shades[0].axis)]
    if colormap == "verdicts":
        full = _rgb_rows(theme.verdicts)
        shares = theme.rest * np.array(
            [[1], [1], [1], [1 / 3]]
        )  # most are the fourth verdict, kept pale
    elif stops is not None:
        full, shares = _between(stops, min(max(count, 2), RAMP_STEPS)), np.ones((1, 1))
    elif shades is not None:
        full, shares = _block_colours(count, shades, theme), np.ones((1, 1))
    elif colormap == "bars":
        shares = np.ones((1, 1))
    if strong:
        shares = np.ones((1, 1))
    if strong and shades is not None:
        # A tint may be full already.
        full = full * DEEP + np.array(rgb(theme.text)) * (1 - DEEP)
    table = np.full((len(full), 4), 255, np.uint8)
    table[:, :3] = np.rint(full * shares + np.array(rgb(theme.paper)) * (1 - shares))
    table.flags.writeable = False
    return table


def _between(stops: Sequence[str], count: int) -> np.ndarray:
    """`count` colours from the first stop to the last: float64 [count, 3]."""
    stop_colours = _rgb_rows(stops)
    at = np.linspace(0, len(stop_colours) - 1, count)
    low = np.minimum(at.astype(int), len(stop_colours) - 2)
    part = (at - low)[:, None]
    return stop_colours[low] * (1 - part) + stop_colours[low + 1] * part


def _rgb_rows(names: Iterable[str]) -> np.ndarray:
    return np.array([rgb(name) for name in names], float)


def rgb(colour: str) -> tuple[int, int, int]:
    """`#rrggbb` as three numbers from 0 to 255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def hexed(table: np.ndarray) -> list[str]:
    """Rows of red green blue as `#rrggbb`."""
    return [f"#{r:02x}{g:02x}{b:02x}" for r, g, b in np.asarray(table)[:, :3].tolist()]


def luminance(table: Any) -> np.ndarray:
    """Relative luminance of colours [n, 3 or 4], 0 to 1, as WCAG 2 defines it."""
    part = np.asarray(table, float)[..., :3] / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return np.round(linear @ np.array([0.2126, 0.7152, 0.0722]), 12)


def contrast(first: Any, second: Any) -> np.ndarray:
    """The WCAG 2 contrast ratio of two colours, or of rows of them: 1 to 21."""
    # Symmetric: either of the two may be the text.
    a, b = luminance(first), luminance(second)
    return (np.maximum(a, b) + 0.05) / (np.minimum(a, b) + 0.05)


def text_colours(fills: Any, theme: str | Theme) -> np.ndarray:
    """The colour of text on each fill: uint8 [n, 4]; contrast is at least 4.5.

    The theme's text or paper colour if it is legible, else black or white: one of these
    always is.
    """
    look, table = theme_of(theme), np.asarray(fills)
    out = np.full((len(table), 4), 255, np.uint8)
    chosen = np.zeros(len(table), bool)
    # At this luminance black and white have the same contrast.
    pure = np.where(luminance(table) > 0.179, 0, 255)
    for candidate in (look.text, look.paper):
        fits = ~chosen & (contrast(table, rgb(candidate)) >= 4.5)
        out[fits, :3] = rgb(candidate)
        chosen |= fits
    out[~chosen, :3] = pure[~chosen, None]
    return out


def theme_data(theme: str | Theme) -> Mapping[str, str]:
    """The named colours of a theme, for a page's style sheet."""
    look = theme_of(theme)
    named = {}
    for field in fields(Theme):
        value = getattr(look, field.name)
        if isinstance(value, str) and field.name != "name":
            named[field.name] = value
    return named
