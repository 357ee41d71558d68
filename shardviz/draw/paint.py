"""Paints a Picture with matplotlib, and as PNG, without pyplot or global state."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure as PlainFigure
from matplotlib.font_manager import FontProperties, findfont, get_font

from shardviz.draw.page import shortened, text_width, widest
from shardviz.draw.palette import (
    Shade,
    Theme,
    band_colours,
    colours,
    rgb,
    shade_colours,
    text_colours,
    theme_of,
)
from shardviz.draw.picture import (
    MANY_GROUPS,
    NO_GROUP,
    Edges,
    Frame,
    Label,
    LegendEntry,
    Picture,
    Ruler,
    Tiles,
    make_tiles,
)

MOST_LABELS = 4096
# Font sizes, in points.
LARGEST, SMALLEST, SECOND = 11.0, 5.0, 8.0


# Text size at an array's edge; distance and width of the coloured bar, in points.
EDGE_SIZE, BAR_AWAY, BAR_WIDE = 9.0, 4.5, 3.4
# An edge whose steps are shorter than this, in points, has the axis' full colour.
LEAST_STEP = 1.5
# A band's share of its tile's width, its maximum width, and the distance from the tile's
# top and bottom, in points.
BAND_SHARE, WIDEST_BAND, BAND_INSET = 0.14, 9.0, 0.5
NAME_SIZE = 7.5


@dataclass(frozen=True)
class Line:
    """One line of text with its position and style."""

    x: float
    y: float
    text: str
    size: float
    bold: bool
    colour: tuple[float, ...]
    anchor: str


def lines_in_tiles(picture: Picture, text_colour: np.ndarray) -> Iterator[Line]:
    """Yields the lines of text inside a picture's tiles.

    The first lines of all tiles have the same size, the largest that fits every tile.
    Other lines are left out if they don't fit.

    Args:
        text_colour: uint8 [tiles, 4]: the colour of the text on each tile.
    """
    tiles = picture.tiles
    bands = max(0, len(picture.shades or ()) - 1)
    covered = bands * band_width(float(tiles.width.min()), bands)
    width, height = float(tiles.width.min()) - covered, float(tiles.height.min())
    if not tiles.text or len(tiles) > MOST_LABELS or height < SMALLEST + 1:
        return
    texts = [tiles.label(i).split("\n") for i in range(len(tiles))]
    # Text of different sizes would suggest a difference in meaning.
    pad = min(8.0, width * 0.1)
    wide = widest((first for first, *_ in texts), 1.0, bold=True)
    size = min(LARGEST, height * 0.62, (width - 2 * pad) / max(wide, 0.01))
    # If even the smallest size doesn't fit, tiles have no text.
    if size < SMALLEST:
        return
    small = min(SECOND, size * 0.8)
    for index, (first, *further) in enumerate(texts):
        colour = tuple((text_colour[index] / 255).tolist())
        left, top = float(tiles.x[index]), float(tiles.y[index])
        width, height = float(tiles.width[index]) - covered, float(tiles.height[index])
        space = width - 2 * pad
        further = [line for line in further if text_width(line, small) <= space]
        if small < SMALLEST or size * 1.25 + len(further) * small * 1.35 > height - 4:
            further = []
        y = top + (height - size * 1.2 - len(further) * small * 1.45) / 2 + size * 0.62
        x = left + (pad if tiles.align == "start" else width / 2)
        yield Line(x, y, first, size, True, colour, tiles.align)
        y += size * 0.6 + small * 0.85
        for line in further:
            yield Line(x, y, line, small, False, colour, tiles.align)
            y += small * 1.4


POINTS_PER_INCH = 72.0
# More tiles than this are painted as an image.
MOST_POLYGONS = 20_000
# Tiles smaller than this, in points, have no outline.
EDGED = 7.0
_ROLES = {
    "title": ("sans", 11.0, "bold", "text"),
    "axis": ("sans", 9.0, "normal", "muted"),
    "tick": ("sans", 8.0, "normal", "muted"),
    "note": ("sans", 8.5, "normal", "muted"),
    "mono": ("mono", 9.0, "normal", "text"),
}
# matplotlib includes both fonts.
_FAMILIES = {"sans": "DejaVu Sans", "mono": "DejaVu Sans Mono"}


def paint(picture: Picture, theme: str | Theme | None = None) -> Figure:
    """Paints a picture and its panels on a Figure of the picture's size.

    Args:
        picture: a result of `draw`.
        theme: `"light"`, `"dark"` or a Theme. None follows matplotlib's style: after
            `plt.style.use("dark_background")`, pictures are dark.

    >>> from shardviz.base.mesh import make_mesh
    >>> from shardviz.pictures import draw
    >>> figure = paint(draw(make_mesh(data=4, model=2)), theme="dark")
    >>> len(figure.axes[0].collections[0].get_paths())
    8
    """
    chosen_theme = _theme_of_style() if theme is None else theme_of(theme)
    size = picture.width / POINTS_PER_INCH, picture.height / POINTS_PER_INCH
    figure = Figure(size)
    figure.set_facecolor(chosen_theme.paper)
    figure.words = picture.alt
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_axis_off()
    _Painter(ax, chosen_theme).picture(picture, 0.0, 0.0)
    ax.set_xlim(0, picture.width)
    ax.set_ylim(picture.height, 0)
    ax.set_aspect("equal", adjustable="datalim")
    return figure


def _theme_of_style() -> Theme:
    """Returns the dark theme if matplotlib's style has dark figures, else the light."""
    red, green, blue, alpha = to_rgba(rcParams["figure.facecolor"])
    if alpha and (red + green + blue) / 3 < 0.5:
        return theme_of("dark")
    return theme_of("light")


