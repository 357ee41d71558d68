"""Colours of themes, mesh axes, blocks and verdicts, for light and dark pages.

Each mesh axis has a colour. An array's blocks have tints of the mesh axes that split it
(`Shade`); dimensions that are not split are grey. Other groups have up to ten colours,
which colour-blind readers can distinguish too. Beyond ten, a ramp shows their order.
Colour is never the only sign: every tile also shows an id or text.

Red means failure. No group has a colour near red, because the group would look
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

# In the order of mesh axes. The first five differ most from each other; the last two
# are grey. Any two colours differ by at least 10 (CIEDE2000), also for the
# colour-blind, and each differs as much from the red of errors.
GROUP_COLOURS = (
    "#4c90d6", "#faa812", "#7637b8", "#008053", "#73cfce",
    "#969231", "#a9afff", "#885e92", "#666b71", "#898b94",
)  # fmt: skip

# Four tints of each mesh axis, from pale to full; the last row is grey. A search chose
# them so that tints in different columns, of one row or two, differ by at least 10
# (CIEDE2000), also for the colour-blind. `tests/picture/test_palette.py` measures it.
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
DEEP = 0.75  # share of the tint in an outline; the rest is the text colour


@dataclass(frozen=True)
class Theme:
    """The colours of a light or dark theme, as `#rrggbb`.

    Attributes:
        paper: the background of the page.
        panel: the background of a side panel.
        faint_text: dashes and faint lines.
        soft: the background of small elements, such as tags.
        unsplit: dimensions that are not split.
        accent: buttons and selected items.
        on_accent: text on `accent`.
        accent_soft: backgrounds in a pale tint of `accent`.
        groups: colours of up to ten groups.
        ramp: the colours that the ramp interpolates.
        tints: a row of tints per mesh axis, from pale to full; the last row is grey.
        verdicts: colours of good, lost, broken, other.
        rest: share of the full colour in a tile's fill; the remainder is `paper`.
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
    """Returns the theme with this name; a Theme is returned unchanged.

    Raises:
        ShardvizError: if no theme has this name.
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
        axis: the axis number in the mesh, which selects the hue; -1 if unknown.
        size, stride: block `n` is at position `n // stride % size` along the axis.
        tint: how many tints the colour changes from one position to the next.
    """

    axis: int
    size: int
    stride: int
    tint: int


Shades = tuple[Shade, ...]


def shades(axes: Sequence[tuple[int, int, int]]) -> Shades:
    """Chooses the shades of an array's blocks; neighbours never have the same tint.

    Blocks at position 0 of all axes but the first have the first axis' hue. The hue
    changes with the position along the other axes. If only one axis splits the array,
    its first eight blocks all differ; see `ladder`.

    Args:
        axes: (number in the mesh, size, stride) of each mesh axis that splits the
            array, major to minor.

    >>> [shade.tint for shade in shades([(0, 4, 2), (1, 2, 1)])]
    [1, 2]
    """
    result: list[Shade] = []
    for axis, size, stride in reversed(axes):
        # If several axes split a dimension, the minor axes return to position 0 when
        # the position along this axis increases by one.
        again, taken_tints = 0, set()
        for later in result:
            again += later.tint * (later.size - 1)
            taken_tints.add(again % TINTS)
        # Steps of two tints are only for size 2; on longer axes, tints would repeat.
        wide = len(axes) > 1 and size == 2 and not result
        free = [t for t in ((2, 1, 3) if wide else (1, 2, 3)) if t not in taken_tints]
        result.insert(0, Shade(axis, size, stride, free[0] if free else 1))
    return tuple(result)


def _block_colours(count: int, shades: Shades, theme: Theme) -> np.ndarray:
    """Returns the colour of every block: float64 [count, 3]."""
    number, hue = np.arange(count), 0
    tint = int(1 < count < TINTS)  # with few blocks, skip the palest tint
    for index, shade in enumerate(shades):
        position = number // shade.stride % shade.size
        tint, hue = tint + position * shade.tint, hue + position * index
    rows = np.array([_tint_row(theme, shade.axis) for shade in shades] or [-1])
    table = np.array([_rgb_rows(ladder(row)) for row in theme.tints])
    column = tint % TINTS
    if len(shades) == 1 and count > TINTS:
        column = TINTS + tint % (table.shape[1] - TINTS)
    return table[rows[hue % len(rows)], np.broadcast_to(column, count)]


def ladder(tints: Sequence[str]) -> tuple[str, ...]:
    """Returns an axis' four tints, followed by eight distinct tints of the same range.

    Eight is the most common number of blocks above four. Neighbours among the eight are
    far enough apart to differ as much as two of the four tints.

    >>> ladder(THEMES["light"].tints[0])[:6]
    ('#e4eeff', '#a5c8f9', '#5e9ee7', '#2a78cc', '#e4eeff', '#91bcf4')
    """
    steps = hexed(np.rint(_between(tints, 8)).astype(int))
    return (*tints, *(steps[place] for place in (0, 3, 6, 1, 4, 7, 2, 5)))


