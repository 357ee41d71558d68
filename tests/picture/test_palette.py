from __future__ import annotations

import itertools

import numpy as np
import pytest

from shardviz.core.errors import ShardvizError
from shardviz.picture.palette import (
    GROUP_COLOURS,
    SCHEMES,
    STRENGTHS,
    THEMES,
    colours,
    contrast,
    hexed,
    luminance,
    palette,
    rgb,
    text_colours,
    theme_data,
    theme_of,
)
from tests.picture.colour_difference import VISION, difference, lab

READABLE = 4.5  # WCAG 2, level AA, for text of any size
# CIEDE2000 from the red of errors: a difference of 2 can be noticed at all.
FAR, FAR_TO_THE_COLOUR_BLIND = 25, 7
COUNTS = (1, 2, 10, 11, 64, 256, 65536)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(
    ("count", "colormap", "strength"), list(itertools.product(COUNTS, SCHEMES, STRENGTHS))
)
def test_text_on_every_tile_can_be_read(theme, count, colormap, strength):
    fills = palette(count, colormap, theme_of(theme), strength)
    assert contrast(fills, text_colours(fills, theme)).min() >= READABLE


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
@pytest.mark.parametrize("name", ["text", "muted", "good", "warn", "bad"])
def test_text_on_paper_and_panel_can_be_read(theme, name):
    for ground in (theme.paper, theme.panel):
        assert contrast(rgb(getattr(theme, name)), rgb(ground)) >= READABLE


def test_ink_can_be_found_for_any_colour_at_all():
    steps = np.arange(0, 256, 17)
    cube = np.array(list(itertools.product(steps, steps, steps)))
    for theme in THEMES:
        assert contrast(cube, text_colours(cube, theme)).min() >= READABLE


def test_contrast_is_that_of_wcag():
    assert float(contrast((119, 119, 119), (255, 255, 255))) == pytest.approx(4.478, abs=0.001)
    assert float(contrast((0, 0, 255), (255, 255, 255))) == pytest.approx(8.592, abs=0.001)


@pytest.mark.parametrize("theme", THEMES)
def test_ten_groups_are_ten_colours(theme):
    for strength in STRENGTHS:
        assert len({tuple(c) for c in colours(range(10), 10, "blocks", theme, strength)}) == 10
    assert tuple(hexed(colours(range(10), 10, "blocks", theme, "strong"))) == GROUP_COLOURS


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("count", [11, 200, 256, 5000])
def test_more_groups_are_a_ramp_that_keeps_their_order(theme, count):
    # Neighbours of 256 may differ by a rounding; every eleventh of the way is a clear step.
    some = np.linspace(0, count - 1, 11).astype(int)
    light = luminance(colours(some, count, "blocks", theme))
    ordered = light if theme == "dark" else -light
    assert (np.diff(ordered) > 0.005).all()


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_no_axis_and_no_block_is_near_the_red_of_errors(theme, vision):
    ramp = hexed(palette(5000, "blocks", theme, "strong")[::16])
    far = FAR if vision == "normal" else FAR_TO_THE_COLOUR_BLIND
    assert theme.verdicts[2] == theme.bad
    for colour in (*theme.groups, *ramp):
        away = difference(lab(rgb(colour), vision), lab(rgb(theme.bad), vision))
        assert away >= far, colour


@pytest.mark.parametrize("vision", VISION)
def test_every_two_of_ten_groups_can_be_distinguished(vision):
    seen = [lab(rgb(colour), vision) for colour in GROUP_COLOURS]
    assert min(difference(*pair) for pair in itertools.combinations(seen, 2)) > 10


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 0, 0), (50, -1, 2), 2.3669),
        ((50, 2.5, 0), (50, 0, -2.5), 4.3065),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((90.8027, -2.0831, 1.4410), (91.1528, -1.6435, 0.0447), 1.4441),
    ],
)
def test_differences_are_those_of_the_published_examples(one, other, expected):
    assert difference(np.array(one), np.array(other)) == pytest.approx(expected, abs=1e-4)


def test_colours_are_those_of_their_groups():
    found = colours([3, 0, 3], 4)
    assert found.dtype == np.uint8
    assert found.shape == (3, 4)
    assert (found[0] == found[2]).all()
    assert (found[0] != found[1]).any()
    assert (found[:, 3] == 255).all()


def test_a_faint_tile_is_nearer_the_paper_than_one_at_rest_than_a_strong_one():
    for name, theme in THEMES.items():
        away = [
            float(contrast(colours([0], 2, "blocks", name, s)[0], rgb(theme.paper)))
            for s in ("faint", "rest", "strong")
        ]
        assert away == sorted(away)


@pytest.mark.parametrize(
    "call",
    [
        lambda: theme_of("sepia"),
        lambda: colours([0], 1, "rainbow"),
        lambda: colours([0], 1, strength="bold"),
    ],
    ids=["theme", "colormap", "strength"],
)
def test_what_is_no_colour_is_refused(call):
    with pytest.raises(ShardvizError):
        call()


def test_a_page_gets_every_named_colour():
    for name in THEMES:
        assert all(c.startswith("#") and len(c) == 7 for c in theme_data(name).values())
