"""The Explorer in JupyterLab, driven as a person would: one notebook, undone before each test."""

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab import OPEN
from tests.browser.views import (
    SETTLED,
    ask_kernel,
    full_screen_and_back,
    open_tab,
    play_largest,
    press_button,
    show_control,
    show_view,
    type_into,
)

RUN_MS = 120_000


@pytest.fixture(scope="module")
def notebook(module_lab) -> Page:
    page = module_lab.open([OPEN, "1 + 1"], shared=True, width=1400, height=1200)
    page.wait_for_selector(SETTLED)
    return page


@pytest.fixture
def screen(notebook) -> Page:
    ask_kernel(notebook, "sum(iter(explorer.session.undo, False))")
    notebook.wait_for_selector(SETTLED)
    show_view(notebook, "Layout")
    return notebook


def error_at(page: Page, label: str) -> str:
    field = page.get_by_label(label, exact=True)
    return field.evaluate(
        "e => document.getElementById(e.getAttribute('aria-describedby'))?.textContent ?? ''"
    )


def test_every_control_of_the_contract_can_be_found_by_its_name(screen):
    for label in (
        "Mesh axes", "Target", "Array shape", "Logical axes", "PartitionSpec", "Rules", "Dialect",
        "Program", "Devices", "Array",
    ):  # fmt: skip
        expect(screen.get_by_label(label, exact=True)).to_have_count(1)
        show_control(screen, label)
        expect(screen.get_by_label(label, exact=True)).to_be_visible()
    show_view(screen, "Program")
    for name in ("Compile", "Run"):
        expect(screen.get_by_role("button", name=name, exact=True)).to_be_enabled()


def test_an_edit_reaches_the_kernel_and_comes_back(screen):
    field = screen.get_by_label("Mesh axes", exact=True)
    field.fill("")
    field.press_sequentially("data=2, model=8", delay=5)
    expect(screen.locator(".sv-count")).to_contain_text("16 devices")
    assert field.input_value() == "data=2, model=8"
    assert ask_kernel(screen, "explorer.session.mesh.size") == 16
    type_into(screen, "Array shape", "64, 4096")
    expect(screen.locator(".sv-title")).to_have_text("w_in  f32[64, 4096]")
    type_into(screen, "PartitionSpec", "model, data")
    expect(screen.locator(".sv-selected .sv-warn")).to_contain_text("overrides the rules")
    show_view(screen, "Rules")
    screen.get_by_label("Dialect", exact=True).select_option("nnx")
    screen.wait_for_selector(SETTLED)
    expect(screen.locator(".sv-rulerow").first).to_be_visible()
    assert ask_kernel(screen, "explorer.session.program.dialect.value") == "nnx"


def test_an_error_is_shown_at_its_field_and_the_picture_stays(screen):
    title = screen.locator(".sv-title").text_content()
    labels = ("Mesh axes", "Array shape", "Logical axes", "PartitionSpec", "Rules", "Hosts")
    good = {n: screen.get_by_label(n, exact=True).input_value() for n in labels}
    for label, text in (
        ("Mesh axes", "data=4, model=two"),
        ("Array shape", "512, x"),
        ("Logical axes", "embed"),
        ("PartitionSpec", "P(data"),
        ("Rules", "batch -> data\nmlp"),
        ("Hosts", "3"),
    ):
        type_into(screen, label, text)
        assert error_at(screen, label), label
        assert screen.locator(".sv-title").text_content() == title
        assert screen.get_by_label(label, exact=True).input_value() == text
        type_into(screen, label, good[label])
        assert error_at(screen, label) == ""
    assert ask_kernel(screen, "explorer.session.mesh.size") == 8


# Clicks in one task of the browser, before the kernel has answered the first.
CLICKS = """
async ([label, count]) => {
  for (let i = 0; i < count; i++) document.querySelector(`[aria-label="${label}"]`).click();
}
"""
TYPED_BETWEEN = """() => {
  const at = (label) => document.querySelector(`[aria-label="${label}"]`);
  const type = (text) => {
    at("Array name").value = text;
    at("Array name").dispatchEvent(new InputEvent("input", { bubbles: true }));
  };
  for (const text of ["b", "bi", "bia"]) type(text);
  at("Add an array").click();
  at("Remove the selected array").click();
  type("bias");
}"""


def test_every_click_of_one_task_counts(screen):
    def click(label: str, count: int) -> None:
        screen.evaluate(CLICKS, [label, count])
        screen.wait_for_selector(SETTLED)

    click("Add a mesh axis", 3)
    shape = {"data": 4, "model": 2, "expert": 2, "stage": 2, "seq": 2}
    assert ask_kernel(screen, "dict(explorer.session.mesh.shape)") == shape
    click("Remove axis seq", 1)
    click("Remove axis data", 1)
    field = screen.get_by_label("Mesh axes", exact=True)
    expect(field).to_have_value("model=2, expert=2, stage=2")
    click("Add an array", 50)
    assert ask_kernel(screen, "len(explorer.session.arrays)") == 53
    click("Remove the selected array", 49)
    screen.evaluate(TYPED_BETWEEN)
    screen.wait_for_selector(SETTLED)
    names = ask_kernel(screen, "[a.name for a in explorer.session.arrays]")
    assert names == ["w_in", "w_out", "x", "bias"]


