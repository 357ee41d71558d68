"""Colours as data: of a theme, of groups, of verdicts, light and dark.

At most ten groups can be distinguished by colour, also by the colour-blind. Beyond ten
a ramp shows order. Colour is never the only sign: every tile also has its id, or its
words, and a tooltip.

Red says that something fails, so no group has a colour near it: an axis or a block in
red would look broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np

from shardviz.core.errors import ShardvizError
from shardviz.core.format import listed, shown

# petroff10 ("Accessible Color Sequences for Data Visualization", Petroff 2021) has a
# red, a brown and an orange that are near the red of errors; here these are green,
# olive and pale blue.
GROUP_COLOURS = (
    "#3f90da", "#ffa90e", "#832db6", "#007848", "#92dadd",
    "#a0b4f0", "#8c821e", "#b9ac70", "#717581", "#94a4a2",
)  # fmt: skip

# How much of the full colour a tile takes: where nothing is pointed at, where another
# tile is, and where the tile itself is.
STRENGTHS = ("rest", "faint", "strong")
RAMP_STEPS = 256


@dataclass(frozen=True)
class Theme:
    """The colours of one look, as `#rrggbb`.

    Attributes:
        paper, panel: behind everything; behind a side panel.
        faint_text: for dashes and hints of lines.
        soft, unsplit: behind small parts, such as tags; a dimension that is not split.
        accent, on_accent, accent_soft: what can be pressed or is chosen; text on that
            colour; a background in a pale tint of it.
        groups, ramp: the colours of up to ten groups; stops of the ramp for order.
        verdicts: the colours of good, lost, broken, other.
        rest, faint: the share of the full colour in a tile at rest, and in a faint one.
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
    verdicts: tuple[str, ...]
    rest: float
    faint: float


LIGHT = Theme(
    "light", paper="#ffffff", panel="#f7f8fa", text="#1f2430", muted="#5f697d",
    faint_text="#98a2b3", line="#e2e5ea", shadow="#000000", soft="#eef1f6", unsplit="#c9ced8",
    accent="#1f6bbd", on_accent="#ffffff", accent_soft="#e6f1fc",
    good="#187734", warn="#b54708", bad="#bd1f01", groups=GROUP_COLOURS,
    ramp=(
        "#f6f7d0", "#d9f0c1", "#b3ebbd", "#90e1cb", "#7bd3d7",
        "#73c2de", "#78b0df", "#849cda", "#9187cb",
    ),
    verdicts=("#2da44e", "#ffa90e", "#bd1f01", "#94a4a2"), rest=0.5, faint=0.18,
)  # fmt: skip

DARK = Theme(
    "dark", paper="#111318", panel="#181b22", text="#e6e9ef", muted="#98a2b3",
    faint_text="#667085", line="#2b303b", shadow="#000000", soft="#222732", unsplit="#454c5a",
    accent="#4a9be8", on_accent="#0b1017", accent_soft="#142534",
    good="#56c271", warn="#ff9a1f", bad="#f06078", groups=GROUP_COLOURS,
    ramp=(
        "#291c3c", "#29264d", "#25315d", "#183e67", "#054c6b",
        "#025868", "#096565", "#24705c", "#477751",
    ),
    verdicts=("#2da44e", "#ffa90e", "#f06078", "#94a4a2"), rest=0.5, faint=0.18,
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


def colours(
    groups: Any,
    count: int,
    colormap: str = "blocks",
    theme: str | Theme = "light",
    strength: str = "rest",
) -> np.ndarray:
    """The fill colour of every tile: uint8 [tiles, 4], red green blue alpha.

    Args:
        groups: int [tiles], the group of each.
        count: how many groups there are.
        colormap: a Picture's colormap.
        strength: `"rest"`, `"faint"` (another tile is pointed at) or `"strong"` (this
            one is).

    >>> colours([0, 1, 0], 2, strength="strong").tolist()
    [[63, 144, 218, 255], [255, 169, 14, 255], [63, 144, 218, 255]]
    """
    table = palette(count, colormap, theme_of(theme), strength)
    return table[table_index(groups, count, len(table))]


def table_index(groups: Any, count: int, length: int) -> np.ndarray:
    """Where each group's colour stands in a palette of `length`: int64 [tiles].

    Groups beyond a palette of order are spread over it, first to first and last to
    last.
    """
    number = np.asarray(groups, np.int64)
    # Of a few colours each is used again; of a ramp, order is what counts.
    if count > length:
        return np.clip(number, 0, count - 1) * (length - 1) // (count - 1)
    return number % length


@lru_cache(maxsize=64)
def palette(
    count: int, colormap: str, theme: Theme, strength: str = "rest"
) -> np.ndarray:
    """The colours that `count` groups are spread over: uint8 [at most 256, 4]."""
    full = _rgb_rows(theme.groups)
    shares = np.full((len(full), 1), theme.rest)
    if colormap == "verdicts":
        full = _rgb_rows(theme.verdicts)
        shares = theme.rest * np.array([[1], [1], [1], [1 / 3]])  # most have no say
    elif colormap == "plain":
        full, shares = full[8:9], np.array([[theme.rest / 2]])
    elif colormap == "ramp" or count > len(theme.groups):
        # Stops of the ramp, and the colours between them.
        stops = _rgb_rows(theme.ramp)
        at = np.linspace(0, len(stops) - 1, min(max(count, 2), RAMP_STEPS))
        low = np.minimum(at.astype(int), len(stops) - 2)
        part = (at - low)[:, None]
        full, shares = stops[low] * (1 - part) + stops[low + 1] * part, np.ones((1, 1))
    elif colormap == "bars":
        shares = np.ones((1, 1))
    if strength != "rest":
        shares = np.array([[{"faint": theme.faint, "strong": 1.0}[strength]]])
    table = np.full((len(full), 4), 255, np.uint8)
    table[:, :3] = np.rint(full * shares + np.array(rgb(theme.paper)) * (1 - shares))
    table.flags.writeable = False
    return table


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


def contrast(one: Any, other: Any) -> np.ndarray:
    """The WCAG 2 contrast ratio of two colours, or of rows of them: 1 to 21."""
    # Which of the two is the text makes no difference.
    a, b = luminance(one), luminance(other)
    return (np.maximum(a, b) + 0.05) / (np.minimum(a, b) + 0.05)


def text_colours(fills: Any, theme: str | Theme) -> np.ndarray:
    """The colour of text on each fill: uint8 [n, 4]; contrast is at least 4.5.

    The theme's text or paper where it can be read, else black or white: one of these
    always can.
    """
    look, table = theme_of(theme), np.asarray(fills)
    out = np.full((len(table), 4), 255, np.uint8)
    done = np.zeros(len(table), bool)
    # At this luminance black and white have the same contrast.
    pure = np.where(luminance(table) > 0.179, 0, 255)
    for candidate in (look.text, look.paper):
        fits = ~done & (contrast(table, rgb(candidate)) >= 4.5)
        out[fits, :3] = rgb(candidate)
        done |= fits
    out[~done, :3] = pure[~done, None]
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
