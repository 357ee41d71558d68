"""Every view fits its window: no text on text, no control cut off, no page that scrolls."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from shardviz.axis_rules.audit import audit
from shardviz.axis_rules.optimizer_state import GROUPS
from shardviz.explorer.explorer import Explorer, open_explorer
from shardviz.explorer.session import Session
from shardviz.gallery import arrays, meshes, programs, rules
from shardviz.runs.cache import ExecutableCache
from tests.browser.views import opened, play_largest, show_view

WINDOWS = ((848, 620), (1280, 800), (1500, 900))
VIEWS = ("Layout", "Rules", "Model", "Program")
MESHES = {
    8: {},
    1024: {"mesh": "data=16, model=8, expert=8", "hosts": "128"},
    4096: {"mesh": "data=256, model=16", "hosts": "1024"},
    65536: {"mesh": "replica=2, data=256, fsdp=8, sequence=2, tensor=8", "hosts": "8192"},
}
# Text is measured as it can be seen: cut to what scrolls around it, and where nothing covers it.
# A line that ends in an ellipsis says all of it in its tooltip.
MEASURE = """
() => {
  const TARGET = 24;  // pixels, WCAG 2.2
  const root = document.querySelector(".shardviz-explorer");
  const outer = root.getBoundingClientRect();
  const wrong = [];
  const name = (e) => `<${e.tagName.toLowerCase()} ${e.getAttribute("class") ?? ""}> `
    + (e.getAttribute("aria-label") ?? e.textContent).slice(0, 40);
  const cut = (from, box, scrolled) => {
    let { left, right, top, bottom } = box;
    for (let up = from; up && root.contains(up); up = up.parentElement) {
      const { overflowX, overflowY } = getComputedStyle(up);
      const edge = up.getBoundingClientRect();
      const clips = (how) => how !== "visible" && (scrolled || how === "auto" || how === "scroll");
      if (clips(overflowX)) {
        [left, right] = [Math.max(left, edge.left), Math.min(right, edge.right)];
      }
      if (clips(overflowY)) {
        [top, bottom] = [Math.max(top, edge.top), Math.min(bottom, edge.bottom)];
      }
    }
    return { left, right, top, bottom };
  };
  const page = document.scrollingElement;
  if (page.scrollHeight > innerHeight) wrong.push(`the page scrolls: ${page.scrollHeight}`);
  if (page.scrollWidth > innerWidth) wrong.push(`the page is too wide: ${page.scrollWidth}`);
  for (const view of root.querySelectorAll(".sv-view:not([hidden])")) {
    if (view.scrollHeight > view.clientHeight + 1) wrong.push(`the view scrolls: ${name(view)}`);
    const { bottom } = view.getBoundingClientRect();
    if (bottom > outer.bottom + 1) wrong.push(`too tall: ${name(view)}`);
  }
  for (const e of root.querySelectorAll("button, input, select, textarea, [role=tab]")) {
    const box = e.getBoundingClientRect();
    if (!box.width || !box.height || getComputedStyle(e).visibility === "hidden") continue;
    const seen = cut(e.parentElement, box, true);
    const free = cut(e.parentElement, box, false);  // what a person can scroll to is not cut off
    if (free.right - free.left < 1 || free.bottom - free.top < 1) continue;
    const lost = Math.max(seen.left - free.left, free.right - seen.right,
      seen.top - free.top, free.bottom - seen.bottom);
    if (lost > 1.5) wrong.push(`cut off by ${lost.toFixed(1)}: ${name(e)}`);
    const outside = free.left < outer.left - 1 || free.right > outer.right + 1;
    if (outside) wrong.push(`outside: ${name(e)}`);
    const [wide, tall] = [box.width.toFixed(0), box.height.toFixed(0)];
    if (wide < TARGET || tall < TARGET) wrong.push(`a target of ${wide} x ${tall}: ${name(e)}`);
    const named = e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length;
    if (!named) wrong.push(`no name for a screen reader: ${name(e)}`);
    if (e.closest(".sv-bar") && e.scrollWidth > e.clientWidth + 1) {
      wrong.push(`its text is cut off: ${name(e)}`);
    }
  }
  for (const e of root.querySelectorAll(".sv-canvas")) {
    const low = e.getBoundingClientRect().bottom;
    const over = low - e.closest(".sv-col").getBoundingClientRect().bottom;
    if (e.offsetParent && over > 1) wrong.push(`a picture on what follows: ${name(e)}`);
  }
  // What is said of the thing at hand never scrolls.
  for (const e of root.querySelectorAll("[role=status]")) {
    if (e.offsetParent && e.scrollHeight > e.clientHeight + 1) wrong.push(`cut off: ${name(e)}`);
  }
  const texts = [];
  const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    const e = node.parentElement;
    if (!node.data.trim() || e.closest("option, select, .sv-tip, svg")) continue;
    const hides = getComputedStyle(e).overflowX === "hidden" && e.clientWidth;
    if (hides && e.scrollWidth > e.clientWidth + 1 && !e.closest("[title]:not([title=''])")) {
      wrong.push(`cut, and no tooltip says it: ${name(e)}`);
    }
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const line of range.getClientRects()) {
      const box = cut(e, line, true);
      if (box.right - box.left < 2 || box.bottom - box.top < 4) continue;
      const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
      const stack = document.elementsFromPoint(x, y);
      const at = stack.findIndex((there) => there === e || e.contains(there));
      const covers = (over) => !/, 0\\)$/.test(getComputedStyle(over).backgroundColor);
      if (at < 0 || stack.slice(0, at).some(covers)) continue;
      texts.push({ node, text: node.data.trim().slice(0, 40), box });
    }
  }
  texts.sort((a, b) => a.box.top - b.box.top);
  texts.forEach((one, i) => {
    for (let j = i + 1; j < texts.length && texts[j].box.top < one.box.bottom; j++) {
      const other = texts[j];
      if (other.node === one.node) continue;  // a line with an ellipsis has a box for each part
      const [a, b] = [one.box, other.box];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const tall = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 2 && tall > 4) wrong.push(`“${one.text}” on “${other.text}”`);
    }
  });
  return { wrong: [...new Set(wrong)].slice(0, 12), texts: texts.length };
}
"""


def wrong_in(page: Page) -> list[str]:
    """What does not fit in the view that is open."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => done()))")
    seen = page.evaluate(MEASURE)
    assert seen["texts"] > 10, "there is something to measure"
    return seen["wrong"]