def test_tasks_take_few_actions(screen):
    # A mesh of three axes: 1.
    screen.get_by_label("Add a mesh axis").click()
    expect(screen.locator(".sv-count")).to_contain_text("16 devices")
    screen.get_by_role("button", name="Undo").click()
    expect(screen.locator(".sv-count")).to_contain_text("8 devices")
    # A wrong name of a dimension: found and repaired in 2.
    type_into(screen, "Logical axes", "embed mpl")
    screen.get_by_role("button", name="Fix…").click()
    repair = screen.get_by_role("button", name="Apply: ").filter(has_text="Apply")
    expect(repair.first).to_be_visible()
    names = [b.get_attribute("aria-label") for b in repair.all()]
    repair.nth(next(i for i, name in enumerate(names) if "mlp" in name)).click()
    screen.wait_for_selector(SETTLED)
    # One undo takes the remedy back, whatever it changed; redo makes it again.
    for name, logical in (("Undo", ["embed", "mpl"]), ("Redo", ["embed", "mlp"])):
        screen.get_by_role("button", name=name).click()
        screen.wait_for_selector(SETTLED)
        assert ask_kernel(screen, "explorer.session.arrays[0].logical") == logical


def rules_text(page: Page) -> list[str]:
    return page.get_by_label("Rules", exact=True).input_value().splitlines()


def test_rules_are_reordered_by_keys_and_by_dragging(screen):
    show_view(screen, "Rules")
    before = rules_text(screen)
    screen.get_by_label("Rules", exact=True).focus()
    for keys in ("Control+End", "Alt+ArrowUp"):
        screen.keyboard.press(keys)
    screen.wait_for_selector(SETTLED)
    assert rules_text(screen) == [*before[:3], before[4], before[3]]
    handle = screen.locator(".sv-number")
    handle.nth(4).hover()
    screen.mouse.down()
    box = handle.first.bounding_box()
    screen.mouse.move(box["x"] + 5, box["y"] + 2, steps=5)
    screen.mouse.up()
    screen.wait_for_selector(SETTLED)
    assert rules_text(screen)[0] == before[3]
    for keys in ("Control+z", "Control+z"):
        screen.keyboard.press(keys)
        screen.wait_for_selector(SETTLED)
    assert rules_text(screen) == before
    screen.keyboard.press("Control+Shift+z")
    screen.wait_for_selector(SETTLED)
    assert rules_text(screen) != before


def test_the_plan_follows_edits_and_a_run_is_checked_and_becomes_stale(screen):
    show_view(screen, "Program")
    cells = screen.locator(".sv-stage")
    for i, state in ((1, "estimate"), (2, "live"), (3, "live")):
        expect(cells.nth(i)).to_have_attribute("data-state", state, timeout=RUN_MS)
    before = cells.nth(1).get_attribute("title")
    type_into(screen, "Mesh axes", "data=2, model=2")
    expect(cells.nth(1)).not_to_have_attribute("title", before, timeout=RUN_MS)
    expect(cells.nth(2)).to_have_attribute("title", re.compile("CPU × 4"), timeout=RUN_MS)
    press_button(screen, "Run")
    expect(screen.locator(".sv-status")).to_contain_text("checks passed", timeout=RUN_MS)
    expect(cells.nth(3)).to_have_attribute("title", re.compile("all-reduce"))
    expect(cells.nth(4)).to_contain_text("✓")
    open_tab(screen, "Checks")
    checks = screen.get_by_label("Checks", exact=True)
    assert set(checks.locator("td:first-child").all_inner_texts()) == {"✓"}
    expect(screen.locator(".sv-body")).to_contain_text("No side effects", timeout=RUN_MS)
    open_tab(screen, "Memory")
    expect(screen.locator(".sv-body")).to_contain_text("arguments")
    open_tab(screen, "Values")
    screen.get_by_role("treegrid", name="Values").focus()
    for key in ("End", "Enter"):
        screen.keyboard.press(key)
    expect(screen.get_by_label("Why this sharding")).to_contain_text("Why", timeout=RUN_MS)
    type_into(screen, "Array shape", "512, 4096")
    expect(screen.locator(".sv-status")).to_contain_text("Out of date")


def test_the_player_follows_edits(screen):
    type_into(screen, "Mesh axes", "data=4, model=2")
    open_tab(screen, "Collectives")
    screen.locator(".sv-crow").first.wait_for(timeout=60_000)
    assert play_largest(screen)
    title = screen.locator(".sv-ptitle")
    expect(title).to_contain_text("over model, 2 devices, ring")
    screen.locator(".sv-movementbox").focus()
    screen.keyboard.press("Escape")
    expect(screen.locator(".sv-player")).to_have_count(0)
    assert play_largest(screen)
    type_into(screen, "Mesh axes", "data=2, model=4")
    expect(title).to_contain_text("over model, 4 devices")


def test_the_notebook_keeps_text_and_a_picture_and_a_page_is_saved(screen):
    outputs = screen.evaluate(
        "window.jupyterapp.shell.currentWidget.content.widgets[0].model.outputs.toJSON()"
    )
    live, kept = (o["data"] for o in outputs if "data" in o)
    assert kept["image/png"].startswith("iVBOR")
    assert "w_in" in json.dumps(kept["text/plain"])
    assert "application/vnd.jupyter.widget-view+json" in live
    # One of an output's forms is shown, and never the picture where it is beside the live view.
    assert "image/png" not in live
    expect(screen.locator(".jp-Cell").first.locator(".jp-RenderedImage")).to_be_hidden()
    with screen.expect_download() as download:
        screen.get_by_role("button", name="Save page").click()
    text = download.value.path().read_text()
    assert text.startswith("<!doctype html>")
    assert "w_in" in text
    full_screen_and_back(screen)
