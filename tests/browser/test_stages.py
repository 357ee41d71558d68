"""The stages, what changed between them, and the table below, on saved pages."""

import dataclasses
import threading
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import shardviz as sv
from shardviz.base.collective import Member
from shardviz.compiled.checks import Check
from shardviz.compiled.panel.stages_view import saved_stages, stages_view
from shardviz.compiled.report import Memory, Report
from shardviz.compiled.roofline import roofline
from shardviz.compiled.words import stages as wording
from shardviz.compiled.words.roofline import time_text
from shardviz.explorer.explorer import Explorer, open_explorer
from shardviz.explorer.planner import StageResults
from shardviz.explorer.session import Session
from shardviz.gallery import programs
from shardviz.hardware.targets import Target
from shardviz.hardware.topology import Topology
from shardviz.plans.panel.values_view import values_view
from shardviz.programs.failure import Failure
from shardviz.runs.cache import ExecutableCache
from tests.browser import views
from tests.browser.test_contract import Kernel
from tests.browser.views import explorer, open_tab, show_view
from tests.widgets.stage_examples import MESH, PLAN, REPORT, RESULTS, SUMS
from tests.widgets.test_stages_view import layer_sums


def opened(page: Page, folder: Path, results: StageResults) -> Page:
    made = explorer()
    stages, values = saved_stages(stages_view(results)), values_view(results.plan, explanations=300)
    made.stages.saved_stages = lambda: stages  # type: ignore[method-assign]
    made.stages.saved_values = lambda: values  # type: ignore[method-assign]
    made.answer = {**made.answer, "revision": 0}
    views.opened(page, made, folder)
    show_view(page, "Program")
    return page


def rows(page: Page) -> list[list[str]]:
    found = page.locator(".sv-crow").all()
    return [row.locator("> td").all_inner_texts() for row in found]


def many(**more) -> StageResults:
    """24 collectives that were all estimated, three of which were combined; 27 checks passed."""
    some = tuple(
        dataclasses.replace(SUMS[0], source=f"block.py:{i}", bytes_per_device=(60 - i) << 10)
        for i in range(24)
    )
    members = tuple(Member(c.op, c.source, c.bytes_per_device) for c in some[:12])
    both = dataclasses.replace(
        some[0], bytes_per_device=sum(m.bytes_per_device for m in members), members=members
    )
    report = REPORT.replace(
        partitioned=some,
        collectives=(both, *some[12:]),
        mesh=MESH,
        run_s=0.01,
        checks=tuple(Check(f"check {i}", True, "") for i in range(27)),
        **more,
    )
    report = report.replace(roofline=roofline(report, "tpu:v5e:2x4", MESH, PLAN))
    plan = dataclasses.replace(PLAN, collectives=some)
    return dataclasses.replace(RESULTS, plan=plan, report=report)


SEEN = """e => {
  const [box, root] = [e, e.closest(".shardviz-explorer")].map(n => n.getBoundingClientRect());
  const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
  const there = document.elementFromPoint(x, y);
  return box.width > 0 && box.height > 0 && (e === there || e.contains(there))
    && e.scrollWidth <= e.clientWidth + 1 && e.scrollHeight <= e.clientHeight + 1
    && box.right <= root.right && box.bottom <= root.bottom;
}"""


def test_at_848_pixels_the_stages_the_headline_and_12_collectives_are_in_sight(page, tmp_path):
    page.set_viewport_size({"width": 848, "height": 620})
    results = many()
    opened(page, tmp_path, results)
    open_tab(page, "Collectives")
    words = page.locator(".sv-changetext")
    assert words.all_inner_texts() == [
        "1 value sharded",
        "estimate was right",
        "12 combined into 1",
    ]
    stages = page.locator(".sv-stage > span")
    assert stages.all_inner_texts()[-2:] == ["ran", "✓ 27 of 27"]
    for one in (*words.all(), *stages.all(), *page.locator(".sv-hfacts > *").all()):
        assert one.evaluate(SEEN), one.inner_text()
    table = page.locator(".sv-ctable").bounding_box()
    bottoms = [r.bounding_box()["y"] + r.bounding_box()["height"] for r in row_nodes(page)]
    assert sum(b <= table["y"] + table["height"] for b in bottoms) >= 12
    assert not page.get_by_label("Devices", exact=True).is_visible()
    page.set_viewport_size({"width": 1500, "height": 900})
    expect(page.get_by_label("Devices", exact=True)).to_be_visible()
    expect(page.get_by_label("Array", exact=True)).not_to_be_visible()


