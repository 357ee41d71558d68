"""The Explorer in an output of JupyterLab, whose style sheets know nothing of it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab import DARK, LIGHT, OPEN, set_theme
from tests.browser.views import SETTLED, open_tab, show_view, type_into

pytestmark = pytest.mark.browser
NARROW, WIDE, HEIGHT = 848, 1500, 1000
VIEWS = ("Layout", "Rules", "Model", "Program")

# JupyterLab's rules for elements inside of an output that meet an element of the widget.
RESTYLED = """() => {
  const found = new Set();
  const elements = [...document.querySelectorAll(".shardviz-explorer *")];
  const visit = (rules) => {
    for (const rule of rules) {
      if (rule.cssRules?.length) visit(rule.cssRules);
      const selectors = (rule.selectorText ?? "").split(",").map((text) => text.trim());
      for (const selector of selectors) {
        // Its last part names an element and no class: the widget never asked for it.
        if (!/\\.jp-(OutputArea|RenderedHTML)\\S*.*\\s[a-z0-9]+$/.test(selector)) continue;
        const met = elements.find((element) => element.matches(selector));
        if (met) found.add(`${met.tagName.toLowerCase()}.${met.className}: ${selector}`);
      }
    }
  };
  for (const sheet of document.styleSheets) visit(sheet.cssRules);
  return [...found];
}"""
# The numbers of the strip: the box of each, and whether its text is cut or laid over another.
NUMBERS = """() => [...document.querySelectorAll(".sv-comparednumbers > *")].map((node) => {
  const { x, y, width, height } = node.getBoundingClientRect();
  const cut = [...node.children].some((part) => part.scrollWidth > part.clientWidth + 1);
  return { x, y, width, height, cut };
})"""


def compared(page: Page) -> None:
    """Pins the state, edits the mesh, and waits for the numbers."""
    page.wait_for_selector(SETTLED)
    page.get_by_role("button", name="Compare").click()
    strip = page.get_by_role("region", name="A and now")
    expect(strip).to_be_visible()
    type_into(page, "Mesh axes", "data=2, model=4")
    expect(strip.locator(".sv-good, .sv-warn").first).to_contain_text("▾")


def test_compare_is_legible_and_nothing_is_restyled(lab):
    page = lab.open([OPEN], theme=LIGHT, shared=True, width=NARROW, height=HEIGHT)
    compared(page)
    assert_legible(page)
    set_theme(page, DARK)
    page.set_viewport_size({"width": WIDE, "height": HEIGHT})
    assert_legible(page)


def assert_legible(page: Page) -> None:
    """Checks every view, and leaves the Code tab open."""
    for view in VIEWS:
        show_view(page, view)
        if view == "Program":
            open_tab(page, "Code")
            expect(page.locator(".sv-code").first).to_be_visible()
        assert page.evaluate(RESTYLED) == []
        numbers = page.evaluate(NUMBERS)
        assert len(numbers) >= 3
        for at, number in enumerate(numbers):
            assert not number["cut"]
            # A name and a number, one under the other.
            assert 20 < number["height"] < 60
            for other in numbers[:at]:
                apart = other["x"] + other["width"] <= number["x"] + 1
                assert apart or other["y"] + other["height"] <= number["y"] + 1
