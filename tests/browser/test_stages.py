"""The stages, what changed between them, and the table below, on saved pages."""

import dataclasses
from pathlib import Path

from playwright.sync_api import Page, expect

from shardviz.widgets.planner import StageResults
from shardviz.widgets.stages_view import saved_stages, stages_view
from shardviz.widgets.values_view import values_view
from tests.browser import views
from tests.browser.views import explorer, open_tab, show_view
from tests.widgets.stage_examples import RESULTS, SUMS


def opened(page: Page, folder: Path, results: StageResults) -> Page:
    made = explorer()
    saved = saved_stages(stages_view(results)), values_view(results.plan, explanations=300)
    made._stages.saved = lambda *_: saved  # type: ignore[method-assign]
    made.answer = {**made.answer, "revision": 0}
    views.opened(page, made, folder)
    show_view(page, "Program")
    return page


def rows(page: Page) -> list[list[str]]:
    found = page.locator(".sv-crow").all()
    return [row.locator("> td").all_inner_texts() for row in found]


def test_stages_and_changes_open_their_tables(page, tmp_path):
    opened(page, tmp_path, RESULTS)
    cells, shown = page.locator(".sv-stage"), page.get_by_label("Stages shown")
    names = ["requested", "propagated", "partitioned", "compiled"]
    assert cells.locator(".sv-stagename").all_inner_texts() == [n.upper() for n in names]
    states = [c.get_attribute("data-state") for c in cells.all()]
    assert states == ["live", "estimate", "live", "live"]
    expect(cells.nth(1).locator(".sv-stagetook")).to_have_text("35 ms")
    expect(cells.nth(3).locator(".sv-stagetext")).to_have_text("2 all-gather, 1 all-reduce")
    assert len({round(c.bounding_box()["y"]) for c in cells.all()}) == 1
    # Side by side every row shows what became of it.
    found = rows(page)
    assert len(found) == 3
    together = next(r for r in found if "3 all-reduce" in r[1])
    assert {"combined", "async"} <= set(together[3].split())
    loop = next(r for r in found if "× 12" in r[1])
    assert loop[1:4] == [loop[1]] * 3
    expect(page.locator(".sv-crow.sv-full")).to_have_count(1)
    # A click on a stage shows that stage, and a second click all of them.
    open_tab(page, "Memory")
    cells.nth(2).click()
    expect(page.get_by_role("tab", name="Collectives")).to_have_attribute("aria-selected", "true")
    expect(shown).to_have_value("2")
    assert len(rows(page)) == 5
    expect(cells.nth(2)).to_have_attribute("aria-pressed", "true")
    cells.nth(2).click()
    expect(shown).to_have_value("all")
    # A click on a mark shows the comparison.
    page.get_by_role("button", name="From partitioned to compiled").click()
    expect(shown).to_have_value("2-3")
    expect(page.locator(".sv-crow").first).to_contain_text("combined")


def test_keys_choose_a_collective_and_its_devices_axes_and_reason_show(page, tmp_path):
    opened(page, tmp_path, RESULTS)
    page.locator(".sv-stage").nth(1).click()
    page.locator(".sv-crow").first.focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.locator('.sv-crow[aria-selected="true"]')).to_have_count(1)
    side = page.get_by_label("The chosen collective")
    expect(side).to_contain_text(str(SUMS[2].cause))
    expect(side).to_contain_text("Device 0 takes part with 2, 4, 6, on hosts 0, 1.")
    expect(page.locator('.sv-chip.sv-participates[data-axis="data"]')).to_have_count(1)
    page.get_by_label("Devices", exact=True).focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    expect(side).to_contain_text("Device 1 takes part with 3, 5, 7, on hosts 0, 1.")
    page.locator('.sv-crow[aria-selected="true"]').focus()
    page.keyboard.press("Escape")
    expect(page.locator(".sv-chip.sv-participates")).to_have_count(0)


def test_what_is_older_than_the_program_says_so(page, tmp_path):
    opened(page, tmp_path, dataclasses.replace(RESULTS, plan_revision=-1, report_revision=-1))
    states = [c.get_attribute("data-state") for c in page.locator(".sv-stage").all()]
    assert states == ["live", "old", "old", "old"]
