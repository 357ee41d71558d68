from __future__ import annotations

import io

import matplotlib.style
import numpy as np
import pytest
from PIL import Image

from shardviz.axis_rules.rules import Rules
from shardviz.base.errors import ShardvizError
from shardviz.base.mesh import make_mesh
from shardviz.draw.paint import MOST_DOTS
from shardviz.draw.palette import rgb, theme_of
from shardviz.figures import figure, png
from shardviz.pictures import draw
from tests.picture.values import VALUES

MESH = make_mesh(data=4, model=2)


@pytest.mark.parametrize(
    ("style", "expected"),
    [("default", "light"), ("dark_background", "dark"), ("Solarize_Light2", "light")],
)
def test_pictures_follow_the_style_of_matplotlib(style, expected):
    with matplotlib.style.context(style):
        image = Image.open(io.BytesIO(png(MESH)))
    assert image.convert("RGB").getpixel((0, 0)) == rgb(theme_of(expected).paper)


@pytest.mark.parametrize(("name", "theme"), [(n, "dark" if i % 4 else "light")
                                             for i, n in enumerate(VALUES)])  # fmt: skip
def test_every_value_is_a_png_with_its_words_inside(name, theme):
    picture = draw(VALUES[name])
    image = Image.open(io.BytesIO(png(picture, theme)))
    assert image.info["Description"] == picture.alt
    assert image.size == (pytest.approx(picture.width * 2, abs=2),
                          pytest.approx(picture.height * 2, abs=2))  # fmt: skip
    corner = np.asarray(image.convert("RGB"))[0, 0].tolist()
    assert tuple(corner) == rgb(theme_of(theme).paper)


def test_a_figure_shows_itself_without_pyplot():
    shown = figure(MESH)._repr_png_()
    image = Image.open(io.BytesIO(shown))
    assert image.format == "PNG"
    assert image.info["Description"] == draw(MESH).alt


def test_a_very_long_picture_stays_a_picture():
    image = Image.open(io.BytesIO(png(Rules.of([(f"n{i}", "x") for i in range(900)]))))
    assert max(image.size) <= MOST_DOTS + 1


@pytest.mark.parametrize(
    "call",
    [lambda: figure(3), lambda: png(MESH, theme="sepia")],
    ids=["value", "theme"],
)
def test_what_cannot_be_plotted_is_refused(call):
    with pytest.raises(ShardvizError):
        call()
