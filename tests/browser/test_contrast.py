"""All text can be read, in light and dark: measured on the page, old text included.

Text on canvases has the colours of `colours.js`, which chooses them by their contrast.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from shardviz.axis_rules.audit import audit
from shardviz.explorer.explorer import Explorer, open_explorer
from shardviz.gallery import arrays, meshes, rules
from shardviz.runs.cache import ExecutableCache
from tests.browser.test_fit import VIEWS, small
from tests.browser.views import play_largest, show_view
from tests.browser.watch import Complaints, new_context

READABLE = 4.5  # WCAG 2, level AA, for text of any size
WAIT_S = 120
COLOURS = """
window.sv = (() => {
  const rgba = (text) => {
    const n = text.match(/[\\d.]+/g).map(Number);
    const by = text.startsWith("color(") ? 255 : 1;  // a mixed colour: parts from 0 to 1
    return [n[0] * by, n[1] * by, n[2] * by, n[3] ?? 1];
  };
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const light = (c) => {
    const [r, g, b] = c.map((v) => v / 255 <= 0.04045 ? v / 255 / 12.92
      : ((v / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [x, y] = [light(a) + 0.05, light(b) + 0.05];
    return Math.max(x, y) / Math.min(x, y);
  };
  const behind = (e) => {
    const grounds = [];
    for (let up = e; up; up = up.parentElement) {
      const ground = rgba(getComputedStyle(up).backgroundColor);
      if (ground[3]) grounds.unshift(ground);
      if (ground[3] === 1) break;
    }
    return grounds.reduce((under, ground) => over(ground, under), [255, 255, 255, 1]);
  };
  const hidden = (e) => {
    for (let up = e; up; up = up.parentElement) {
      if (Number(getComputedStyle(up).opacity) === 0) return true;
    }
    return getComputedStyle(e).visibility === "hidden";
  };
  return { rgba, over, contrast, behind, hidden };
})();
"""
READ = """
() => {
  const { rgba, over, contrast, behind, hidden } = window.sv;
  const root = document.querySelector(".shardviz-explorer");
  const found = [];
  const take = (e, colour, text) => {
    const box = e.getBoundingClientRect();
    if (!text.trim() || box.width < 2 || box.height < 2 || hidden(e)) return;
    const cell = e.closest(".sv-mcell")?.querySelector("rect");
    const ground = cell ? rgba(getComputedStyle(cell).fill) : behind(e);
    const where = `<${e.tagName.toLowerCase()} ${e.getAttribute("class") ?? ""}>`
      + ` ${colour} on ${ground.map(Math.round)}`;
    let faded = rgba(colour);
    for (let up = e; up; up = up.parentElement) {
      faded = [...faded.slice(0, 3), faded[3] * Number(getComputedStyle(up).opacity)];
    }
    found.push({ text: text.trim().slice(0, 40), where,
      contrast: contrast(over(faded, ground), ground) });
  };
  const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!e.closest("option, svg")) take(e, getComputedStyle(e).color, walk.currentNode.data);
  }
  for (const e of root.querySelectorAll("input:not([type=range]), textarea, select, svg text")) {
    const style = getComputedStyle(e);
    if (e.tagName === "text") take(e, style.fill, e.textContent);
    else take(e, style.color, e.value || "");
    if (e.placeholder) take(e, getComputedStyle(e, "::placeholder").color, e.placeholder);
  }
  return found;
}
"""


@pytest.fixture
def measured_page(browser: Browser, complaints: Complaints):
    context = new_context(browser, 1500, 1000)
    page = context.new_page()
    page.add_init_script(COLOURS)
    with complaints.watching(page):
        yield page
    context.close()


def edited() -> Explorer:
    """A program of which every stage is old, with mistakes in its fields."""
    made = small(8)
    made.follow()
    made.wait(WAIT_S)
    made.session.edit("shape", "510, x", 0)
    made.session.edit("rules", "batch -> nothing\nmlp ->")
    made.session.edit("mesh", "data=4, model=")
    return made


def leaves() -> Explorer:
    found = audit(arrays.get("7B model"), rules.get("FSDP"), meshes.get())
    return open_explorer(found, ExecutableCache())


def misspelt() -> Explorer:
    """A name that no rule knows, and a target that does not fit."""
    made = small(8)
    made.session.edit("logical", "embed mpl", 0)
    made.session.edit("target", "tpu:v5e:4x4")
    return made


EXAMPLES = {"stages": edited, "mistakes": misspelt, "leaves": leaves}


def stale_page(made: Explorer, path: Path) -> Path:
    """The page of a program that was edited since all that is known of it."""
    made.page()  # now it is planned
    answer = {**made.answer, "revision": made.answer["revision"] + 1}
    made.answer = answer
    return made.save_html(path)


def pale(page: Page) -> list[str]:
    """The texts that cannot be read."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => done()))")
    found = page.evaluate(READ)
    assert len(found) > 10, "there is something to measure"
    few = {(f["where"], f["text"], round(f["contrast"], 2)) for f in found}
    return [f"{where} “{text}”: {c}" for where, text, c in sorted(few) if c < READABLE]


CASES = [
    pytest.param(make, id=name, marks=pytest.mark.long if name == "leaves" else ())
    for name, make in EXAMPLES.items()
]


@pytest.mark.parametrize("make", CASES)
def test_all_text_can_be_read(measured_page: Page, tmp_path, make):
    page, made = measured_page, make()
    page.goto(stale_page(made, tmp_path / "page").as_uri())
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    made.close()
    wrong = []
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_selector(f'.shardviz-explorer[data-theme="{theme}"]')
        for view in VIEWS:
            show_view(page, view)
            tabs = page.locator(".sv-tabline [role=tab]").all() if view == "Program" else [None]
            for tab in tabs:
                if tab:
                    tab.click()
                wrong += [f"{theme}, {view}: {what}" for what in pale(page)]
        if play_largest(page):
            page.keyboard.press("ArrowRight")
            wrong += [f"{theme}, player: {what}" for what in pale(page)]
    assert not wrong, "\n".join(sorted(set(wrong)))
