"""The tab Timeline: its lanes, what a click and the keys choose, and where they lead."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from shardviz.base.collective import Collective
from shardviz.base.format import bytes_text
from shardviz.base.mesh import make_mesh
from shardviz.compiled.measured import Measured, MeasuredRow
from shardviz.compiled.op_costs import most_alive
from shardviz.compiled.panel.timeline_view import TimelineRequest, timeline_view
from shardviz.compiled.report import Report
from shardviz.draw.palette import LIGHT
from shardviz.explorer import html_page
from shardviz.explorer.pictures import palettes
from shardviz.explorer.planner import StageResults
from shardviz.explorer.targets import device_placement
from shardviz.plans.plan import Plan
from tests.browser.test_contract import Kernel
from tests.browser.test_stages import SEEN
from tests.browser.values_page import as_script
from tests.browser.views import explorer, open_tab, show_view
from tests.widgets.plans import layers

pytestmark = pytest.mark.browser
MESH = make_mesh(data=8, model=2)
PAGE = """<!doctype html><meta charset="utf-8"><style>body { margin: 0 } CSS</style>
<div class="shardviz-explorer" data-theme="light"><div class="sv-body" id="host"></div></div>
<script type="module">
MODULE
window.calls = [];
window.panel = new TimelinePanel({
  openValue: (name) => calls.push(name),
  choose: (key) => calls.push(key),
});
document.getElementById("host").append(panel.node);
window.show = (data) => panel.show(data, THEME);
show(DATA);
</script>"""

# What is chosen is sent after a moment, as what is typed.
SENT_SOMETHING = """() => new Promise((done) => {
  const look = () => (window.sent.length ? done() : setTimeout(look, 20));
  look();
})"""


def data_of(plan: Plan, target: str = "tpu:v5e:4x4") -> str:
    placement = device_placement(MESH, target)
    return as_script(timeline_view(TimelineRequest(StageResults(plan), MESH, target, placement)))


def opened(page: Page, data: str) -> None:
    theme = as_script({**palettes()["light"], "name": "light"})
    html = PAGE.replace("CSS", html_page.bundled_styles()).replace("THEME", theme)
    html = html.replace("MODULE", html_page.bundled_module("timeline"))
    page.set_content(html.replace("DATA", data))
    page.wait_for_function("window.show !== undefined")


def colour_at(page: Page, bar: int) -> str:
    """The colour in the middle of a bar, as the canvas has it."""
    return page.evaluate(
        """(i) => {
          const bar = panel.bars[i], ratio = window.devicePixelRatio;
          const [x, y] = [bar.x + bar.w / 2, 18 + bar.row * panel.lane + 6];
          const g = panel.canvas.getContext("2d");
          const [r, gr, b] = g.getImageData(x * ratio, y * ratio, 1, 1).data;
          return "#" + [r, gr, b].map((v) => v.toString(16).padStart(2, "0")).join("");
        }""",
        bar,
    )


def test_a_lane_for_each_axis_in_its_colour_and_a_click_says_what_bounds_it(page):
    opened(page, data_of(layers(3, MESH)))
    assert page.locator(".sv-tllabel").all_inner_texts() == ["compute", "model", "live bytes"]
    bars = page.evaluate("panel.bars.map(({ lane, x, w, name }) => [lane, x, w, name])")
    at = next(i for i, (lane, _, w, _) in enumerate(bars) if lane == 2 and w > 20)
    assert colour_at(page, at) == LIGHT.groups[1]
    # One after another, no two bars share a moment.
    ends = [x + w for _, x, w, _ in bars]
    assert all(b[1] >= end - 1e-6 for b, end in zip(bars[1:], ends, strict=False))
    lanes = page.get_by_role("listbox", name="Operations")
    lanes.click(
        position={"x": bars[at][1] + bars[at][2] / 2, "y": 18 + page.evaluate("panel.lane") * 1.4}
    )
    said = page.locator(".sv-tlchosen")
    expect(said).to_contain_text(re.compile(r"all-reduce.*model.*At least .* bound by ICI: 1 MiB"))
    expect(said).to_contain_text("sums over dimension 1")
    assert page.evaluate("calls") == [f"0:{page.evaluate('panel.bars[panel.at].collective')}"]


def measured_data(plan: Plan) -> str:
    """A timeline with a measured lane: an operation, and a collective over `model`."""
    rows = (
        MeasuredRow("dot_general", "op", 3e-3, 3e-3, 3e-3, 3),
        MeasuredRow("sum", "collective", 1e-3, 1e-3, 2e-3, 3, 3e-3, 0.25, collective=0),
    )
    report = Report(
        "f",
        "cpu × 16, simulated",
        collectives=(Collective("all-reduce", ("model",), 1 << 20),),
        measured=Measured(rows, 3, {0: 4e-3}, {0: 1e-3}, 1.0),
    )
    results = StageResults(plan, report=report)
    return as_script(timeline_view(TimelineRequest(results, MESH, "", None)))


@pytest.mark.parametrize("schedule", ["One after another", "Perfect overlap"])
def test_a_run_has_a_lane_and_a_clock_of_its_own(page, schedule):
    plan = layers(3, MESH)
    opened(page, data_of(plan))
    shares = "panel.bars.map(({ x }) => x / (panel.lanes.clientWidth - 1))"
    before = page.evaluate(shares)
    page.evaluate(f"show({measured_data(plan)})")
    if schedule != "One after another":
        page.get_by_role("button", name=schedule).click()
    else:
        assert page.evaluate(shares)[: len(before)] == pytest.approx(before)
    labels = page.locator(".sv-tllabel").all_inner_texts()
    assert labels.index("measured 4 ms") == (2 if schedule == "One after another" else 3)
    first, second = page.evaluate(
        "panel.bars.filter((bar) => bar.measured).map(({ x, w }) => [x, w])"
    )
    width = page.evaluate("panel.lanes.clientWidth") - 1
    assert first == [0, pytest.approx(0.75 * width)]
    assert second == [pytest.approx(0.75 * width), pytest.approx(0.25 * width)]
    at = page.evaluate("panel.bars.length - 1")
    assert colour_at(page, at) == LIGHT.groups[1]
    page.get_by_role("listbox", name="Operations").focus()
    page.keyboard.press("End")
    expect(page.locator(".sv-tlchosen")).to_contain_text("25 % hidden")
    assert page.evaluate("calls") == ["2:0"]
    page.evaluate(f"show({data_of(plan)})")
    assert not page.evaluate("panel.bars.some((bar) => bar.measured)")


def test_the_live_bytes_rise_to_the_peak_of_the_headline(page):
    plan = layers(3, MESH)
    opened(page, data_of(plan))
    live = page.evaluate("panel.bars.map(({ live }) => live)")
    assert max(live) == most_alive(plan)
    assert page.evaluate("panel.data.peak") == f"peak about {bytes_text(most_alive(plan))}"
    # A column of the last lane is as high as its share of the peak.
    high = page.evaluate(
        """() => panel.bars.map(({ x, w }) => {
          const ratio = window.devicePixelRatio;
          const [lanes, from] = [panel.data.lanes.length, Math.round((x + w * 0.3) * ratio)];
          const [top, tall] = [18 + (lanes - 1) * panel.lane, panel.lane];
          const g = panel.canvas.getContext("2d");
          const { data } = g.getImageData(from, top * ratio, 1, tall * ratio);
          return data.filter((_, i) => i % 4 === 3 && data[i] > 0).length / ratio;
        })"""
    )
    most = page.evaluate("panel.lane * 0.72")
    for tall, here, (x, w) in zip(
        high, live, page.evaluate("panel.bars.map(({ x, w }) => [x, w])"), strict=True
    ):
        if w > 40 and here < max(live):
            assert abs(tall - most * here / max(live)) < 3, x
    # A click there chooses what runs at that moment.
    widest = page.evaluate("panel.bars.reduce((a, b, i, all) => (b.w > all[a].w ? i : a), 0)")
    x = page.evaluate("i => panel.bars[i].x + panel.bars[i].w / 2", widest)
    y = page.evaluate("18 + panel.lane * (panel.data.lanes.length - 0.5)")
    page.get_by_role("listbox", name="Operations").click(position={"x": x, "y": y})
    assert page.evaluate("panel.at") == widest


def test_keys_go_along_operations_in_order_and_enter_opens_them(page):
    opened(page, data_of(layers(3, MESH)))
    page.get_by_role("listbox", name="Operations").focus()
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End"):
        page.keyboard.press(key)
        seen.append(page.evaluate("panel.at"))
    count = page.evaluate("panel.bars.length")
    assert seen == [0, 1, 0, count - 1]
    page.keyboard.press("Home")
    chosen = page.get_by_role("option", selected=True)
    expect(chosen).to_have_attribute("aria-label", re.compile("^dot_general: At least "))
    page.keyboard.press("Enter")
    assert page.evaluate("calls").pop() == "dot_general"


def test_with_overlap_collectives_begin_at_once_and_the_whole_is_shorter(page):
    opened(page, data_of(layers(3, MESH)))
    schedule = page.get_by_role("group", name="Schedule")
    serial, overlap = schedule.get_by_role("button").all()
    expect(serial).to_have_attribute("aria-pressed", "true")
    overlap.click()
    expect(schedule.get_by_role("button", name="Perfect overlap")).to_have_attribute(
        "aria-pressed", "true"
    )
    # The order between lanes is not known, and so neither are the live bytes.
    assert page.locator(".sv-tllabel").all_inner_texts() == ["arithmetic", "memory", "model"]
    first = page.evaluate("[0, 1, 2].map((i) => panel.bars.find(({ lane }) => lane === i).x)")
    assert first == [0, 0, 0]


def test_ten_thousand_operations_are_painted_with_at_most_a_rectangle_per_pixel(page):
    opened(page, data_of(layers(6000, MESH)))
    operations, pixels, rectangles = page.evaluate(
        """() => {
          const canvas = CanvasRenderingContext2D.prototype, { fillRect } = canvas;
          let rectangles = 0;
          canvas.fillRect = function (...box) {
            rectangles += 1;
            fillRect.apply(this, box);
          };
          panel.paint();
          canvas.fillRect = fillRect;
          const lanes = panel.data.lanes.length;
          return [panel.bars.length, lanes * panel.canvas.clientWidth, rectangles];
        }"""
    )
    assert operations > 10_000
    assert 100 < rectangles <= pixels < operations


def test_a_saved_page_has_the_timeline_without_a_kernel(page, tmp_path):
    made = explorer(mesh="data=4, model=4", target="tpu:v5e:4x4")
    page.goto(made.save_html(tmp_path / "page").as_uri())
    open_tab(page, "Timeline")
    expect(page.get_by_role("listbox", name="Operations")).to_be_visible()
    lanes = page.get_by_role("listbox", name="Operations")
    lanes.press("Home")
    page.get_by_role("button", name=re.compile("in Values$")).click()
    expect(page.get_by_role("tab", name="Values", selected=True)).to_be_visible()
    made.close()


def test_a_collectives_bar_has_its_sentence_play_and_help_as_its_row_has(page):
    kernel = Kernel(page, made=explorer(mesh="data=4, model=4", target="tpu:v5e:4x4"))
    kernel.made.wait(120)
    kernel.answer()
    open_tab(page, "Timeline")
    kernel.answer()
    kernel.made.wait(120)
    kernel.push()
    strip = page.get_by_label("The chosen collective")
    lanes = page.get_by_role("listbox", name="Operations")
    lanes.focus()
    for _ in range(60):
        page.keyboard.press("ArrowRight")
        if strip.is_visible():
            break
    kernel.answer()
    # The keys still belong to the lanes, and the whole cause is in sight, under the lanes.
    expect(lanes).to_be_focused()
    words = strip.inner_text()
    assert re.search("≥ .*s", words), words
    cause = strip.locator("> div").nth(1)
    assert cause.evaluate("e => e.scrollHeight <= e.clientHeight && e.scrollWidth <= e.clientWidth")
    for name in ("Play", "What would help?"):
        assert strip.get_by_role("button", name=name, exact=True).evaluate(SEEN), name
    # The same collective is selected in the other tab, with the same words.
    open_tab(page, "Collectives")
    expect(page.locator(".sv-crow[aria-selected=true]")).to_have_count(1)
    assert strip.inner_text() == words
    page.locator(".sv-crow").last.click()
    kernel.answer()
    words = strip.inner_text()
    open_tab(page, "Timeline")
    assert strip.inner_text() == words
    lanes.press("Escape")
    expect(strip).to_be_hidden()
    kernel.made.close()


def test_program_opens_with_the_headline_and_timeline_of_a_suggested_chip(page):
    kernel = Kernel(page)
    show_view(page, "Program")
    kernel.answer()
    kernel.made.wait(60)
    kernel.push()
    headline = page.get_by_role("group", name="Least time")
    expect(headline).to_contain_text("on TPU v5e 2×4, from the plan")
    expect(headline).to_contain_text(re.compile("needs about .* of 16 GiB"))
    expect(headline.locator(".sv-hbar")).to_have_count(3)
    expect(page.get_by_role("tab", name="Timeline")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("listbox", name="Operations")).to_be_visible()
    least = headline.locator("b").inner_text()
    # A compile for simulated CPUs has no least times, so it replaces nothing here.
    assert kernel.made.planner.state.report.collectives is not None
    headline.get_by_role("button", name="Choose this target").click()
    page.evaluate(SENT_SOMETHING)
    # The page clears everything of the old target before the kernel answers.
    kernel.answer()
    expect(headline.get_by_role("button", name="Choose this target")).to_have_count(0)
    kernel.made.wait(120)
    kernel.push()
    assert kernel.made.session.now.target == "tpu:v5e:2x4"
    expect(headline.locator("b")).to_have_text(least)
    expect(headline.get_by_role("button", name="Choose this target")).to_have_count(0)
    lanes = page.get_by_role("listbox", name="Operations")
    # What is chosen leads to its value.
    lanes.press("Home")
    page.get_by_role("button", name=re.compile("in Values$")).click()
    expect(lanes).to_be_hidden()
    expect(page.locator(".sv-vrow[aria-selected=true]")).to_have_count(1)
    kernel.made.close()