def row_nodes(page: Page):
    return page.locator(".sv-crow").all()


def test_the_bars_are_the_parts_of_the_roofline_and_open_their_operations(page, tmp_path):
    results = many()
    found = results.report.roofline
    opened(page, tmp_path, results)
    head = page.get_by_role("group", name="Least time")
    expect(head).to_contain_text(f"≥ {time_text(found.seconds)}")
    bars = head.locator(".sv-hbar")
    assert [bar.get_attribute("aria-label") for bar in bars.all()] == [
        f"{wording.PARTS[name]}: at least {time_text(found.parts[name])}" for name in wording.PARTS
    ]
    widths = [bar.bounding_box()["width"] for bar in head.locator(".sv-fill").all()]
    longest = max(widths)
    for width, name in zip(widths, wording.PARTS, strict=True):
        assert abs(width - longest * found.parts[name] / found.seconds) < 3, name
    bars.nth(1).click()
    expect(page.get_by_role("tab", name="Timeline")).to_have_attribute("aria-selected", "true")
    # The longest operation that memory bounds is chosen.
    expect(page.locator(".sv-tlchosen")).to_contain_text("bound by HBM")
    bars.first.click()
    expect(page.get_by_role("tab", name="Collectives")).to_have_attribute("aria-selected", "true")


def test_without_rates_a_saved_page_has_those_of_a_suggested_chip(page, tmp_path):
    opened(page, tmp_path, RESULTS)
    head = page.get_by_role("group", name="Least time")
    expect(head).to_contain_text("TPU v5e 2×4, from the plan")
    assert head.locator(".sv-hbar").count() == 3
    # Nothing can be chosen without a kernel.
    assert head.get_by_role("button", name="Choose this target").count() == 0


def test_stages_and_changes_open_their_tables(page, tmp_path):
    opened(page, tmp_path, RESULTS)
    open_tab(page, "Collectives")
    cells = page.locator(".sv-stage")
    names = ["requested", "propagated", "partitioned", "compiled", "ran"]
    assert cells.locator(".sv-stagename").all_inner_texts() == names
    states = [c.get_attribute("data-state") for c in cells.all()]
    assert states == ["live", "estimate", "live", "live", "none"]
    expect(cells.nth(3).locator(".sv-stagetext")).to_have_text("3 · 4.4 MiB")
    assert len({round(c.bounding_box()["y"]) for c in cells.all()}) == 1
    # The latest stage; every row says what became of it.
    expect(cells.nth(3)).to_have_attribute("aria-pressed", "true")
    found = rows(page)
    assert len(found) == 3
    assert any(r[3] == "3 into 1; async" for r in found)
    assert any(r[1].startswith("all-gather × 12") and r[3] == "as planned" for r in found)
    assert any("full rematerialisation" in r[3] for r in found)
    # A click on a stage shows that stage, and a second click the latest again.
    open_tab(page, "Memory")
    cells.nth(2).click()
    expect(page.get_by_role("tab", name="Collectives")).to_have_attribute("aria-selected", "true")
    assert len(rows(page)) == 5
    expect(cells.nth(2)).to_have_attribute("aria-pressed", "true")
    cells.nth(2).click()
    expect(cells.nth(3)).to_have_attribute("aria-pressed", "true")
    # A click on the words between two stages shows the comparison.
    change = page.get_by_role("button", name="From partitioned to compiled")
    change.click()
    expect(change).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".sv-crow").first).to_contain_text("combined")


def test_keys_choose_a_collective_and_its_devices_axes_and_reason_show(page, tmp_path):
    page.set_viewport_size({"width": 1400, "height": 900})
    opened(page, tmp_path, RESULTS)
    page.locator(".sv-stage").nth(1).click()
    page.locator(".sv-crow").first.focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.locator('.sv-crow[aria-selected="true"]')).to_have_count(1)
    strip = page.get_by_label("The chosen collective")
    expect(strip).to_contain_text(str(SUMS[2].cause))
    expect(strip).to_contain_text("Device 0 takes part with devices 2, 4, 6, on hosts 0, 1.")
    expect(page.locator('.sv-chip.sv-participates[data-axis="data"]')).to_have_count(1)
    page.get_by_label("Devices", exact=True).focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    expect(strip).to_contain_text("Device 1 takes part with devices 3, 5, 7, on hosts 0, 1.")
    page.locator('.sv-crow[aria-selected="true"]').focus()
    page.keyboard.press("Escape")
    expect(page.locator(".sv-chip.sv-participates")).to_have_count(0)
    expect(strip).not_to_be_visible()