class _Painter:
    """Paints pictures on one Axes, with one method per kind of element."""

    def __init__(self, ax: Axes, theme: Theme):
        self.ax, self.theme = ax, theme

    def picture(self, picture: Picture, x: float, y: float) -> None:
        """Paints a picture with its top left corner at (x, y), then its panels."""
        if picture.edges is not None and len(picture.edges):
            self.edges(picture, picture.edges, x, y)
        if len(picture.tiles):
            self.tiles(picture, x, y)
        if picture.frames:
            self.frames(picture.frames, x, y)
        for ruler in picture.rulers:
            # Rulers around devices are already painted as labels.
            if ruler.is_edge and ruler.words:
                self.edge(picture, ruler, x, y)
        for entry in picture.legend:
            self.swatch(picture, entry, x, y)
        for label in picture.labels:
            self.label(label, x, y)
        for panel_x, panel_y, panel in picture.panels:
            self.picture(panel, x + panel_x, y + panel_y)

    def edges(self, picture: Picture, edges: Edges, x: float, y: float) -> None:
        """Paints all edges as one collection, below the tiles."""
        start = np.stack([edges.x0 + x, edges.y0 + y], -1)
        end = np.stack([edges.x1 + x, edges.y1 + y], -1)
        lines = LineCollection(
            list(np.stack([start, end], axis=1)),
            colors=edge_colours(picture, edges, self.theme) / 255,
            linewidths=edges.width,
            capstyle="round",
            zorder=0.5,
        )
        self.ax.add_collection(lines, autolim=False)

    def tiles(self, picture: Picture, x: float, y: float) -> None:
        """Paints all tiles as one collection, then their text if it fits."""
        tiles = picture.tiles
        fills = group_colours(picture, tiles.group, self.theme)
        bands = band_colours(tiles.group, self.theme, picture.shades)
        if len(tiles) > MOST_POLYGONS:
            # Each tile is only a few pixels, so all are painted as one image.
            self.ax.add_artist(_TileImage(tiles, fills, x, y))
            return
        smallest = float(min(tiles.width.min(), tiles.height.min()))
        edges: Any = "none"
        width = 0.0
        if smallest >= EDGED and tiles.radius:
            edges, width = _edge_colours(picture, self.theme) / 255, 0.8
        elif smallest >= EDGED:
            edges, width = self.theme.paper, 1.2
        # Antialiasing would blur tiles of a few pixels.
        sharp = bool(tiles.radius) or smallest >= 3
        shapes = rounded(tiles, x, y)
        self.polygons(shapes, fills / 255, edges, width, antialiased=sharp, zorder=1)
        if smallest >= EDGED:
            self.bands(tiles, bands, x, y)
        for line in lines_in_tiles(picture, text_colours(fills, self.theme)):
            font = ("sans", line.size, "bold" if line.bold else "normal")
            self.text(x + line.x, y + line.y, line.text, font, line.colour, line.anchor)

    def bands(
        self, tiles: Tiles, colours: Sequence[np.ndarray], x: float, y: float
    ) -> None:
        """Paints bands at the right of tiles, one per colour, major axis first."""
        band = band_width(float(tiles.width.min()), len(colours))
        # The last band touches the rounded corners.
        inset = max(BAND_INSET, tiles.radius)
        for number, fills in enumerate(colours):
            left = tiles.x + tiles.width - band * (len(colours) - number) + x
            top, height = tiles.y + inset + y, tiles.height - 2 * inset
            width = np.full(len(tiles), band)
            outlines = _round_corners(np.stack([left, top, width, height]), 0)
            self.polygons(outlines, fills / 255, "none", 0, zorder=1.5)

    def frames(self, frames: tuple[Frame, ...], x: float, y: float) -> None:
        """Paints dashed frames as one collection and solid frames as another."""
        styles = {True: (0.9, (0, (3.0, 2.4))), False: (0.5, "solid")}
        for dashed, (width, style) in styles.items():
            corners = []
            for f in frames:
                if f.dashed is dashed:
                    corners.append((f.x + x, f.y + y, f.width, f.height))
            if corners:
                edges = np.array(corners).T
                outlines = _round_corners(edges, 6.0 if edges[2:].min() > 24 else 2.0)
                colour = self.theme.faint_text
                self.polygons(outlines, "none", colour, width, linestyles=style)
        self.names(frames, x, y)

    def names(self, frames: tuple[Frame, ...], x: float, y: float) -> None:
        """Paints the names of frames on their upper edges, if they fit."""
        for f in frames:
            wide = text_width(f.label, NAME_SIZE)
            if not (f.named and wide + 12 < f.width):
                continue
            box = np.array([f.x + x + 5, f.y + y - 2, wide + 4, 4.0])[:, None]
            self.polygons(_round_corners(box, 0), [self.theme.paper], "none", 0)
            font = ("sans", NAME_SIZE, "normal")
            self.text(f.x + x + 7, f.y + y, f.label, font, self.theme.muted, "start")

    def edge(self, picture: Picture, ruler: Ruler, x: float, y: float) -> None:
        """Paints an array's edge: the ruler's text, and a bar in mesh axis colours."""
        tiles, theme = picture.tiles, self.theme
        left, top = float(tiles.x.min()) + x, float(tiles.y.min()) + y
        axes = [theme.groups[n % len(theme.groups)] for n, _, _ in ruler.axes]
        strips = edge_strips(ruler, theme)
        wide = BAR_WIDE / len(strips)
        for number, strip in enumerate(strips):
            step = ruler.length / len(strip)
            parts, lengths = np.arange(len(strip)) * step, np.full(len(strip), step)
            across = np.full(len(strip), number * wide - BAR_AWAY)
            bars = [left + parts, top + across, lengths, 0 * parts + wide]
            if ruler.down:
                bars = [left + across, top + parts, 0 * parts + wide, lengths]
            self.polygons(_round_corners(np.stack(bars), 0), strip / 255, "none", 0)
        space = ruler.length
        if not ruler.down:
            # Above a narrow array, text may extend to the right end of the page.
            space = max(space, picture.width + x - left - 10)
        parts = _edge_parts(ruler, axes, space)
        wide = sum(width for _, _, width in parts)
        along = max(0.0, (ruler.length - wide) / 2)
        for text, colour, width in parts:
            at = left + along, top - ruler.away
            if ruler.down:
                at = left - ruler.away, top + ruler.length - along
            font = ("sans", EDGE_SIZE, "normal")
            turned = 90.0 if ruler.down else 0.0
            self.text(*at, text, font, colour or theme.muted, "start", turned)
            along += width

    def swatch(self, picture: Picture, entry: LegendEntry, x: float, y: float) -> None:
        """Paints one entry of the legend."""
        square = np.array([[entry.x + x], [entry.y + y], [9.0], [9.0]])
        group = np.array([entry.group])
        fill = group_colours(picture, group, self.theme) / 255
        edge = group_colours(picture, group, self.theme, strong=True) / 255
        self.polygons(_round_corners(square, 2.0), fill, edge, 0.8)
        bands = band_colours(group, self.theme, picture.shades)
        self.bands(make_tiles(entry.x, [entry.y], 9.0, 9.0), bands, x, y)
        left, middle = x + entry.x + 14, y + entry.y + 4.5
        font = ("sans", 8.5, "normal")
        self.text(left, middle, entry.text, font, self.theme.muted, "start")

    def polygons(
        self, outlines: Any, faces: Any, edges: Any, width: float, **more: Any
    ) -> None:
        """Paints polygons as one collection; `width` is the line width, in points."""
        collection = PolyCollection(
            outlines,
            facecolors=faces,
            edgecolors=edges,
            linewidths=width,
            **{"zorder": 2, **more},
        )
        self.ax.add_collection(collection, autolim=False)

    def label(self, label: Label, x: float, y: float) -> None:
        """Paints one label, in the font of its role."""
        *font, tone = _ROLES[label.role]
        colour = getattr(self.theme, label.tone or tone)
        left, middle = x + label.x, y + label.y
        self.text(left, middle, label.text, tuple(font), colour, label.anchor)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        font: tuple[Any, ...],
        colour: Any,
        anchor: str,
        turned: float = 0.0,
    ) -> None:
        """Paints one line of text; `$` in names doesn't start mathtext.

        Args:
            font: the family, the size in points, and the weight.
            turned: counterclockwise rotation in degrees; rotated text starts at `y` and
                runs upward.
        """
        family, size, weight = font
        across = {"start": "left", "middle": "center", "end": "right"}[anchor]
        middle = "center"
        if turned:
            across, middle = "center", "bottom"
        self.ax.text(
            x,
            y,
            printable(text, family),
            family=_FAMILIES[family],
            size=size,
            weight=weight,
            color=colour,
            ha=across,
            va=middle,
            rotation=turned,
            parse_math=False,
            usetex=False,
            zorder=3,
        )


