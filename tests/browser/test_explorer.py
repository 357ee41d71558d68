"""The Explorer in JupyterLab, driven as a person would."""

import json

import pytest
from playwright.sync_api import Page, expect

from tests.browser.views import open_tab, press_button, show_control, show_view

OPEN = "import shardviz as sv\nexplorer = sv.explore()\nexplorer"
RUN_MS = 120_000


@pytest.fixture
def screen(lab) -> Page:
    page = lab.open([OPEN, "1 + 1"], shared=True, width=1400, height=1200)
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    return page


def type_into(page: Page, label: str, text: str) -> None:
    show_control(page, label)
    page.get_by_label(label, exact=True).fill(text)
    page.wait_for_selector('.shardviz-explorer[data-settled="true"]')


def ask_kernel(page: Page, expression: str) -> object:
    """What an expression gives in the notebook's kernel, through JSON."""
    return page.evaluate(
        """async (code) => {
          const panel = window.jupyterapp.shell.currentWidget;
          const kernel = panel.sessionContext.session.kernel;
          const future = kernel.requestExecute({ code: '', user_expressions: { it: code } });
          const reply = await future.done;
          const it = reply.content.user_expressions.it;
          if (it.status !== 'ok') throw new Error(it.evalue);
          return JSON.parse(eval(it.data['text/plain']));
        }""",
        f"__import__('json').dumps({expression})",
    )


