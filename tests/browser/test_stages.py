"""The stages, what changed between them, and the tabs below: on saved pages, then live."""

import dataclasses
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from shardviz.core.program.report import Failure, Report
from shardviz.gallery import programs
from shardviz.widgets.explorer import Explorer
from shardviz.widgets.planner import StageResults
from shardviz.widgets.stages_view import saved_stages, stages_view
from shardviz.widgets.values_view import values_view
from tests.browser.test_explorer import OPEN, RUN_MS, ask_kernel, type_into
from tests.browser.test_page import explorer
from tests.browser.views import open_tab, show_view
from tests.widgets.stage_examples import BAD, PLAN, REFUSED, RESULTS, SUMS

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


def test_a_collective_leads_to_its_value(page, tmp_path):
    opened(page, tmp_path, RESULTS)
    page.locator(".sv-crow", has_text="× 12").click()
    page.get_by_role("button", name="Show dot_general in Values").click()
    expect(page.get_by_role("tab", name="Values")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("treegrid", name="Values")).to_contain_text("dot_general")
    expect(page.locator(".sv-vpicked")).to_contain_text("dot_general")


def test_what_is_older_than_the_program_says_so(page, tmp_path):
    opened(page, tmp_path, dataclasses.replace(RESULTS, plan_revision=-1, report_revision=-1))
    states = [c.get_attribute("data-state") for c in page.locator(".sv-stage").all()]
    assert states == ["live", "old", "old", "old"]
    expect(page.locator(".sv-stagebadge").nth(3)).to_have_text("old")


def test_memory_beyond_what_the_device_has_is_shown_as_such(page, tmp_path):
    opened(page, tmp_path, RESULTS)
    open_tab(page, "Memory")
    bar = page.get_by_role("img", name=re.compile("24 GiB"))
    expect(bar).to_be_visible()
    expect(page.locator(".sv-memcap")).to_have_count(1)
    expect(page.locator(".sv-body")).to_contain_text("flops 1.5 T")


def test_a_refused_program_shows_its_legal_choices_and_their_price(page, tmp_path):
    opened(page, tmp_path, StageResults(REFUSED, 0))
    expect(page.locator('.sv-stage[data-state="failed"]')).to_contain_text("refused: see why")
    page.locator(".sv-stage").nth(1).click()
    body = page.locator(".sv-body")
    expect(body).to_contain_text("Both sides contract over model")
    expect(body).to_contain_text(str(REFUSED.diagnosis.choices[1].out_sharding))
    assert page.locator(".shardviz-explorer img").count() == 0
    assert BAD in body.inner_text()


def test_a_failed_compile_says_why_once(page, tmp_path):
    failed = Report("block", "", error=Failure("worker", f"The worker was killed {BAD}."))
    opened(page, tmp_path, StageResults(PLAN, 0, failed, 0))
    expect(page.locator(".sv-failure")).to_have_count(1)
    expect(page.locator(".sv-failure")).to_contain_text("The worker was killed <img")


NONE_NEEDED = "No collectives: no device needs another's data."


def test_an_edit_leaves_the_old_stages_in_rows_of_their_own(page, tmp_path):
    less = dataclasses.replace(PLAN, collectives=PLAN.collectives[:1])
    opened(page, tmp_path, dataclasses.replace(RESULTS, plan=less, report_revision=-1))
    found = rows(page)
    estimated = [row for row in found if row[1].strip()]
    assert [(row[0].strip(), row[2].strip(), row[3].strip()) for row in estimated] == [
        ("256 KiB", "", "")
    ]
    assert len(found) > 1
    expect(page.locator(".sv-crow .sv-cbytes.sv-faded")).to_have_count(len(found) - 1)


@pytest.mark.parametrize("shown", ["all", "1", "2"])
def test_a_failed_plan_says_nothing_of_collectives(page, tmp_path, shown):
    quiet = Report("block", "cpu", partitioned=(), collectives=(), compile_s=1.0)
    opened(page, tmp_path, StageResults(REFUSED, 0, quiet, -1))
    if shown != "all":
        page.get_by_label("Stages shown").select_option(shown)
    else:
        expect(page.locator(".sv-failure")).to_have_count(1)
    assert NONE_NEEDED not in page.locator(".sv-body").inner_text()