def _edge_parts(
    ruler: Ruler, colours: list[str], space: float
) -> list[tuple[str, str, float]]:
    """Returns the longest edge text that fits, as (text, colour, width) parts."""
    # Axis names before sizes: the first bounds show the sizes, too.
    for named in (True, False):
        # Text that ends with "over" must be followed by axis names.
        for words in ruler.words if named else ruler.words[1:]:
            parts = [(words, "", text_width(f"{words} ", EDGE_SIZE))]
            for (_, name, _), colour in zip(ruler.axes, colours, strict=True):
                parts.append(("●", colour, EDGE_SIZE * 1.2))
                if named:
                    parts.append((name, "", text_width(f"{name} ", EDGE_SIZE)))
            if sum(width for _, _, width in parts) <= space:
                return parts
    words = shortened(ruler.words[-1], space, EDGE_SIZE)
    return [(words, "", text_width(words, EDGE_SIZE))]


class _TileImage(Artist):
    """Paints tiles as pixels; imshow would need a second to copy floats."""

    def __init__(self, tiles: Tiles, fills: np.ndarray, x: float, y: float):
        super().__init__()
        self.tiles, self.fills, self.x, self.y = tiles, fills, x, y
        self.set_zorder(1)

    def draw(self, renderer: Any) -> None:
        """Writes all tiles to one image at the renderer's resolution."""
        tiles, axes = self.tiles, self.axes
        if axes is None:
            return
        (left, top), (right, low) = axes.transData.transform(
            [(self.x, self.y), (self.x + 1000.0, self.y + 1000.0)]
        )
        across, down = (right - left) / 1000.0, (top - low) / 1000.0  # pixels per point
        column = np.rint(tiles.x * across).astype(np.int64)
        row = np.rint(tiles.y * down).astype(np.int64)
        wide = max(1, int(tiles.width.max() * across))
        high = max(1, int(tiles.height.max() * down))
        dots = np.zeros((int(row.max()) + high, int(column.max()) + wide), np.uint32)
        fills = np.ascontiguousarray(self.fills).view(np.uint32).reshape(-1)
        for i in range(high):
            for j in range(wide):
                dots[row + i, column + j] = fills
        image = dots.view(np.uint8).reshape(*dots.shape, 4)
        context = renderer.new_gc()
        # The renderer draws an image's first row at the bottom.
        renderer.draw_image(context, round(left), round(top) - len(image), image[::-1])
        context.restore()


