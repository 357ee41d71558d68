"""Narrow pages, as a notebook's output at 848 pixels and a telephone; errors and double clicks."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.test_contract import Kernel
from tests.browser.views import show_view

#: What is cut off at the right, and pairs of controls of the bar and the tabs that overlap.
WRONG = """() => {
  const root = document.querySelector(".shardviz-explorer");
  const right = root.getBoundingClientRect().right;
  const all = [...root.querySelectorAll("button, select, .sv-chip, [role=tab]")];
  const shown = all.filter((e) => e.checkVisibility({ opacityProperty: true }));
  const name = (e) => e.getAttribute("aria-label") ?? e.textContent;
  const wide = shown.filter((e) => e.getBoundingClientRect().right > right).map(name);
  const tops = shown.filter((e) => e.closest(".sv-bar, .sv-viewbar"));
  const meet = (a, b) => {
    const [p, q] = [a.getBoundingClientRect(), b.getBoundingClientRect()];
    return p.left < q.right && q.left < p.right && p.top < q.bottom - 1 && q.top < p.bottom - 1;
  };
  for (const [i, a] of tops.entries()) for (const b of tops.slice(i + 1))
    if (!a.contains(b) && !b.contains(a) && meet(a, b)) wide.push(`${name(a)} on ${name(b)}`);
  return wide;
}"""


def top(where: Locator) -> float:
    box = where.bounding_box()
    assert box is not None
    return box["y"]


def opened(page: Page, width: int, height: int = 620) -> Kernel:
    page.set_viewport_size({"width": width, "height": height})
    kernel = Kernel(page)
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    return kernel


@pytest.mark.parametrize("width", [400, 680, 848])
def test_nothing_is_cut_off_or_covered(page: Page, width: int):
    kernel = opened(page, width, 760)
    for view in ("Layout", "Rules", "Model", "Program"):
        show_view(page, view)
        kernel.answer()
        assert page.evaluate(WRONG) == [], view
    kernel.made.close()


def test_the_bar_has_one_row_and_an_error_adds_one_line(page: Page):
    kernel = opened(page, 680)
    names = ("Add a mesh axis", "Find anything")
    plus, find = (page.get_by_role("button", name=name) for name in names)
    assert abs(top(plus) - top(find)) < 6
    view, mesh = page.locator(".sv-layout"), page.get_by_label("Mesh axes", exact=True)
    hints = page.get_by_label("What else to open")
    expect(hints).to_contain_text("sv.explore(params)")
    before = top(view)
    mesh.fill("data=4, modle")
    mesh.press("Enter")
    kernel.answer()
    error = page.get_by_role("alert").filter(has_text="Cannot read")
    expect(error).to_be_visible()
    assert mesh.get_attribute("aria-describedby") == error.get_attribute("id")
    assert before < top(view) <= before + 60, "a line, and the count of problems"
    mesh.fill("data=4, model=2")
    mesh.press("Enter")
    kernel.answer()
    assert mesh.get_attribute("aria-describedby") is None
    mesh.fill("data=2, model=2")
    mesh.press("Enter")
    kernel.answer()
    expect(hints).to_be_hidden()
    kernel.made.close()


def test_a_double_click_on_full_screen_selects_nothing(page: Page):
    kernel = opened(page, 848)
    page.get_by_role("button", name="Full screen").dblclick()
    page.mouse.dblclick(300, 300)  # where text of the view is
    assert page.evaluate("() => getSelection().toString()") == ""
    kernel.made.close()


def test_it_has_its_own_height_where_outputs_scroll(page: Page):
    kernel = opened(page, 848)
    page.evaluate(
        """() => {
          const [cell, area] = [document.createElement("div"), document.createElement("div")];
          cell.className = "jp-CodeCell jp-mod-outputsScrolled";
          area.className = "jp-Cell-outputArea";
          document.body.append(cell);
          cell.append(area);
          const style = document.createElement("style");
          style.textContent =
            ".jp-CodeCell.jp-mod-outputsScrolled .jp-Cell-outputArea { max-height: 24em; }";
          document.head.prepend(style);
          area.append(document.getElementById("host"));
        }"""
    )
    height = "() => document.querySelector('.jp-Cell-outputArea').clientHeight"
    assert page.evaluate(height) >= 588
    kernel.made.close()
