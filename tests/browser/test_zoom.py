"""What stands around and over a picture, and what is in sight of it, at any zoom."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page

from shardviz.explorer import html_page
from tests.browser.test_fit import small

# The page's views, and what each has written since it was painted last.
KEEP_VIEWS = """
window.views = {};
const { resized } = PictureView.prototype;
PictureView.prototype.resized = function () {
  if (!this.written) keep(this);
  resized.call(this);
};
const keep = (view) => {
  window.views[view.node.getAttribute("aria-label")] ??= view;
  view.written = [];
  const begin = view.begin;
  view.begin = (canvas) => {
    if (canvas === view.base) view.written = [];
    const g = begin.call(view, canvas);
    const write = CanvasRenderingContext2D.prototype.fillText;
    if (canvas === view.base) g.fillText = (text, x, y) => {
      view.written.push(text);
      write.call(g, text, x, y);
    };
    return g;
  };
};
"""
ZOOM = "([name, f]) => { views[name].fitAll(); views[name].zoom(f, 20, 20); }"
# How many pixels of the tile that is seen best are in sight, across and down.
BEST = """
(name) => {
  const view = window.views[name];
  const part = (start, length, size) => Math.min(start + length, size) - Math.max(start, 0);
  let best = -1;
  for (let i = 0; i < view.picture.x.length; i++) {
    const { x, y, w, h } = view.boxOf(i);
    best = Math.max(best, Math.min(part(x, w, view.size.w), part(y, h, view.size.h)));
  }
  return best;
}
"""


def opened(page: Page, devices: int, folder: Path, mesh: str = "", hosts: str = "") -> None:
    made = small(devices)
    if hosts:
        made.session.edit("hosts", hosts)
    if mesh:
        made.session.edit("mesh", mesh)
    html = made.page()
    made.close()
    plain = html_page.bundled_module("explorer")
    kept = base64.b64encode((plain + KEEP_VIEWS).encode()).decode()
    html = html.replace(base64.b64encode(plain.encode()).decode(), kept)
    path = folder / "page.html"
    path.write_text(html, encoding="utf-8")
    page.goto(path.as_uri())
    page.wait_for_selector(".shardviz-explorer[data-seq]")


def said(page: Page, name: str, factor: float) -> tuple[list[str], list[dict]]:
    """What is written around a picture at some zoom, and its rulers."""
    page.evaluate(ZOOM if factor > 1 else "([name]) => views[name].fitAll()", [name, factor])
    page.evaluate("(name) => { views[name].painted = null; views[name].paint(); }", name)
    return (
        page.evaluate("(name) => views[name].written", name),
        page.evaluate("(name) => views[name].picture.rulers", name),
    )


@pytest.mark.parametrize(
    ("mesh", "width"),
    [("data=4, model=2", 848), ("data=64, model=16", 1500), ("data=256, model=256", 848)],
)
def test_every_side_says_what_it_is_at_any_zoom(page: Page, tmp_path, mesh, width):
    page.set_viewport_size({"width": width, "height": 620 if width < 1000 else 900})
    opened(page, 8, tmp_path, mesh)
    for name in ("Devices", "Array"):
        for factor in (1, 2, 6, 40):
            written, rulers = said(page, name, factor)
            assert rulers, name
            for ruler in (r for r in rulers if r["words"]):
                own = ruler["words"][-1] or ruler["axes"][0][1]
                assert any(own in text for text in written), (name, factor, own, written)
            if name == "Devices":  # numbers along each axis, not its name alone
                numbers = [text for text in written if re.fullmatch(r"\d+(–\d+)?", text)]
                assert len(numbers) >= len(rulers), (factor, written)


def test_the_numbers_of_an_edge_end_at_the_size(page: Page, tmp_path):
    opened(page, 8, tmp_path)
    written, rulers = said(page, "Array", 1)
    assert {str(ruler["size"]) for ruler in rulers} <= set(written)
    top = next(ruler for ruler in rulers if not ruler["down"])
    assert any(text.strip() == top["words"][0] for text in written), "the longest words fit"


# How much of the canvas the tiles take, across and down.
FILLED = """
(name) => {
  const view = views[name];
  const boxes = [...view.picture.x.keys()].map((i) => view.boxOf(i));
  const most = (ends) => ends.reduce((a, b) => Math.max(a, b));
  const span = (start, length) =>
    most(boxes.map((b) => b[start] + b[length])) + most(boxes.map((b) => -b[start]));
  return [span("x", "w") / view.size.w, span("y", "h") / view.size.h];
}
"""


@pytest.mark.parametrize(
    ("mesh", "width"),
    [
        ("data=8", 848),
        ("data=8", 1500),
        ("data=4, model=2", 848),
        ("data=16, model=4", 1500),
        ("data=64, model=64", 848),
    ],
)
def test_tiles_fill_their_canvas(page: Page, tmp_path, mesh, width):
    page.set_viewport_size({"width": width, "height": 620 if width < 1000 else 900})
    opened(page, 8, tmp_path, mesh)
    for name in ("Devices", "Array"):
        across, down = page.evaluate(FILLED, name)
        assert max(across, down) >= 0.75, (name, across, down)
        assert max(across, down) <= 1, (name, across, down)


@pytest.mark.parametrize("mesh", ["model=2, data=4", "data=64, model=16"])
def test_tiles_stay_in_sight_however_one_zooms_and_pans(page: Page, tmp_path, mesh):
    opened(page, 8, tmp_path, mesh)
    page.set_viewport_size({"width": 848, "height": 620})
    for name in ("Devices", "Array"):
        picture = page.get_by_label(name, exact=True)
        picture.hover()
        box = picture.bounding_box()
        x, y = box["x"] + 20, box["y"] + 20
        picture.focus()
        for turns in (12, 4):
            page.keyboard.press("0")
            for _ in range(turns):
                page.keyboard.press("+")
                assert page.evaluate(BEST, name) > 1, "zoomed in by the keyboard"
            for dx, dy in ((1, 1), (-1, 1), (-1, -1), (1, 0)):
                for _ in range(3):
                    page.mouse.move(x, y)
                    page.mouse.down()
                    page.mouse.move(x + 3000 * dx, y + 3000 * dy)
                    page.mouse.up()
                assert page.evaluate(BEST, name) > 1, (turns, dx, dy)
        fits = page.get_by_role("button", name="Fit", include_hidden=True)
        fits.nth(("Devices", "Array").index(name)).click()
        page.keyboard.down("Control")
        for part in (0.98, 0.02):  # at the corners, where there may be no tile
            for _ in range(6):
                page.mouse.move(box["x"] + part * box["width"], box["y"] + part * box["height"])
                page.mouse.wheel(0, -300)
                assert page.evaluate(BEST, name) > 1, "zoomed in by the wheel"
        page.keyboard.up("Control")


# The widest gap between two tiles beside or under each other, in pixels.
GAP = """
(name) => {
  const view = views[name];
  const boxes = [...view.picture.x.keys()].map((i) => view.boxOf(i));
  const gaps = (start, length) => {
    const lines = [...new Set(boxes.map((b) => b[start]))].sort((a, b) => a - b);
    return lines.slice(1).map((line, i) => line - lines[i] - boxes[0][length]);
  };
  return Math.max(...gaps("x", "w"), ...gaps("y", "h"));
}
"""


@pytest.mark.parametrize("width", [848, 1500])
def test_tiles_that_are_stretched_stay_together(page: Page, tmp_path, width):
    page.set_viewport_size({"width": width, "height": 620 if width < 1000 else 900})
    opened(page, 8, tmp_path, "data=4, model=2", hosts="1")
    assert 4 < page.evaluate(GAP, "Devices") < 14