def band_width(width: float, bands: int) -> float:
    """Returns the width of a band, in points; bands cover at most half of a tile."""
    return min(width * BAND_SHARE, WIDEST_BAND, width / 2 / max(1, bands))


def edge_strips(ruler: Ruler, theme: Theme) -> list[np.ndarray]:
    """Returns the strips along an array's edge, one per mesh axis, major axis first.

    Returns:
        The colours of each strip from start to end: uint8 [steps, 4].
    """
    if not ruler.axes:
        return [np.array([[*rgb(theme.unsplit), 255]], np.uint8)]
    strips, steps = [], 1
    for axis, _, size in ruler.axes:
        steps *= size
        if ruler.length / steps < LEAST_STEP:
            full = rgb(theme.groups[axis % len(theme.groups)])
            strips.append(np.array([[*full, 255]], np.uint8))
        else:
            rows = shade_colours(np.arange(steps), Shade(axis, size, 1), theme)
            strips.append(np.insert(rows, 3, 255, axis=1).astype(np.uint8))
    return strips


def group_colours(
    picture: Picture, groups: np.ndarray, theme: Theme, strong: bool = False
) -> np.ndarray:
    """Returns the colour of each group of a picture: uint8 [groups, 4]."""
    arguments = picture.groups, picture.colormap, theme, strong
    return colours(groups, *arguments, picture.shades)