def test_what_has_no_collectives_says_so(page, tmp_path):
    quiet = Report("block", "cpu", partitioned=(), collectives=(), compile_s=1.0)
    plan = dataclasses.replace(PLAN, collectives=())
    opened(page, tmp_path, StageResults(plan, 0, quiet, 0))
    expect(page.locator(".sv-body")).to_contain_text(NONE_NEEDED)


def test_checks_of_a_described_target_ask_for_nothing_that_cannot_be_done(page, tmp_path):
    described = {"mesh": "data=4, model=4", "target": "tpu:v5e:4x4"}
    opened(page, tmp_path, dataclasses.replace(RESULTS, target="tpu:v5e:4x4"), **described)
    open_tab(page, "Checks")
    expect(page.locator(".sv-body")).to_contain_text("described and not attached")
    assert "ress Run" not in page.locator(".sv-body").inner_text()


def test_notes_about_the_target_are_above_the_table(page, tmp_path):
    opened(page, tmp_path, RESULTS)
    expect(page.locator(".sv-ctable")).to_contain_text("The torus refuses this mesh")


def test_nothing_overflows_at_any_width(page, tmp_path):
    opened(page, tmp_path, RESULTS)
    for tab in ("Collectives", "Memory", "Values"):
        open_tab(page, tab)
        for width in (420, 700, 1400):
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate("() => new Promise((done) => requestAnimationFrame(() => done()))")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            right = page.locator(".shardviz-explorer").evaluate(RIGHT)
            for part in page.locator(PARTS).all():
                assert part.evaluate(RIGHT) <= right, (tab, width)


RIGHT = "e => e.getBoundingClientRect().right"
PARTS = (
    ".sv-stages, .sv-tabs, .sv-body, .sv-program > .sv-headrow, .sv-stage, .sv-tab,"
    " .sv-program .sv-primary"
)


def test_the_table_beside_its_details_is_never_cut_off(page, tmp_path):
    opened(page, tmp_path, RESULTS)
    open_tab(page, "Collectives")
    for width in range(860, 1601, 60):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => done()))")
        hidden = page.locator(".sv-ctable").evaluate("e => e.scrollWidth - e.clientWidth")
        assert hidden <= 1, width


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


def test_a_target_that_does_not_fit_offers_a_mesh_that_does(lab):
    page = lab.open([OPEN], shared=True, width=1400, height=1400)
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    page.get_by_label("Target", exact=True).select_option("tpu:v5e:4x4")
    expect(page.locator(".sv-targetnote")).to_contain_text("has 16 devices and the mesh has 8")
    page.get_by_role("button", name="Take data=8, model=2").click()
    expect(page.locator(".sv-count")).to_contain_text("16 devices · 4 hosts")
    expect(page.locator(".sv-targetnote")).to_be_empty()
    # Nothing is compiled for it yet; what was compiled for CPUs, if it was quick enough, is old.
    partitioned = page.locator(".sv-stage").nth(2)
    expect(partitioned).to_have_attribute("data-state", re.compile("none|old"), timeout=RUN_MS)
    page.get_by_label("Target", exact=True).select_option("…")
    typed = page.get_by_label("Target by name")
    typed.fill("tpu:v5e:4xfour")
    typed.press("Enter")
    expect(page.locator(".sv-bar .sv-error:not(:empty)")).to_have_count(1)
    expect(typed).to_be_visible()
    typed.fill("cpu:32")
    expect(page.locator(".sv-bar .sv-error:not(:empty)")).to_have_count(0)
    typed.press("Enter")
    # The menu says what was typed, and has the keyboard.
    expect(typed).to_be_hidden()
    expect(page.get_by_label("Target", exact=True)).to_have_value("cpu:32")
    expect(page.get_by_label("Target", exact=True)).to_be_focused()
    assert ask_kernel(page, "explorer.session.now.target") == "cpu:32"
    assert ask_kernel(page, "explorer.session.now.entry") == programs.DEFAULT
