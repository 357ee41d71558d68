from __future__ import annotations

import itertools

import numpy as np
import pytest

from shardviz.draw.palette import (
    GROUP_COLOURS,
    THEMES,
    colours,
    contrast,
    hexed,
    luminance,
    palette,
    rgb,
    text_colours,
    theme_of,
)
from tests.picture.colour_difference import VISION, difference, lab

SCHEMES = ("blocks", "ramp", "verdicts", "bars")
READABLE = 4.5  # WCAG 2, level AA, for text of any size
# CIEDE2000 from the red of errors: a difference of 2 can be noticed at all.
FAR, FAR_TO_THE_COLOUR_BLIND = 25, 7
COUNTS = (1, 10, 11, 65536)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(
    ("count", "colormap", "strong"), list(itertools.product(COUNTS, SCHEMES, (False, True)))
)
def test_text_on_every_tile_can_be_read(theme, count, colormap, strong):
    fills = palette(count, colormap, theme_of(theme), strong)
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


@pytest.mark.parametrize("theme", THEMES)
def test_ten_groups_are_ten_colours(theme):
    for strong in (False, True):
        assert len({tuple(c) for c in colours(range(10), 10, "blocks", theme, strong)}) == 10
    assert tuple(hexed(colours(range(10), 10, "blocks", theme, strong=True))) == GROUP_COLOURS


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
    ramp = hexed(palette(5000, "blocks", theme, strong=True)[::16])
    far = FAR if vision == "normal" else FAR_TO_THE_COLOUR_BLIND
    assert theme.verdicts[2] == theme.bad
    for colour in (*theme.groups, *ramp):
        away = difference(lab(rgb(colour), vision), lab(rgb(theme.bad), vision))
        assert away >= far, colour


@pytest.mark.parametrize("vision", VISION)
def test_every_two_of_ten_groups_can_be_distinguished(vision):
    seen = [lab(rgb(colour), vision) for colour in GROUP_COLOURS]
    assert min(difference(*pair) for pair in itertools.combinations(seen, 2)) > 10


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_what_loses_something_does_not_look_like_a_failure(theme):
    assert difference(lab(rgb(theme.warn)), lab(rgb(theme.bad))) >= 20