def edge_colours(picture: Picture, edges: Edges, theme: Theme) -> np.ndarray:
    """Returns the colour of every edge, its group's full colour: uint8 [edges, 4]."""
    table = group_colours(picture, np.maximum(edges.group, 0), theme, strong=True)
    for group, colour in ((NO_GROUP, theme.faint_text), (MANY_GROUPS, theme.muted)):
        table[edges.group == group, :3] = rgb(colour)
    table[edges.group == NO_GROUP, 3] = 140  # unused edges are less conspicuous
    return table


def _edge_colours(picture: Picture, theme: Theme) -> np.ndarray:
    """Mixes a tile's full and fill colours, so that pale tiles have visible edges."""
    group = picture.tiles.group
    strong = group_colours(picture, group, theme, strong=True).astype(float)
    return (strong + group_colours(picture, group, theme)) / 2


def rounded(tiles: Tiles, x: float = 0.0, y: float = 0.0) -> np.ndarray:
    """Returns the outlines of tiles: float64 [tiles, corners, 2]."""
    smallest = min(tiles.width.min(), tiles.height.min())
    # Adjacent small tiles show a seam if their border is between two pixels.
    overlap = 0.0
    if smallest < EDGED and not tiles.radius:
        overlap = 0.4
    edges = np.stack(
        [tiles.x + x, tiles.y + y, tiles.width + overlap, tiles.height + overlap]
    )
    return _round_corners(edges, tiles.radius if tiles.height.min() >= EDGED else 0.0)