def _tint_row(theme: Theme, axis: int) -> int:
    """Returns the row of a mesh axis in `Theme.tints`; -1 is the last row, grey."""
    return axis % (len(theme.tints) - 1) if axis >= 0 else -1


def colours(
    groups: Any,
    count: int,
    colormap: str = "blocks",
    theme: str | Theme = "light",
    strong: bool = False,
    shades: Shades | None = None,
) -> np.ndarray:
    """Returns the fill colour of every tile: uint8 [tiles, 4], red green blue alpha.

    Args:
        groups: int [tiles]: the group of each tile.
        count: number of groups.
        colormap: see `Picture.colormap`.
        strong: whether to return outline colours instead of fill colours.
        shades: shades of an array's blocks; None for other groups.

    >>> colours([0, 1, 0], 2, strong=True).tolist()
    [[76, 144, 214, 255], [250, 168, 18, 255], [76, 144, 214, 255]]
    """
    table = palette(count, colormap, theme_of(theme), strong, shades)
    return table[table_index(groups, count, len(table))]


def table_index(groups: Any, count: int, length: int) -> np.ndarray:
    """Returns the index of each group's colour in a palette: int64 [tiles].

    If there are more groups than colours, groups are spread evenly over the palette,
    from the first colour to the last.

    Args:
        groups: int [tiles]: the group of each tile.
        count: number of groups.
        length: number of colours in the palette.
    """
    number = np.asarray(groups, np.int64)
    # With more groups than colours, the palette is a ramp, which must show order.
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
    """Returns the colours for `count` groups, see `table_index`: uint8 [≤ 256, 4]."""
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
        )  # most tiles have the fourth verdict, kept pale
    elif stops is not None:
        full, shares = _between(stops, min(max(count, 2), RAMP_STEPS)), np.ones((1, 1))
    elif shades is not None:
        full, shares = _block_colours(count, shades, theme), np.ones((1, 1))
    elif colormap == "bars":
        shares = np.ones((1, 1))
    if strong:
        shares = np.ones((1, 1))
    if strong and shades is not None:
        # A tint may already be the full colour, so darken it toward the text colour.
        full = full * DEEP + np.array(rgb(theme.text)) * (1 - DEEP)
    table = np.full((len(full), 4), 255, np.uint8)
    table[:, :3] = np.rint(full * shares + np.array(rgb(theme.paper)) * (1 - shares))
    table.flags.writeable = False
    return table


def _between(stops: Sequence[str], count: int) -> np.ndarray:
    """Interpolates `count` colours between the stops: float64 [count, 3]."""
    stop_colours = _rgb_rows(stops)
    at = np.linspace(0, len(stop_colours) - 1, count)
    low = np.minimum(at.astype(int), len(stop_colours) - 2)
    part = (at - low)[:, None]
    return stop_colours[low] * (1 - part) + stop_colours[low + 1] * part


def _rgb_rows(names: Iterable[str]) -> np.ndarray:
    return np.array([rgb(name) for name in names], float)


def rgb(colour: str) -> tuple[int, int, int]:
    """Converts `#rrggbb` to three numbers from 0 to 255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def hexed(table: np.ndarray) -> list[str]:
    """Converts rows of red, green, blue to `#rrggbb`."""
    return [f"#{r:02x}{g:02x}{b:02x}" for r, g, b in np.asarray(table)[:, :3].tolist()]


def luminance(table: Any) -> np.ndarray:
    """Returns the WCAG 2 relative luminance, 0 to 1, of colours [n, 3 or 4]."""
    part = np.asarray(table, float)[..., :3] / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return np.round(linear @ np.array([0.2126, 0.7152, 0.0722]), 12)


def contrast(first: Any, second: Any) -> np.ndarray:
    """Returns the WCAG 2 contrast ratio, 1 to 21, of two colours or rows of colours."""
    # The ratio is symmetric: either argument may be the text.
    a, b = luminance(first), luminance(second)
    return (np.maximum(a, b) + 0.05) / (np.minimum(a, b) + 0.05)


def text_colours(fills: Any, theme: str | Theme) -> np.ndarray:
    """Returns a text colour for each fill, with contrast at least 4.5: uint8 [n, 4].

    Uses the theme's text or paper colour if its contrast is enough, else black or
    white.
    """
    chosen_theme, table = theme_of(theme), np.asarray(fills)
    out = np.full((len(table), 4), 255, np.uint8)
    chosen = np.zeros(len(table), bool)
    # At luminance 0.179, black and white have the same contrast.
    pure = np.where(luminance(table) > 0.179, 0, 255)
    for candidate in (chosen_theme.text, chosen_theme.paper):
        fits = ~chosen & (contrast(table, rgb(candidate)) >= 4.5)
        out[fits, :3] = rgb(candidate)
        chosen |= fits
    out[~chosen, :3] = pure[~chosen, None]
    return out


def theme_data(theme: str | Theme) -> Mapping[str, str]:
    """Returns a theme's named colours, for a page's style sheet."""
    chosen_theme = theme_of(theme)
    named = {}
    for field in fields(Theme):
        value = getattr(chosen_theme, field.name)
        if isinstance(value, str) and field.name != "name":
            named[field.name] = value
    return named
