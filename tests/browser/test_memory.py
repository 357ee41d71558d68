"""The tab Memory: its chart, the buffers of a moment, and what would lower the peak."""

from __future__ import annotations

import dataclasses
import io
import re

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from shardviz.advise.candidates import Changes
from shardviz.compiled.panel.report_view import memory_view
from shardviz.compiled.report import Report
from shardviz.explorer import html_page, planner
from shardviz.explorer.protocol import Event
from tests.browser.legible import wrong_in
from tests.browser.test_contract import Kernel
from tests.browser.test_stages import many, opened
from tests.browser.values_page import as_script
from tests.browser.views import open_tab
from tests.widgets.changes_examples import found
from tests.widgets.memory_examples import MIB, memory, peak, report
from tests.widgets.stage_examples import REPORT, RESULTS

pytestmark = pytest.mark.browser
PAGE = """<!doctype html><meta charset="utf-8"><style>body { margin: 0 } CSS</style>
<div class="shardviz-explorer" data-theme="light"><div class="sv-body" id="host"></div></div>
<script type="module">
MODULE
window.calls = [];
const value = (name) => calls.push(name);
window.panel = new MemoryPanel({ openValue: value, page: { ask: (kind, of) => value(of) } });
document.getElementById("host").append(panel.node);
panel.show(DATA, "");
</script>"""
SIZES = ((848, 620), (1500, 900))


def alone(page: Page, **how) -> None:
    """The tab alone on a page."""
    html = PAGE.replace("CSS", html_page.bundled_styles())
    html = html.replace("MODULE", html_page.bundled_module("memory_panel"))
    page.set_content(html.replace("DATA", as_script(memory_view(report(**how)))))
    page.wait_for_function("window.panel !== undefined")


def moment(page: Page):
    return page.get_by_role("slider", name="Memory over time")


def column_x(page: Page, column: float) -> float:
    """Where a column is in the chart, in pixels from its left."""
    width, count = page.evaluate("[panel.picture.clientWidth, panel.totals.length]")
    return column * width / (count - 1)


def test_it_opens_at_the_peak_and_a_click_on_a_hill_lists_its_buffers(page):
    alone(page, layers=40)
    top = peak(layers=40)
    expect(moment(page)).to_have_value(str(top.at))
    rows = page.get_by_role("group", name="Buffers alive").locator("summary")
    assert rows.count() == 16
    expect(page.locator(".sv-memlist")).to_contain_text("Smaller buffers")
    # The second gathered buffer is alive at position 4 alone.
    page.locator(".sv-memchart").click(position={"x": column_x(page, 4), "y": 60})
    expect(moment(page)).to_have_value("4")
    expect(rows.first).to_have_attribute("title", re.compile("^9 MiB · all_gather · .*block.py:30"))
    assert rows.count() == 5


def test_a_buffer_says_its_line_and_leads_to_its_value(page):
    alone(page)
    row = page.locator("details", has_text="dot_general_0")
    row.locator("summary").click()
    for text in ("block.py:20", "P('data', None)", "3 MiB if the axes of neighbouring values"):
        expect(row).to_contain_text(text)
    # It is alive from its allocation until its layer's backward pass.
    # The browser reports a toggled row in a later task.
    page.wait_for_function("panel.life.getAttribute('d') === 'M1 1H16'")
    row.get_by_role("button", name="Show in Values").click()
    assert page.evaluate("calls") == ["dot_general_0"]
    row.locator("summary").click()
    page.wait_for_function("panel.life.getAttribute('d') === ''")


def test_before_a_compile_the_plan_estimates_also_if_the_partitioner_has_reported(page, tmp_path):
    partitioned = Report("block", "CPU × 8, simulated", partitioned=REPORT.partitioned)
    opened(page, tmp_path, dataclasses.replace(RESULTS, report=partitioned))
    open_tab(page, "Memory")
    shown = page.locator(".sv-memory")
    expect(shown).to_contain_text("arguments and results")
    expect(shown).to_contain_text("An estimate from the plan")
    expect(page.get_by_role("button", name="What would lower it?")).to_have_count(0)