def _round_corners(edges: np.ndarray, radius: float) -> np.ndarray:
    """Returns outlines of rectangles: float64 [rectangles, corners, 2].

    Args:
        edges: float64 [4, rectangles]: x, y, width and height.
    """
    x, y, width, height = np.asarray(edges, float)[..., None]
    across, down = np.array([1.0, 0, 0, 1]), np.array([1.0, 1, 0, 0])
    if radius <= 0:
        return np.stack([x + width * across, y + height * down], -1)
    bend = np.minimum(radius, np.minimum(width, height) / 2)
    angles = np.linspace(0, np.pi / 2, 5) + np.pi / 2 * np.arange(4)[:, None]
    right, low = np.repeat([1, 0, 0, 1], 5), np.repeat([1, 1, 0, 0], 5)
    middle_x = x + np.where(right, width - bend, bend)
    middle_y = y + np.where(low, height - bend, bend)
    return np.stack(
        [
            middle_x + bend * np.cos(angles.ravel()),
            middle_y + bend * np.sin(angles.ravel()),
        ],
        -1,
    )


@lru_cache(maxsize=4)
def _letters(family: str) -> frozenset[int]:
    font = get_font(findfont(FontProperties(family=_FAMILIES[family])))
    return frozenset(font.get_charmap())


def printable(text: str, family: str = "sans") -> str:
    """Replaces characters that the font lacks with □ to avoid matplotlib's warning.

    >>> printable("ctx 文")
    'ctx □'
    """
    # Most labels are ASCII, and loading the font's characters is slow.
    if text.isascii():
        return text
    glyphs = _letters(family)
    return "".join(c if ord(c) in glyphs else "□" for c in text)


# Two dots per point, which looks sharp on common screens.
DOTS_PER_INCH = 144.0
# Maximum width or height. Agg rejects 65,536, and browsers reject smaller sizes.
MOST_DOTS = 12_000
# Painting takes time per pixel, and notebooks scale large pictures down anyway.
MOST_PIXELS = 3_600_000
# PNGs with more pixels than this are compressed faster and less well.
LARGE = 1_000_000


class Figure(PlainFigure):
    """A matplotlib Figure that a notebook cell displays without pyplot.

    Attributes:
        words: the picture described in text, stored as the PNG's description.

    >>> from shardviz.base.mesh import make_mesh
    >>> from shardviz.pictures import draw
    >>> paint(draw(make_mesh(data=4, model=2)))._repr_png_()[:4]
    b'\\x89PNG'
    """

    words = ""

    def _repr_png_(self) -> bytes:
        return png_of(self, self.words)


def png_of(figure: PlainFigure, words: str) -> bytes:
    width, height = figure.get_size_inches()
    dpi = min(
        DOTS_PER_INCH,
        MOST_DOTS / max(width, height),
        math.sqrt(MOST_PIXELS / (width * height)),
    )
    buffer = io.BytesIO()
    figure.savefig(
        buffer,
        format="png",
        dpi=dpi,
        facecolor=figure.get_facecolor(),
        # Level 4 needs half the time of level 6, and level 2 a third less than level 4.
        # Small images can afford level 4.
        pil_kwargs={"compress_level": 2 if width * height * dpi**2 > LARGE else 4},
        metadata={"Description": words} if words else None,
    )
    return buffer.getvalue()