def alike(page: Page, folder: Path) -> Page:
    """A page with two sums over model in each of 8 layers, and one over data; only planned."""
    plan = dataclasses.replace(PLAN, collectives=layer_sums(8))
    return opened(page, folder, StageResults(plan, 0))


def test_a_row_of_all_layers_expands_with_the_mouse_and_the_keys(page, tmp_path):
    page.set_viewport_size({"width": 848, "height": 620})
    alike(page, tmp_path)
    open_tab(page, "Collectives")
    found = rows(page)
    assert [r[0] for r in found] == ["16 MiB", "3 MiB"]
    assert found[0][1:] == ["all-reduce × 16▸", "model", "block.py:59, 67 einsum"]
    # Without a compile there is no column for what became of them.
    assert page.locator(".sv-ctable th").all_inner_texts() == [
        "sent per step", "collective", "over", "from",
    ]  # fmt: skip
    bar = page.locator(".sv-crow .sv-fill").first
    axis = page.locator(".sv-crow .sv-axisdot").first
    colour = axis.evaluate("e => getComputedStyle(e).backgroundColor")
    assert colour in bar.evaluate("e => getComputedStyle(e).backgroundImage")
    each = page.get_by_role("button", name="Each of 16")
    each.click()
    expect(each).to_have_attribute("aria-expanded", "true")
    assert len(rows(page)) == 18
    expect(page.get_by_label("The chosen collective")).to_be_hidden()
    page.locator(".sv-crow").first.focus()
    page.keyboard.press("ArrowLeft")
    assert len(rows(page)) == 2
    page.keyboard.press("ArrowRight")
    assert len(rows(page)) == 18
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    # The member's row is marked, not that of its group.
    expect(page.locator(".sv-crow").nth(1)).to_have_attribute("aria-selected", "true")
    expect(page.locator(".sv-crow[aria-selected=true]")).to_have_count(1)
    strip = page.get_by_label("The chosen collective")
    expect(strip).to_contain_text("1 of 16 alike")
    page.get_by_role("button", name="Each of 16").click()
    expect(page.locator(".sv-crow").first).to_have_attribute("aria-selected", "true")


def test_collectives_of_a_compile_name_its_devices_beside_least_times_of_the_plan(page, tmp_path):
    opened(page, tmp_path, RESULTS)
    headline = page.get_by_role("group", name="Least time")
    expect(headline).to_contain_text("TPU v5e 2×4, from the plan")
    compiled = f"compiled for {REPORT.target}"
    open_tab(page, "Collectives")
    table = page.locator(".sv-ctable")
    expect(table).to_contain_text(compiled)
    page.locator(".sv-crow").first.click()
    strip = page.get_by_label("The chosen collective")
    expect(strip).to_contain_text(compiled)
    open_tab(page, "Timeline")
    expect(strip).to_contain_text(compiled)
    # The bar of the headline opens the collectives that it adds up.
    headline.locator(".sv-hbar").first.click()
    expect(table).to_contain_text("from the plan")
    assert len(rows(page)) == len(PLAN.collectives)
    page.locator(".sv-crow").first.click()
    expect(strip).to_contain_text("from the plan")
    page.get_by_role("button", name="From partitioned to compiled").click()
    expect(page.locator(".sv-ctable th").last).to_have_text(f"from partitioned to {compiled}")


def test_all_causes_of_a_combined_collective_can_be_read(page, tmp_path):
    page.set_viewport_size({"width": 848, "height": 620})
    opened(page, tmp_path, RESULTS)
    open_tab(page, "Collectives")
    page.locator(".sv-crow").filter(has_text="3 into 1").click()
    strip = page.get_by_label("The chosen collective")
    expect(strip.get_by_text(str(SUMS[2].cause))).to_be_visible()
    strip.get_by_text("And 2 more").click()
    for one in SUMS[:2]:
        cause = strip.get_by_text(str(one.cause))
        cause.scroll_into_view_if_needed()
        assert cause.evaluate("e => e.scrollWidth <= e.clientWidth")


def test_what_is_older_than_the_program_says_so(page, tmp_path):
    opened(page, tmp_path, dataclasses.replace(RESULTS, plan_revision=-1, report_revision=-1))
    states = [c.get_attribute("data-state") for c in page.locator(".sv-stage").all()]
    assert states == ["live", "old", "old", "old", "none"]
    assert "Out of date: compile again" in page.locator(".sv-stage").nth(3).get_attribute("title")
    expect(page.locator(".sv-status")).to_have_text("Out of date: compile again")