def test_keys_go_along_the_order(page):
    alone(page)
    moment(page).focus()
    seen = []
    for key in ("Home", "ArrowLeft", "ArrowRight", "ArrowRight", "End"):
        page.keyboard.press(key)
        seen.append(int(moment(page).input_value()))
    last, peak = page.evaluate("[panel.totals.length - 1, panel.chart.peak]")
    assert seen == [0, 0, 1, 2, last]
    for _ in range(last - peak):
        page.keyboard.press("ArrowLeft")
    expect(moment(page)).to_have_attribute("aria-valuetext", re.compile("the peak"))


def test_the_stack_is_as_high_as_its_bytes(page):
    alone(page, capacity=None)
    # At the beginning there is what lasts, and at the peak everything.
    box = page.evaluate("panel.picture.getBoundingClientRect().toJSON()")
    picture = Image.open(io.BytesIO(page.screenshot(clip={**box, "width": box["width"] + 1})))
    pixels = np.asarray(picture.convert("L"), int)
    heights = []
    for column in (0.2, page.evaluate("panel.chart.peak") + 0.3):
        one = pixels[:, int(column_x(page, column)) + 1]
        heights.append(np.count_nonzero(one < 235))
    assert abs(heights[0] / heights[1] - 12 * MIB / peak().bytes) < 0.03


def test_ten_thousand_buffers_make_no_more_elements_than_a_thousand(page):
    counts = []
    for small in (1000, 10_000):
        alone(page, layers=200, small=small)
        page.evaluate("panel.go(panel.slider.value - 1)")
        counts.append(page.evaluate("document.querySelectorAll('*').length"))
    assert 100 < counts[0] == counts[1] < 1000


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_headline_leads_to_it_and_nothing_is_cut(page, tmp_path, scheme):
    page.emulate_media(color_scheme=scheme)
    opened(page, tmp_path, many(memory=memory()))
    page.get_by_role("group", name="Least time").get_by_role(
        "button", name=re.compile("^needs")
    ).click()
    expect(moment(page)).to_be_visible()
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        page.locator(".sv-memrow").first.click()
        assert wrong_in(page) == []


def live(page: Page) -> Kernel:
    """A page with a kernel that has compiled a program with a chart."""
    kernel = Kernel(page)
    results = many(memory=memory())
    kernel.made._request_plan = lambda *_: None
    kernel.made.planner.state = results
    kernel.made._refresh_after(Event.WORK)
    kernel.push()
    return kernel


@pytest.mark.parametrize("tab", ["Memory", "Collectives"])
def test_what_was_found_stands_beside_the_question_and_is_applied(page, tab, monkeypatch):
    monkeypatch.setattr(planner, "changes_of", lambda job, *_: found(job.program))
    kernel = live(page)
    open_tab(page, tab)
    if tab == "Collectives":
        page.locator(".sv-crow").first.click()
    kernel.answer()
    question = {"Memory": "What would lower it?", "Collectives": "What would help?"}[tab]
    page.get_by_role("button", name=question).click()
    kernel.answer()
    kernel.made.planner._compiles.wait(60)
    kernel.push()
    changes = page.get_by_role("region", name="Changes")
    expect(changes).to_contain_text("4 KiB → 1 KiB")
    expect(changes).to_contain_text("results not compared")
    assert changes.get_by_role("button", name="Copy code").count() == 2
    assert changes.locator("summary").bounding_box()["height"] >= 24
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        assert wrong_in(page) == []
    changes.get_by_role("button", name=re.compile("^Apply")).click()
    kernel.answer()
    assert str(kernel.made.session.arrays[0].spec) == "P(None, 'model')"
    # The compile of the trial is shown, which has other collectives.
    applied = changes.get_by_role("button", name=re.compile("^Apply"))
    if tab == "Memory":
        expect(applied).to_be_disabled()
    else:
        expect(applied).to_have_count(0)
    kernel.made.close()


def test_another_collective_has_no_changes_until_it_is_asked_for(page, monkeypatch):
    monkeypatch.setattr(planner, "changes_of", lambda *_: Changes())
    kernel = live(page)
    open_tab(page, "Collectives")
    page.locator(".sv-crow").first.click()
    page.get_by_role("button", name="What would help?").click()
    kernel.answer()
    kernel.made.planner._compiles.wait(60)
    kernel.push()
    changes = page.get_by_role("region", name="Changes")
    expect(changes).to_be_visible()
    page.locator(".sv-crow").nth(1).click()
    expect(changes).to_be_hidden()
    kernel.made.close()
