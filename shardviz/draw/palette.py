"""Colours of themes, mesh axes, blocks and verdicts, for light and dark pages.

Each mesh axis has a colour. The fill of an array's block shows the block's coordinate
along the first mesh axis that splits the array; bands show the other axes (`Shade`).
Dimensions that are not split are grey. Other groups have up to ten colours, which
colour-blind readers can distinguish too. Beyond ten, a ramp shows their order.
Colour is never the only sign: every tile also shows an id or text.

Red means failure. No group has a colour near red, because the group would look
broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

# A ladder of five colours for each mesh axis, from pale to full; the last row is grey. A
# search chose them so that neighbouring colours of a row differ by at least 10
# (CIEDE2000), also for the colour-blind, and none looks like the red of errors.
# `tests/picture/test_block_colours.py` measures it.
LIGHT_LADDERS = (
    ("#e4f0ff", "#b1d5ff", "#73b4ff", "#388ce6", "#2270bf"),
    ("#fff1e3", "#ffd7af", "#ffb768", "#e68e00", "#bc7300"),
    ("#f3eafe", "#dbbcff", "#c58dff", "#a767e3", "#884ebd"),
    ("#dff5e8", "#85deb0", "#00ba7a", "#009662", "#00764c"),
    ("#daf5f4", "#00d1d3", "#00a8a9", "#008688", "#006566"),
    ("#eef0e6", "#bfc79f", "#98a462", "#7a8449", "#606934"),
    ("#ebedff", "#c1c7ff", "#999fff", "#7777f6", "#5e5dce"),
    ("#f7e9fb", "#f1c3fc", "#e793fb", "#c86ade", "#a552b8"),
    ("#eeeeef", "#c0c2c5", "#9b9da2", "#7c7f83", "#626468"),
)
DARK_LADDERS = (
    ("#1e3a56", "#11538c", "#006fc0", "#008aeb", "#69b4ff"),
    ("#48340e", "#6f4f00", "#956b00", "#b98500", "#e3a500"),
    ("#402f50", "#663f87", "#8e4ec1", "#ae69e8", "#cc94ff"),
    ("#1f3328", "#2c5c44", "#35825d", "#50a57b", "#85cfa7"),
    ("#004141", "#006464", "#008484", "#00a3a3", "#00c9c9"),
    ("#3c3a10", "#5d5900", "#7b7600", "#999300", "#beb700"),
    ("#313456", "#484a94", "#605fd6", "#7b7eff", "#a0a8ff"),
    ("#452d4c", "#703b7d", "#9e47b4", "#bf62d7", "#df8bf5"),
    ("#373839", "#585a5d", "#75787c", "#94979c", "#bbbec2"),
)

RAMP_STEPS = 256
# Number of colours in a ladder.
LADDER_COLOURS = 5
# Share of the fill in an outline; the rest is the text colour.
DEEP = 0.75


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
        ladders: a ladder of colours per mesh axis, from pale to full; the last is grey.
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
    ladders: tuple[tuple[str, ...], ...]
    verdicts: tuple[str, ...]
    rest: float


LIGHT = Theme(
    "light", paper="#ffffff", panel="#f7f8fa", text="#1f2430", muted="#5f697d",
    faint_text="#98a2b3", line="#e2e5ea", shadow="#000000", soft="#eef1f6", unsplit="#c9ced8",
    accent="#1f6bbd", on_accent="#ffffff", accent_soft="#e6f1fc",
    good="#187734", warn="#8f5a00", bad="#bd1f01", groups=GROUP_COLOURS, ladders=LIGHT_LADDERS,
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
    good="#56c271", warn="#ff9a1f", bad="#ff687e", groups=GROUP_COLOURS, ladders=DARK_LADDERS,
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
    """A mesh axis that splits an array, and the coordinate of each block along it.

    Attributes:
        axis: the axis number in the mesh, which selects the hue; -1 if unknown.
        size, stride: block `n` is at coordinate `n // stride % size` along the axis.
    """

    axis: int
    size: int
    stride: int


Shades = tuple[Shade, ...]


def ladder_shares(size: int) -> np.ndarray:
    """Returns each coordinate's position on a ladder: float64 [size], from 0 to 1.

    Axes of size up to five use the ladder once. Larger axes repeat the ladder in three
    or four wide steps, each time with a small offset, so that neighbours differ
    clearly. Axes larger than 256 use the ladder once, in steps too small to see.

    >>> ladder_shares(2).tolist(), (ladder_shares(8) * 7).round().astype(int).tolist()
    ([0.25, 0.75], [0, 2, 4, 6, 1, 3, 5, 7])
    """
    position = np.arange(size)
    if size <= 2:
        return 0.25 + 0.5 * position
    if size <= LADDER_COLOURS or size > RAMP_STEPS:
        return position / (size - 1)
    climbs = -(-size // (4 if size <= 8 else 3))
    length = -(-size // climbs)
    return (position % length * climbs + position // length) / (length * climbs - 1)


@lru_cache(maxsize=64)
def _ladder(axis: int, size: int, theme: Theme) -> np.ndarray:
    """Returns the colours along a mesh axis: float64 [at most 256, 3]."""
    row = axis % (len(theme.ladders) - 1) if axis >= 0 else -1
    stops = _rgb_rows(theme.ladders[row])
    shares = ladder_shares(size)
    if size > RAMP_STEPS:
        shares = np.linspace(0, 1, RAMP_STEPS)
    return np.floor(_between(stops, shares) + 0.5)


def shade_colours(groups: Any, shade: Shade, theme: Theme) -> np.ndarray:
    """Returns each block's colour by its coordinate on an axis: float64 [blocks, 3]."""
    table = _ladder(shade.axis, shade.size, theme)
    coordinate = np.asarray(groups, np.int64) // shade.stride % shade.size
    return table[table_index(coordinate, shade.size, len(table))]


