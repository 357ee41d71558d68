"""The sentence under the pictures is never cut, and tiles move to where a layout puts them."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from shardviz.gallery import programs
from tests.browser.test_contract import Kernel
from tests.browser.views import explorer, opened

CUT = """
() => {
  const said = document.querySelector(".sv-layout .sv-sentence") ??
    document.querySelector(".sv-sentence");
  const edge = said.getBoundingClientRect();
  const cut = [...said.querySelectorAll("*")].filter((e) => {
    const box = e.getBoundingClientRect();
    return box.bottom > edge.bottom + 1 || box.right > edge.right + 1;
  });
  return { cut: cut.length, scrolls: said.scrollHeight > said.clientHeight,
    high: edge.height, low: edge.bottom - innerHeight, text: said.textContent };
}
"""


NAMES = programs.names()


@pytest.mark.parametrize(
    "name", [*NAMES[:4], *(pytest.param(name, marks=pytest.mark.long) for name in NAMES[4:])]
)
def test_the_sentence_is_never_cut(page: Page, tmp_path, name):
    page.set_viewport_size({"width": 848, "height": 620})
    opened(page, explorer(name), tmp_path)
    cards = page.locator(".sv-cardhead")
    for number in range(min(3, cards.count())):
        cards.nth(number).click()
        devices = page.get_by_label("Devices", exact=True)
        devices.focus()
        for keys in (["Escape"], ["End"]):
            for key in keys:
                page.keyboard.press(key)
            found = page.evaluate(CUT)
            assert found["high"] > 40, found
            assert (found["cut"], found["scrolls"]) == (0, False), found
            assert found["low"] <= 0, found
        page.keyboard.press("Escape")


FRAMES = """
() => {
  const canvas = document.querySelector('[aria-label="Devices"] canvas');
  window.frames_ = [];
  const look = () => {
    window.frames_.push(canvas.toDataURL());
    if (window.frames_.length < 60) requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}
"""
LAST = "() => document.querySelector('[aria-label=\"Devices\"] canvas').toDataURL()"


def frames_of_an_edit(page: Page, motion: str) -> tuple[list[str], str]:
    """What is painted in each frame after an edit, and what would be painted without one."""
    page.emulate_media(reduced_motion=motion)  # type: ignore[arg-type]
    kernel = Kernel(page)
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    page.wait_for_timeout(400)
    kernel.made.session.edit("mesh", "data=2, model=4")
    kernel.made._refresh()
    page.evaluate(FRAMES)
    kernel.push()
    page.wait_for_function("() => window.frames_.length === 60")
    seen = page.evaluate("() => window.frames_")
    page.evaluate("() => window.end()")
    kernel.made.close()
    page.emulate_media(reduced_motion="reduce")
    kernel = Kernel(page, made=explorer(mesh="data=2, model=4"))
    page.wait_for_timeout(400)
    alone = page.evaluate(LAST)
    page.evaluate("() => window.end()")
    kernel.made.close()
    page.emulate_media(reduced_motion="no-preference")
    return seen, alone


def test_tiles_move_and_end_where_they_belong(page: Page):
    seen, alone = frames_of_an_edit(page, "no-preference")
    assert len(set(seen)) > 4, "frames between before and after"
    assert seen[-1] == alone, "the last is the picture of the new layout"


def test_nothing_moves_where_motion_is_reduced(page: Page):
    seen, alone = frames_of_an_edit(page, "reduce")
    assert len(set(seen)) <= 2, "what was there before, and what is there now"
    assert seen[-1] == alone
