from __future__ import annotations

import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection

from shardviz.base.collective import Collective
from shardviz.base.layout import lay_out
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.draw.paint import paint, printable
from shardviz.draw.palette import THEMES, colours, contrast
from shardviz.draw.picture import Picture
from shardviz.pictures import draw
from tests.picture.values import VALUES

MESH = make_mesh(data=4, model=2, processes=2)


def _tiles(axes) -> PolyCollection:
    """The collection of the tiles: painted first, below everything else."""
    return next(c for c in axes.collections if c.get_zorder() == 1)


def _texts(axes) -> list[str]:
    return [t.get_text() for t in axes.texts]


def _panels(picture: Picture) -> list[Picture]:
    return [picture, *(q for _, _, p in picture.panels for q in _panels(p))]


@pytest.mark.parametrize("theme", THEMES)
def test_every_tile_is_painted_where_it_stands_in_its_colour(theme):
    picture = draw(MESH)
    axes = paint(picture, theme=theme).axes[0]
    painted = _tiles(axes)
    boxes = [p.get_extents() for p in painted.get_paths()]
    assert len(boxes) == len(picture.tiles)
    for box, x, y in zip(boxes, picture.tiles.x, picture.tiles.y, strict=True):
        assert (box.x0, box.y0) == (pytest.approx(x), pytest.approx(y))
        assert (box.width, box.height) == (pytest.approx(80), pytest.approx(38))
    look = picture.groups, picture.colormap, theme, False, picture.shades
    wanted = colours(picture.tiles.group, *look) / 255
    assert np.allclose(painted.get_facecolor(), wanted)


@pytest.mark.parametrize("theme", THEMES)
def test_every_label_is_painted_and_can_be_read(theme):
    figure = paint(draw(MESH), theme=theme)
    texts = _texts(figure.axes[0])
    assert {*map(str, range(8)), "host 0", "data 3", "model 1", "mesh data=4, model=2"} <= {*texts}
    paper = np.array(figure.get_facecolor()[:3]) * 255
    for text in figure.axes[0].texts:
        if text.get_text().startswith(("data", "model", "mesh")):
            ink = np.array(matplotlib.colors.to_rgb(text.get_color())) * 255
            assert contrast(ink, paper) >= 4.5


@pytest.mark.parametrize("name", VALUES)
def test_every_value_is_painted_completely(name):
    picture = draw(VALUES[name])
    figure = paint(picture, theme="dark")
    figure.canvas.draw()  # warnings, such as of letters that a font lacks, are errors here
    axes = figure.axes[0]
    parts = [p for p in _panels(picture) if len(p.tiles)]
    painted = [len(c.get_paths()) for c in axes.collections if c.get_zorder() == 1]
    assert painted == [len(p.tiles) for p in parts]
    labels = [printable(v.text) for p in _panels(picture) for v in p.labels]
    assert set(labels) <= set(_texts(axes))


def test_names_are_never_read_as_mathematics_and_missing_letters_are_boxes():
    texts = _texts(paint(draw(VALUES["mesh of names"])).axes[0])
    assert any("$x^{2}$ 0" in t for t in texts)
    assert "□ 1" in texts
    assert printable("✓ – → · …") == "✓ – → · …"


@pytest.mark.parametrize("devices", [1 << 15, 1 << 24])
def test_tiles_beyond_counting_are_an_image(devices):
    picture = draw(lay_out((devices, 2), Spec.parse("a"), make_mesh(a=devices)))
    figure = paint(picture)
    axes = figure.axes[0]
    assert not [c for c in axes.collections if c.get_zorder() == 1]
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())
    tiles, scale = picture.tiles, figure.dpi / 72
    fills = colours(tiles.group, picture.groups, shades=picture.shades)
    for tile in (0, 1, len(tiles) // 2, len(tiles) - 1):
        x = int((tiles.x[tile] + tiles.width[tile] / 2) * scale)
        y = int((tiles.y[tile] + tiles.height[tile] / 2) * scale)
        assert np.abs(pixels[y, x].astype(int) - fills[tile]).max() <= 3, tile
    assert axes.get_xlim() == (0, picture.width)
    assert axes.get_ylim() == (picture.height, 0)


def test_painting_leaves_no_trace_in_matplotlib():
    code = """
import sys, matplotlib
before = dict(matplotlib.rcParams)
from shardviz.base.mesh import make_mesh
from shardviz.figures import png
from shardviz.figures import figure
figure(make_mesh(data=4, model=2)); png(make_mesh(data=4))
assert "matplotlib.pyplot" not in sys.modules, "pyplot was imported"
assert dict(matplotlib.rcParams) == before, "rcParams changed"
assert "jax" not in sys.modules, "jax was imported"
print("clean")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "clean", done.stderr


@pytest.mark.parametrize("theme", THEMES)
def test_every_edge_is_painted_below_the_tiles_in_the_colour_of_its_group(theme):
    mesh, gather = make_mesh(data=4, model=4), Collective("all-gather", ("model",), 1 << 20)
    picture = draw(mesh, by="position", topology="tpu:v5e:4x4", collective=gather)
    edges = picture.edges
    axes = paint(picture, theme=theme).axes[0]
    painted = next(c for c in axes.collections if isinstance(c, LineCollection))
    ends = np.array([[edges.x0, edges.y0], [edges.x1, edges.y1]]).transpose(2, 0, 1)
    assert np.allclose(painted.get_segments(), ends)
    assert np.allclose(painted.get_linewidth(), edges.width)
    assert painted.get_zorder() < _tiles(axes).get_zorder()
    used = edges.group >= 0
    look = picture.groups, picture.colormap, theme, True, picture.shades
    wanted = colours(edges.group[used], *look) / 255
    assert np.allclose(painted.get_color()[used], wanted)
    idle = painted.get_color()[~used]
    assert len(np.unique(idle, axis=0)) == 1
    assert (idle[:, 3] < 1).all(), "what is idle stands back"
