"""The stages, what changed between them, and the tabs below: on saved pages, then live."""

import dataclasses
from pathlib import Path

from playwright.sync_api import Page, expect

from shardviz.widgets.explorer import Explorer
from shardviz.widgets.planner import StageResults
from shardviz.widgets.stages_view import saved_stages, stages_view
from shardviz.widgets.values_view import values_view
from tests.browser.test_explorer import OPEN, RUN_MS, type_into
from tests.browser.test_page import explorer
from tests.browser.views import open_tab, show_view
from tests.widgets.stage_examples import RESULTS, SUMS

NAMES = ("Requested", "Propagated", "Partitioned", "Compiled")


def opened(page: Page, folder: Path, results: StageResults, **edits: str) -> Page:
    made: Explorer = explorer(**edits)
    saved = saved_stages(stages_view(results)), values_view(results.plan, explanations=300)
    made._stages.saved = lambda *_: saved  # type: ignore[method-assign]
    made.answer = {**made.answer, "revision": 0}
    page.goto(made.save_html(folder / "page").as_uri())
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    show_view(page, "Program")
    return page


def rows(page: Page) -> list[list[str]]:
    found = page.locator(".sv-crow").all()
    return [row.locator("> td").all_inner_texts() for row in found]


def test_the_four_stages_are_in_a_row_with_time_sum_and_state(page, tmp_path):
    opened(page, tmp_path, RESULTS)
    cells = page.locator(".sv-stage")
    expect(cells).to_have_count(4)
    for i, name in enumerate(NAMES):
        expect(cells.nth(i).locator(".sv-stagename")).to_have_text(name.lower())
    states = [c.get_attribute("data-state") for c in cells.all()]
    assert states == ["live", "estimate", "live", "live"]
    expect(cells.nth(1).locator(".sv-stagetook")).to_have_text("35 ms")
    expect(cells.nth(3).locator(".sv-stagetext")).to_have_text("2 all-gather, 1 all-reduce")
    tops = {round(c.bounding_box()["y"]) for c in cells.all()}
    assert len(tops) == 1


def test_side_by_side_every_row_shows_what_became_of_it(page, tmp_path):
    opened(page, tmp_path, RESULTS)
    found = rows(page)
    assert len(found) == 3
    together = next(r for r in found if "3 all-reduce" in r[1])
    assert "combined" in together[3]
    assert "async" in together[3]
    loop = next(r for r in found if "× 12" in r[1])
    assert loop[1:4] == [loop[1]] * 3
    expect(page.locator(".sv-crow.sv-full")).to_have_count(1)
    expect(page.locator(".sv-fulltag").first).to_have_text("full rematerialisation")


def test_a_click_on_a_stage_shows_that_stage_and_a_second_click_all_of_them(page, tmp_path):
    opened(page, tmp_path, RESULTS)
    open_tab(page, "Memory")
    page.locator(".sv-stage").nth(2).click()
    expect(page.get_by_role("tab", name="Collectives")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_label("Stages shown")).to_have_value("2")
    assert len(rows(page)) == 5
    expect(page.locator(".sv-stage").nth(2)).to_have_attribute("aria-pressed", "true")
    page.locator(".sv-stage").nth(2).click()
    expect(page.get_by_label("Stages shown")).to_have_value("all")


def test_a_click_on_a_mark_shows_the_comparison(page, tmp_path):
    opened(page, tmp_path, RESULTS)
    page.get_by_role("button", name="From partitioned to compiled").click()
    expect(page.locator(".sv-crow").first).to_contain_text("combined")
    expect(page.locator(".sv-ctable")).to_contain_text("one large message takes less time")
    page.get_by_label("Stages shown").select_option("1-2")
    expect(page.locator(".sv-ctable")).to_contain_text("from propagated to partitioned")


def test_keys_choose_a_collective_and_its_devices_axes_and_reason_show(page, tmp_path):
    opened(page, tmp_path, RESULTS)
    page.locator(".sv-stage").nth(1).click()
    page.locator(".sv-crow").first.focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page.locator('.sv-crow[aria-selected="true"]')).to_have_count(1)
    side = page.get_by_label("The chosen collective")
    expect(side).to_contain_text("Device 0 takes part with")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
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
    expect(side).to_contain_text("Choose a collective")


def test_what_is_older_than_the_program_says_so(page, tmp_path):
    opened(page, tmp_path, dataclasses.replace(RESULTS, plan_revision=-1, report_revision=-1))
    states = [c.get_attribute("data-state") for c in page.locator(".sv-stage").all()]
    assert states == ["live", "old", "old", "old"]
    expect(page.locator(".sv-stagebadge").nth(3)).to_have_text("old")


def test_the_plan_follows_edits_by_itself_and_the_answer_replaces_the_estimate(lab):
    page = lab.open([OPEN], shared=True, width=1400, height=1400)
    show_view(page, "Program")
    cells = page.locator(".sv-stage")
    for i, state in ((1, "estimate"), (2, "live"), (3, "live")):
        expect(cells.nth(i)).to_have_attribute("data-state", state, timeout=RUN_MS)
    before = cells.nth(1).locator(".sv-stagemore").inner_text()
    type_into(page, "Mesh axes", "data=2, model=2")
    expect(cells.nth(1)).to_have_attribute("data-state", "estimate", timeout=RUN_MS)
    expect(cells.nth(1).locator(".sv-stagemore")).not_to_have_text(before, timeout=RUN_MS)
    expect(cells.nth(2)).to_have_attribute("data-state", "live", timeout=RUN_MS)
    expect(cells.nth(2)).to_contain_text("CPU × 4")
    open_tab(page, "Values")
    page.get_by_role("treegrid", name="Values").focus()
    for key in ("End", "Enter"):
        page.keyboard.press(key)
    expect(page.get_by_label("Why this sharding")).to_contain_text("Why", timeout=RUN_MS)