def band_colours(
    groups: Any, theme: str | Theme, shades: Shades | None
) -> list[np.ndarray]:
    """Returns the colours of the bands on blocks, for every axis except the first.

    Returns:
        One array per band, major axis first: uint8 [blocks, 4], red, green, blue, alpha.

    >>> by = (Shade(0, 4, 2), Shade(1, 2, 1))
    >>> [hexed(band) for band in band_colours([0, 1, 2], "light", by)]
    [['#ffd7af', '#e68e00', '#ffd7af']]
    """
    bands = []
    for shade in (shades or ())[1:]:
        bands.append(_opaque(shade_colours(groups, shade, theme_of(theme))))
    return bands


def _opaque(table: np.ndarray) -> np.ndarray:
    """Converts colours float64 [n, 3] to uint8 [n, 4]."""
    filled = np.full((len(table), 4), 255, np.uint8)
    filled[:, :3] = np.rint(table)
    return filled


def colours(
    groups: Any,
    count: int,
    colormap: str = "blocks",
    theme: str | Theme = "light",
    strong: bool = False,
    shades: Shades | None = None,
) -> np.ndarray:
    """Returns the fill colour of every tile: uint8 [tiles, 4], red green blue alpha.

    An array's blocks are coloured by their coordinate along the first axis that splits
    the array; `band_colours` is for the other axes.

    Args:
        groups: int [tiles]: the group of each tile.
        count: number of groups.
        colormap: see `Picture.colormap`.
        strong: whether to return outline colours instead of fill colours.
        shades: shades of an array's blocks; None for other groups.

    >>> colours([0, 1, 0], 2, strong=True).tolist()
    [[76, 144, 214, 255], [250, 168, 18, 255], [76, 144, 214, 255]]
    """
    look = theme_of(theme)
    if shades is not None:
        # An array that is not split is a single grey block.
        fills = shade_colours(groups, [*shades, Shade(-1, 1, 1)][0], look)
        # A fill may already be the full colour, so darken it toward the text colour.
        if strong:
            fills = fills * DEEP + np.array(rgb(look.text)) * (1 - DEEP)
        return _opaque(fills)
    table = palette(count, colormap, look, strong)
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
) -> np.ndarray:
    """Returns the colours for `count` groups, see `table_index`: uint8 [≤ 256, 4]."""
    full = _rgb_rows(theme.groups)
    shares = np.full((len(full), 1), theme.rest)
    stops = None
    if colormap == "ramp" or count > len(full):
        stops = _rgb_rows(theme.ramp)
    if colormap == "verdicts":
        full = _rgb_rows(theme.verdicts)
        shares = theme.rest * np.array(
            [[1], [1], [1], [1 / 3]]
        )  # most tiles have the fourth verdict, kept pale
    elif stops is not None:
        steps = np.linspace(0, 1, min(max(count, 2), RAMP_STEPS))
        full, shares = _between(stops, steps), np.ones((1, 1))
    elif colormap == "bars":
        shares = np.ones((1, 1))
    if strong:
        shares = np.ones((1, 1))
    table = _opaque(full * shares + np.array(rgb(theme.paper)) * (1 - shares))
    table.flags.writeable = False
    return table


def _between(stops: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Interpolates between stops [n, 3] at positions from 0 to 1: float64 [m, 3]."""
    at = shares * (len(stops) - 1)
    low = np.minimum(at.astype(int), len(stops) - 2)
    part = (at - low)[:, None]
    return stops[low] * (1 - part) + stops[low + 1] * part


def _rgb_rows(names: Iterable[str]) -> np.ndarray:
    return np.array([rgb(name) for name in names], float)


def rgb(colour: str) -> tuple[int, int, int]:
    """Converts `#rrggbb` to three numbers from 0 to 255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def hexed(table: np.ndarray) -> list[str]:
    """Converts rows of red, green, blue to `#rrggbb`."""
    return [
        f"#{r:02x}{g:02x}{b:02x}" for r, g, b in np.asarray(table, int)[:, :3].tolist()
    ]


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
