"""The blocks of an array: in tints of the mesh axes that split it, and told apart by everyone."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from shardviz.base.layout import lay_out
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.draw.blocks import layout_shades
from shardviz.draw.palette import THEMES, Shade, hexed, ladder, palette, rgb, shades
from shardviz.explorer.html_page import HERE
from shardviz.explorer.pictures import palettes
from shardviz.pictures import draw
from tests.picture.colour_difference import VISION, difference, lab
from tests.picture.javascript import run_script

# CIEDE2000: 2 can be noticed at all.
APART, FAR, FAR_TO_THE_COLOUR_BLIND = 10, 20, 9
SIZES = ((2,), (4,), (16,), (4, 2), (3, 3), (4, 4), (8, 8), (2, 2, 2), (2, 4, 4), (2, 3, 3))
SPECS = ("a", "b", "a, b", "b, a", "(a, b)", "(b, a)", "a, b, c", "c, a, b", "(a, b), c")
MORE_SPECS = ("c, (b, a)", "(a, b, c)", "(c, b, a)", "c, None, a")


def _layouts():
    for sizes in SIZES:
        mesh = MeshSpec(("a", "b", "c")[: len(sizes)], sizes)
        for words in SPECS + MORE_SPECS:
            spec = Spec.parse(words)
            if set(spec.axes) <= set(mesh.axis_names):
                yield pytest.param(lay_out((576,) * 3, spec, mesh), id=f"{mesh} {words}")


def _seen(layout, theme, vision):
    look = max(layout.num_blocks, 1), "blocks", THEMES[theme], False, layout_shades(layout)
    table = palette(*look)
    found = [lab(tuple(map(int, row[:3])), vision) for row in table]
    return np.array(found).reshape(*layout.block_counts, 3)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("layout", list(_layouts()))
def test_everyone_can_tell_a_block_from_its_neighbours(layout, theme):
    for vision in VISION:
        seen = _seen(layout, theme, vision)
        for dim in range(3):
            rows = np.moveaxis(seen, dim, 0)
            pairs = zip(rows[:-1].reshape(-1, 3), rows[1:].reshape(-1, 3), strict=True)
            for one, other in {(tuple(a), tuple(b)) for a, b in pairs}:
                assert difference(np.array(one), np.array(other)) >= APART, (vision, dim)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("sizes", [(4, 2), (4, 4), (2, 2, 2)])
def test_and_a_device_from_the_next_one_that_holds_another_block(theme, sizes):
    names = ("a", "b", "c")[: len(sizes)]
    for order in itertools.permutations(names):
        for spec in (Spec(order), Spec((order,))):
            layout = lay_out((576,) * 3, spec, MeshSpec(names, sizes))
            for vision in VISION:
                seen = _seen(layout, theme, vision).reshape(-1, 3)[layout.groups]
                seen = seen.reshape(*sizes, 3)
                for axis in range(len(sizes)):
                    rows = np.moveaxis(seen, axis, 0)
                    for one, other in zip(
                        rows[:-1].reshape(-1, 3), rows[1:].reshape(-1, 3), strict=True
                    ):
                        assert difference(one, other) >= APART, (spec, vision, axis)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_no_tint_is_near_the_red_of_errors(theme, vision):
    far = FAR if vision == "normal" else FAR_TO_THE_COLOUR_BLIND
    for colour in itertools.chain(*(ladder(row) for row in theme.tints)):
        away = difference(lab(rgb(colour), vision), lab(rgb(theme.bad), vision))
        assert away >= far, colour


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("words", ["a", "None, b", "(a, b)", "a, b", "b, a"])
def test_up_to_eight_blocks_all_differ(words, theme):
    for sizes in ((8, 1), (1, 8), (4, 2), (2, 4), (2, 2)):
        mesh = MeshSpec(("a", "b"), sizes)
        layout = lay_out((64, 64), Spec.parse(words), mesh)
        look = layout.num_blocks, "blocks", THEMES[theme], False, layout_shades(layout)
        assert len(set(hexed(palette(*look)))) == layout.num_blocks, (words, sizes)


def test_blocks_have_the_hues_of_the_axes_that_split_and_no_other():
    mesh, theme = MeshSpec(("data", "model", "idle"), (4, 2, 2)), THEMES["light"]

    def rows(words):
        picture = draw(lay_out((16, 16), Spec.parse(words), mesh))
        table = hexed(palette(picture.groups, "blocks", theme, False, picture.shades))
        return {number for number, row in enumerate(theme.tints) if set(row) & set(table)}

    assert rows("None, None") == {len(theme.tints) - 1}, "grey"
    assert rows("data, None") == {0}
    assert rows("None, model") == {1}
    assert rows("model, data") == rows("data, model") == {0, 1}


def test_the_devices_have_the_colours_of_the_blocks_that_they_hold():
    layout = lay_out((16, 16), Spec.parse("data, model"), MeshSpec(("data", "model"), (4, 2)))
    devices, array = draw(layout, view="devices"), draw(layout, view="array")
    assert devices.shades == array.shades == (Shade(0, 4, 2, 1), Shade(1, 2, 1, 2))
    assert devices.groups == array.groups
    assert devices.tiles.group.tolist() == layout.groups.tolist()


@pytest.mark.parametrize("theme", THEMES)
def test_very_many_blocks_are_a_ramp_of_the_first_axis(theme):
    layout = lay_out((1024, 16), Spec.parse("b, a"), MeshSpec(("a", "b"), (16, 1024)))
    table = palette(layout.num_blocks, "blocks", THEMES[theme], False, layout_shades(layout))
    light = [lab(tuple(map(int, row[:3])))[0] for row in table]
    assert (np.diff(light) * (1 if theme == "dark" else -1) > -0.3).all()
    assert hexed(table[[0, -1]]) == [THEMES[theme].tints[1][0], THEMES[theme].tints[1][-1]]


_SCRIPT = """
import { tileColours } from %s;
import { readFileSync } from "node:fs";
const { cases, theme } = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(cases.map(([count, shades]) => {
  const { fill } = tileColours(count, theme, shades);
  return [...Array(count).keys()].map(fill);
})));
"""


@pytest.mark.parametrize("theme", THEMES)
def test_the_page_has_the_same_colours(theme):
    cases = [
        (1, ()),
        (11, shades([(4, 11, 1)])),
        (5, shades([(-1, 5, 1)])),
        (3, shades([(9, 3, 1)])),
    ]
    cases += [(300, shades([(2, 300, 1)])), (4096, shades([(1, 64, 64), (0, 64, 1)]))]
    cases += [(24, shades([(0, 2, 12), (3, 3, 4), (1, 4, 1)]))]
    script = _SCRIPT % json.dumps((HERE / "colours.js").as_uri())
    message = {"cases": cases, "theme": {**palettes()[theme], "name": theme}}
    for (count, by), found in zip(cases, run_script(script, message), strict=True):
        table = palette(count, "blocks", THEMES[theme], False, by).astype(int)
        place = np.arange(count) * (len(table) - 1) // max(1, count - 1)
        there = np.array([rgb(colour) for colour in found])
        # A colour of the ramp may be rounded to the other side.
        assert np.abs(there - table[place][:, :3]).max() <= (count > 256), by
