"""The coordinates of a block can be read from its colours, by everyone: fill and bands."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from shardviz.base.layout import lay_out
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.draw.blocks import layout_shades
from shardviz.draw.palette import (
    THEMES,
    Shade,
    band_colours,
    colours,
    hexed,
    ladder_shares,
    rgb,
    shade_colours,
)
from shardviz.explorer.html_page import HERE
from shardviz.explorer.pictures import palettes
from shardviz.pictures import draw
from tests.picture.colour_difference import VISION, difference, lab
from tests.picture.javascript import run_script

# CIEDE2000: 2 can be noticed at all.
APART, FAR, FAR_TO_THE_COLOUR_BLIND = 10, 20, 9
SIZES = ((2,), (3,), (4,), (5,), (7,), (8,), (16,), (64,), (250,))
MESHES = ((4, 2), (3, 3), (4, 4), (8, 8), (2, 16), (2, 2, 2), (2, 4, 4), (2, 3, 3))
SPECS = ("a, b", "b, a", "(a, b)", "(b, a)", "a, b, c", "c, a, b", "(a, b), c")
MORE_SPECS = ("c, (b, a)", "(a, b, c)", "(c, b, a)", "c, None, a")


def _layouts():
    for sizes in MESHES:
        mesh = MeshSpec(("a", "b", "c")[: len(sizes)], sizes)
        for words in SPECS + MORE_SPECS:
            spec = Spec.parse(words)
            if set(spec.axes) <= set(mesh.axis_names):
                yield pytest.param(lay_out((576,) * 3, spec, mesh), id=f"{mesh} {words}")


def _signs(layout, theme):
    """The fill and the bands of every block: one list of colours for each."""
    groups, shades = np.arange(layout.num_blocks), layout_shades(layout)
    fills = colours(groups, layout.num_blocks, "blocks", theme, False, shades)
    return [hexed(fills), *map(hexed, band_colours(groups, theme, shades))]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("layout", list(_layouts()))
def test_devices_apart_along_one_axis_differ_in_the_colour_of_that_axis_alone(layout, theme):
    signs = [np.array(sign)[layout.groups] for sign in _signs(layout, theme)]
    by_axis = {shade.axis: sign for shade, sign in zip(layout_shades(layout), signs, strict=True)}
    assert set(by_axis) == {layout.mesh.positions[name] for name in layout.spec.axes}
    sizes = layout.mesh.axis_sizes
    for axis, sign in by_axis.items():
        rows = np.moveaxis(sign.reshape(sizes), axis, 0)
        for step in range(len(sizes)):
            changed = rows if step == axis else np.moveaxis(sign.reshape(sizes), step, 0)
            pairs = itertools.combinations(range(len(changed)), 2)
            for one, other in pairs:
                assert ((changed[one] != changed[other]) == (step == axis)).all()


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
@pytest.mark.parametrize("size", [size for (size,) in SIZES])
def test_everyone_can_tell_neighbours_along_an_axis_apart(size, theme, vision):
    for axis in range(-1, 8):
        ladder = hexed(shade_colours(np.arange(size), Shade(axis, size, 1), theme))
        # 256 colours of 8 bits along a ladder need not all differ.
        assert len(set(ladder)) >= min(size, 64)
        for one, other in set(itertools.pairwise(ladder)):
            seen = lab(rgb(one), vision), lab(rgb(other), vision)
            assert difference(*seen) >= APART, (axis, one, other)


def test_a_ladder_is_climbed_once_by_up_to_five_and_in_order_by_very_many():
    for size in (2, 3, 4, 5, 257, 1024):
        assert (np.diff(ladder_shares(size)) > 0).all()
    assert (ladder_shares(12) * 11).round().tolist() == [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
    for size in range(1, 300):
        shares = ladder_shares(size)
        assert len(set(shares)) == size
        assert 0 <= shares.min() <= shares.max() <= 1


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_no_colour_of_a_ladder_is_near_the_red_of_errors(theme, vision):
    far = FAR if vision == "normal" else FAR_TO_THE_COLOUR_BLIND
    for colour in itertools.chain(*theme.ladders):
        away = difference(lab(rgb(colour), vision), lab(rgb(theme.bad), vision))
        assert away >= far, colour


def test_blocks_have_the_hues_of_the_axes_that_split_and_no_other():
    mesh, theme = MeshSpec(("data", "model", "idle"), (4, 4, 2)), THEMES["light"]

    def rows(words):
        used = set(itertools.chain(*_signs(lay_out((16, 16), Spec.parse(words), mesh), theme)))
        return [number for number, row in enumerate(theme.ladders) if set(row) & used]

    assert rows("None, None") == [len(theme.ladders) - 1], "grey"
    assert rows("data, None") == [0]
    assert rows("None, model") == [1]
    assert rows("model, data") == rows("data, model") == [0, 1]


def test_the_devices_have_the_colours_of_the_blocks_that_they_hold():
    layout = lay_out((16, 16), Spec.parse("data, model"), MeshSpec(("data", "model"), (4, 2)))
    devices, array = draw(layout, view="devices"), draw(layout, view="array")
    assert devices.shades == array.shades == (Shade(0, 4, 2), Shade(1, 2, 1))
    assert devices.groups == array.groups
    assert devices.tiles.group.tolist() == layout.groups.tolist()


@pytest.mark.parametrize("theme", THEMES)
def test_very_many_blocks_along_an_axis_are_a_smooth_ramp(theme):
    ladder = shade_colours(np.arange(1024), Shade(1, 1024, 1), THEMES[theme])
    light = [lab(tuple(map(int, row)))[0] for row in ladder]
    assert (np.diff(light) * (1 if theme == "dark" else -1) > -0.3).all()
    assert hexed(ladder[[0, -1]]) == [THEMES[theme].ladders[1][0], THEMES[theme].ladders[1][-1]]


_SCRIPT = """
import { tileColours } from %s;
import { readFileSync } from "node:fs";
const { cases, theme } = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(cases.map(([count, shades]) => {
  const { fill, bands } = tileColours(count, theme, shades);
  return [fill, ...bands].map((colour) => [...Array(count).keys()].map(colour));
})));
"""


@pytest.mark.parametrize("theme", THEMES)
def test_the_page_has_the_same_colours(theme):
    cases = [(1, ()), (11, (Shade(4, 11, 1),)), (5, (Shade(-1, 5, 1),)), (3, (Shade(9, 3, 1),))]
    cases += [(300, (Shade(2, 300, 1),)), (4096, (Shade(1, 64, 64), Shade(0, 64, 1)))]
    cases += [(24, (Shade(0, 2, 12), Shade(3, 3, 4), Shade(1, 4, 1)))]
    script = _SCRIPT % json.dumps((HERE / "colours.js").as_uri())
    message = {"cases": cases, "theme": {**palettes()[theme], "name": theme}}
    for (count, by), page in zip(cases, run_script(script, message), strict=True):
        groups = np.arange(count)
        fills = hexed(colours(groups, count, "blocks", theme, False, by))
        assert page == [fills, *map(hexed, band_colours(groups, theme, by))]
