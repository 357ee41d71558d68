"""The page's files: colours come from the palette alone, text can be read."""

from __future__ import annotations

import re

import pytest

from shardviz.draw.palette import THEMES, contrast, rgb, theme_data
from shardviz.explorer import html_page

READABLE = 4.5  # WCAG 2, level AA, for text of any size
COLOUR = re.compile(r"#[0-9a-fA-F]{3,8}\b|\b(?:rgb|hsl)a?\(\s*\d")
FILES = sorted(p for p in html_page.HERE.iterdir() if p.suffix in (".js", ".css", ".ts"))
TEXTS = ("text", "muted", "accent", "good", "warn", "bad")
GROUNDS = ("paper", "panel", "soft", "accent_soft")


def colours_in(source: str) -> list[str]:
    return COLOUR.findall(source)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_no_file_of_the_page_has_a_colour_of_its_own(path):
    source = path.read_text(encoding="utf-8")
    assert colours_in(source) == []


@pytest.mark.parametrize("theme", THEMES)
def test_every_text_colour_can_be_read_on_every_background(theme):
    named = theme_data(theme)
    for text in TEXTS:
        for ground in GROUNDS:
            found = float(contrast(rgb(named[text]), rgb(named[ground])))
            assert found >= READABLE, f"{text} on {ground}: {found:.2f}"
    assert float(contrast(rgb(named["on_accent"]), rgb(named["accent"]))) >= READABLE
    assert float(contrast(rgb(named["paper"]), rgb(named["bad"]))) >= READABLE


def test_no_text_is_made_pale():
    """Whatever is old or cannot be used has the colour of muted text, which can be read."""
    pale = {
        rule.strip()
        for rule, value in re.findall(
            r"([^{};]+)\{[^{}]*opacity: (0\.\d+)", html_page.bundled_styles()
        )
    }
    assert pale <= {"&.sv-stale"}, "an old picture"


def test_every_custom_property_that_is_used_is_defined():
    styles = html_page.bundled_styles()
    defined = set(re.findall(r"(--sv-[a-z0-9-]+):", styles))
    script = html_page.bundled_module()
    defined |= set(re.findall(r'"(--sv-[a-z0-9-]+)"', script))  # set by the page
    assert set(re.findall(r"var\((--sv-[a-z0-9-]+)", styles + script)) <= defined


def test_every_style_sheet_is_in_the_page():
    styles = html_page.bundled_styles()
    for path in html_page.HERE.glob("*.css"):
        assert path.read_text(encoding="utf-8") in styles, path.name