def small(devices: int) -> Explorer:
    name = "transformer block, gradient" if devices == 64 else programs.DEFAULT
    session = Session(programs.get(name), name)
    for field, value in MESHES[devices].items():
        session.edit(field, value)
    if devices >= 4096:
        session.edit("preset", "arrays:7B model")
        session.edit("preset", "rules:FSDP + tensor parallel")
    assert session.now.errors == {}
    return Explorer(session, ExecutableCache())


def measured(page: Page, made: Explorer, folder) -> list[str]:
    """What is wrong in any view and window."""
    opened(page, made, folder)
    made.close()
    found = []
    for width, height in WINDOWS:
        page.set_viewport_size({"width": width, "height": height})
        for view in (*VIEWS, "Player"):
            if view != "Player":
                show_view(page, view)
            elif not play_largest(page):
                continue
            found += [f"{view}, {width}: {what}" for what in wrong_in(page)]
    return found


@pytest.mark.parametrize("devices", MESHES)
def test_every_view_fits(page: Page, tmp_path, devices: int):
    wrong = measured(page, small(devices), tmp_path)
    assert not wrong, "\n".join(wrong)


def test_a_model_of_many_leaves_fits(page: Page, tmp_path):
    found = audit(arrays.get("7B model"), rules.get("FSDP"), meshes.get())
    wrong = measured(page, open_explorer(found, ExecutableCache()), tmp_path)
    assert not wrong, "\n".join(wrong)


def test_in_the_model_red_is_failure_alone(page: Page, tmp_path):
    arrays_ = [
        ("fits", (64, 32, 3), "embed heads odd"),  # no rule knows its last name
        ("fails", (63, 32), "embed heads"),  # 63 does not divide
    ]
    found = audit(arrays_, [("embed", "data"), ("heads", "model")], meshes.get())
    made = open_explorer(found, ExecutableCache())
    opened(page, made, tmp_path)
    made.close()
    show_view(page, "Model")
    rows = page.locator(".sv-modelinner .sv-modelrow")
    fits, fails = rows.filter(has_text="fits"), rows.filter(has_text="fails")
    assert fits.locator(".sv-bad, .sv-over").count() == 0
    assert fits.locator(".sv-warn").count() == 0
    assert fails.locator(".sv-bad").count() == 1


def test_in_an_output_of_a_laptop_the_table_of_a_model_is_whole(page: Page, tmp_path):
    layer = {"q": ((1024, 16, 64), "embed heads kv"), "down": ((4096, 1024), "mlp embed")}
    weights = {"layers": [layer] * 4}
    found = audit(
        ({"params": weights}, {"opt": [{"mu": weights}]}), rules.get("FSDP"), meshes.get()
    )
    page.set_viewport_size({"width": 680, "height": 900})
    made = open_explorer(found, ExecutableCache())
    opened(page, made, tmp_path)
    made.close()
    show_view(page, "Model")
    labels = page.locator(".sv-modelinner .sv-leafname").all_inner_texts()
    heads = [label.strip("▾▸ \n").split("/")[0] for label in labels]
    assert [head for head in heads if head in GROUPS] == list(GROUPS[::2]), labels
    cut = "(all) => all.filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.innerText)"
    assert page.locator(".sv-model, .sv-model *").evaluate_all(cut) == []