def test_a_run_shows_how_many_checks_passed(page):
    session = Session(programs.get(), programs.DEFAULT)
    session.edit("target", "cpu:8")
    assert session.now.errors == {}
    made = Explorer(session, ExecutableCache())
    kernel = Kernel(page, made=made)
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    show_view(page, "Program")
    kernel.answer()
    ran = page.locator(".sv-stage").last
    expect(ran).to_contain_text("not run yet")
    page.get_by_role("button", name="Run", exact=True).click()
    kernel.answer()
    made.wait(120)
    kernel.push()
    assert made.report.ok, made.report
    count = len(made.report.checks)
    passed = sum(check.ok is True for check in made.report.checks)
    assert count > 3
    expect(ran).to_contain_text(f"✓ {passed} of {count}")
    ran.click()
    expect(page.locator(".sv-body")).to_contain_text(f"{passed} of {count} checks passed")
    kernel.answer()
    made.wait(60)
    kernel.push()
    expect(page.locator(".sv-body")).to_contain_text(
        "No side effects: safe on any number of devices."
    )
    made.close()


def test_a_failed_compile_is_said_beside_the_estimate(page, tmp_path):
    failed = Report("f", "t", error=Failure("compile", "It needs too much.", "block.py:12"))
    opened(page, tmp_path, dataclasses.replace(RESULTS, report=failed))
    open_tab(page, "Collectives")
    expect(page.get_by_role("alert").filter(has_text="It needs too much.")).to_be_visible()
    assert len(rows(page)) == len(PLAN.collectives)
    states = [c.get_attribute("data-state") for c in page.locator(".sv-stage").all()]
    assert states == ["live", "estimate", "failed", "failed", "none"]


def too_large() -> Explorer:
    """An Explorer on a program that was compiled for TPU v5e, where it does not fit."""
    x = sv.array("x", (1 << 13, 1 << 13), spec="data", dtype="bfloat16")
    program = sv.program(lambda x: x @ x, x, mesh="data=4")
    topology = Topology.parse("tpu:v5e:2x2")
    on = Target("described", "tpu", 4, str(topology))
    memory = Memory(temporaries=20 << 30, capacity=16 << 30)
    cost = {"flops": 1e12, "bytes accessed": 1e9}
    report = Report("f", str(on), collectives=(), memory=memory, cost=cost, mesh=program.mesh)
    report = report.replace(roofline=roofline(report, topology, program.mesh))
    return open_explorer(report.replace(of=program, on=on), ExecutableCache())


@pytest.mark.parametrize(
    ("field", "value"), [("target", "tpu:v5p:2x2x1"), ("mesh", "data=2, model=2")]
)
def test_an_edit_drops_the_old_verdict_and_shows_that_of_the_plan(page, field, value):
    made = too_large()
    kernel = Kernel(page, made=made)
    headline = page.get_by_role("group", name="Least time")
    expect(headline.locator(".sv-bad")).to_have_text("needs 20 GiB of 16 GiB")
    made.wait(60)
    kernel.answer()
    expect(headline.locator(".sv-bad")).to_have_count(1)
    # The page hears of the edit before anything is planned.
    planned = threading.Event()
    plan, made.planner._plans._work = made.planner._plans._work, lambda *_: planned.wait(60)
    made.session.edit(field, value)
    kernel.push()
    expect(headline.locator(".sv-bad")).to_have_count(0)
    expect(headline).not_to_contain_text("20 GiB")
    made.planner._plans._work = plan
    planned.set()
    made.planner._requested = None
    made.follow()
    made.wait(60)
    kernel.answer()
    made.wait(60)
    kernel.answer()
    expect(headline).to_contain_text("needs about ")
    expect(headline).to_contain_text("≥ ")
    made.close()


def test_a_report_that_failed_opens_with_its_error_in_sight(page):
    x = sv.array("x", (64, 64), spec="data")
    program = sv.program(lambda x: x @ x, x, mesh="data=4")
    error = Failure("compile", "XLA ran out of memory.", "step.py:3")
    on = Target("described", "tpu", 4, "tpu:v5e:2x2")
    report = Report("f", "t", error=error, of=program, on=on)
    made = open_explorer(report, ExecutableCache())
    kernel = Kernel(page, made=made)
    expect(page.get_by_role("alert")).to_contain_text(error.message)
    made.wait(60)
    kernel.answer()
    expect(page.get_by_role("alert")).to_contain_text(error.message)
    made.close()
