"""The Explorer on the whole screen, back again, and where a frame may have no full screen."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.test_explorer import OPEN
from tests.browser.test_page import explorer, opened

# How far the Explorer is from the edges of the window, and what is painted at its lower edge.
EDGES = """
() => {
  const root = document.querySelector(".shardviz-explorer");
  const { left, top, right, bottom } = root.getBoundingClientRect();
  const lowest = document.elementFromPoint(innerWidth / 2, innerHeight - 3);
  return [left, top, right - innerWidth, bottom - innerHeight, root.contains(lowest)];
}
"""
FILLED = [0, 0, 0, 0, True]


def goes_and_comes_back(page: Page, leave: str) -> None:
    before = page.evaluate(EDGES)
    page.get_by_role("button", name="Full screen").click()
    back = page.get_by_role("button", name="Back into the page")
    expect(back).to_be_visible()
    page.wait_for_function(f"() => JSON.stringify(({EDGES})()) === '{str_of(FILLED)}'")
    if leave == "button":
        back.click()
    else:
        page.keyboard.press(leave)
    expect(page.get_by_role("button", name="Full screen")).to_be_visible()
    page.wait_for_function(f"() => JSON.stringify(({EDGES})()) === '{str_of(before)}'")


def str_of(edges: list) -> str:
    """As JavaScript writes it."""
    return str(edges).replace(" ", "").replace("True", "true").replace("False", "false")


def test_it_fills_the_screen_of_a_page(page: Page, tmp_path):
    opened(page, explorer(), tmp_path)
    goes_and_comes_back(page, "button")


def test_in_jupyterlab_nothing_is_cut_off(lab):
    page = lab.open([OPEN], shared=True, width=1280, height=800)
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    goes_and_comes_back(page, "button")