def error_at(page: Page, label: str) -> str:
    field = page.get_by_label(label, exact=True)
    return field.evaluate(
        "e => (e.closest('.sv-field') ?? e.closest('.sv-rulebox')).querySelector('.sv-error')"
        ".textContent"
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
    type_into(screen, "Mesh axes", "data=2, model=8")
    expect(screen.locator(".sv-count")).to_contain_text("16 devices")
    assert ask_kernel(screen, "explorer.session.mesh.size") == 16
    type_into(screen, "Array shape", "64, 4096")
    expect(screen.locator(".sv-title")).to_have_text("w_in  f32[64, 4096]")
    type_into(screen, "PartitionSpec", "model, data")
    expect(screen.locator(".sv-selected .sv-warn")).to_contain_text("wins over the rules")
    show_view(screen, "Rules")
    screen.get_by_label("Dialect", exact=True).select_option("nnx")
    # The kernel may take messages of widgets and of cells side by side.
    screen.wait_for_selector('.shardviz-explorer[data-settled="true"]')
    expect(screen.locator(".sv-rulerow").first).to_be_visible()
    assert ask_kernel(screen, "explorer.session.program.dialect.value") == "nnx"


def test_an_error_is_shown_at_its_field_and_the_picture_stays(screen):
    title = screen.locator(".sv-title").text_content()
    labels = ("Mesh axes", "Array shape", "Logical axes", "PartitionSpec", "Rules", "Hosts")
    good = {n: screen.get_by_label(n, exact=True).input_value() for n in labels}
    for label, text, part in (
        ("Mesh axes", "data=4, model=two", "whole number"),
        ("Array shape", "512, x", "whole number"),
        ("Logical axes", "embed", "1 logical name"),
        ("PartitionSpec", "P(data", "closing )"),
        ("Rules", "batch -> data\nmlp", "line 2"),
        ("Hosts", "3", "cannot be shared evenly"),
    ):
        type_into(screen, label, text)
        assert part in error_at(screen, label), label
        assert screen.locator(".sv-title").text_content() == title
        assert screen.get_by_label(label, exact=True).input_value() == text
        type_into(screen, label, good[label])
        assert error_at(screen, label) == ""
    assert ask_kernel(screen, "explorer.session.mesh.size") == 8


def test_fast_typing_ends_with_what_was_typed_last(screen):
    field = screen.get_by_label("Mesh axes", exact=True)
    field.fill("")
    field.press_sequentially("data=16, model=4", delay=5)
    expect(screen.locator(".sv-count")).to_contain_text("64 devices")
    assert field.input_value() == "data=16, model=4"
    assert ask_kernel(screen, "explorer.session.mesh.size") == 64


# Clicks in one task of the browser, before the kernel has answered the first; then what is there.
CLICKS = """
async ([label, count]) => {
  for (let i = 0; i < count; i++) document.querySelector(`[aria-label="${label}"]`).click();
}
"""


def test_every_click_of_one_task_counts(screen):
    def click(label: str, count: int) -> None:
        screen.evaluate(CLICKS, [label, count])
        screen.wait_for_selector('.shardviz-explorer[data-settled="true"]')

    click("Double axis data", 3)
    assert ask_kernel(screen, "dict(explorer.session.mesh.shape)") == {"data": 32, "model": 2}
    expect(screen.get_by_label("Mesh axes", exact=True)).to_have_value("data=32, model=2")
    click("Halve axis data", 2)
    assert ask_kernel(screen, "dict(explorer.session.mesh.shape)") == {"data": 8, "model": 2}
    click("Add an array", 150)
    assert ask_kernel(screen, "len(explorer.session.arrays)") == 153
    click("Remove the selected array", 149)
    names = ask_kernel(screen, "[a.name for a in explorer.session.arrays]")
    assert names == ["w_in", "w_out", "x", "a0"]
    screen.evaluate(
        """() => {
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
    )
    screen.wait_for_selector('.shardviz-explorer[data-settled="true"]')
    names = ask_kernel(screen, "[a.name for a in explorer.session.arrays]")
    assert names == ["w_in", "w_out", "x", "bias"]


def test_run_holds_every_prediction_and_an_edit_makes_it_stale(screen):
    press_button(screen, "Run")
    expect(screen.locator(".sv-status")).to_contain_text("checks hold", timeout=RUN_MS)
    expect(screen.locator(".sv-stage").nth(3)).to_contain_text("all-reduce")
    open_tab(screen, "Checks")
    marks = screen.locator(".sv-table td:first-child").all_inner_texts()
    assert marks
    assert set(marks) == {"✓"}
    open_tab(screen, "Collectives")
    expect(screen.locator(".sv-table")).to_contain_text("model")
    open_tab(screen, "Memory")
    expect(screen.locator(".sv-body")).to_contain_text("arguments")
    type_into(screen, "Array shape", "512, 4096")
    expect(screen.locator(".sv-status")).to_contain_text("stale")


def test_effects_and_cache_answer_in_their_tabs(screen):
    open_tab(screen, "Cache")
    expect(screen.locator(".sv-body")).to_contain_text("executables")
    open_tab(screen, "Effects")
    expect(screen.locator(".sv-body")).to_contain_text("It may run on 8 devices", timeout=RUN_MS)
    open_tab(screen, "Cache")
    expect(screen.locator(".sv-table tbody tr")).to_have_count(1, timeout=RUN_MS)
    type_into(screen, "Mesh axes", "data=2, model=2")
    open_tab(screen, "Effects")
    expect(screen.locator(".sv-body")).to_contain_text("It may run on 4 devices", timeout=RUN_MS)


def test_an_edit_during_a_run_is_not_held_up_and_cancel_ends_it(lab):
    slow = """
import time
import jax.numpy as jnp
import shardviz as sv
def slow(x):
    time.sleep(3)
    return x * 2
explorer = sv.explore(sv.program(slow, sv.array("x", (8, 8), spec="data"), mesh="data=4"))
explorer
"""
    page = lab.open([slow], width=1400, height=1200)
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    press_button(page, "Run")
    expect(page.locator(".sv-status")).to_contain_text(" s")
    type_into(page, "Mesh axes", "data=8")
    expect(page.locator(".sv-count")).to_contain_text("8 devices", timeout=2_000)
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".sv-status")).to_contain_text("The run was cancelled in the stage")
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_enabled()


def test_two_views_of_one_explorer_follow_each_other(lab):
    page = lab.open([OPEN, "explorer"], shared=True, width=1400, height=2400)
    expect(page.locator(".shardviz-explorer[data-seq]")).to_have_count(2)
    page.get_by_label("Mesh axes", exact=True).first.fill("data=32")
    expect(page.locator(".sv-count").nth(1)).to_contain_text("32 devices")


def test_the_saved_cell_keeps_text_and_a_picture_that_the_live_view_hides(screen):
    outputs = screen.evaluate(
        "window.jupyterapp.shell.currentWidget.content.widgets[0].model.outputs.toJSON()"
    )
    kept, live = (o["data"] for o in outputs if "data" in o)
    assert kept["image/png"].startswith("iVBOR")
    assert "w_in" in json.dumps(kept["text/plain"])
    assert "application/vnd.jupyter.widget-view+json" in live
    # One of an output's forms is shown, and never the picture where it is beside the live view.
    assert "image/png" not in live
    expect(screen.locator(".jp-Cell").first.locator(".jp-RenderedImage")).to_be_hidden()


def test_save_page_downloads_the_page(screen):
    with screen.expect_download() as download:
        screen.get_by_role("button", name="Save page").click()
    text = download.value.path().read_text()
    assert text.startswith("<!doctype html>")
    assert "w_in" in text
