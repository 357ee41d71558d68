"""The four views: tabs, verdicts, leaves, tasks in counted actions, and nothing that is lost."""

from __future__ import annotations

import ast
import time

import pytest
from playwright.sync_api import Page, expect

from shardviz.core.layout.trees.audit import audit
from shardviz.core.program.cache import ExecutableCache
from shardviz.gallery import arrays, meshes, rules
from shardviz.widgets.explorer import open_explorer
from shardviz.widgets.state import open_state
from tests.browser.lab import OPEN_MS, OPEN_NOTEBOOK, READY, reload_notebook
from tests.browser.test_explorer import OPEN, ask_kernel, type_into
from tests.browser.test_page import explorer, opened
from tests.browser.views import show_view

SETTLED = '.shardviz-explorer[data-settled="true"]'
GONE_S = 3.0
COPIED = """() => new Promise((done) => {
  navigator.clipboard.writeText = async (text) => done(text);
  document.querySelector(".sv-banner button").click();
})"""


@pytest.fixture
def screen(lab) -> Page:
    page = lab.open([OPEN], shared=True, width=1400, height=1000)
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    return page


def rules_text(page: Page) -> list[str]:
    return page.get_by_label("Rules", exact=True).input_value().splitlines()


def test_arrow_keys_go_from_view_to_view(page, tmp_path):
    opened(page, explorer(), tmp_path)
    tabs = page.get_by_role("tablist", name="Views").get_by_role("tab")
    assert [tab.inner_text() for tab in tabs.all()] == ["Layout", "Rules", "Model", "Program"]
    tabs.first.focus()
    for key, name in (("ArrowRight", "Rules"), ("End", "Program"), ("ArrowRight", "Layout")):
        page.keyboard.press(key)
        expect(page.get_by_role("tab", name=name, exact=True)).to_be_focused()
        expect(page.locator(".sv-view:not([hidden])")).to_have_count(1)
    for panel in page.locator(".sv-view").all():
        assert panel.get_attribute("role") == "tabpanel"


def test_leaves_are_found_sorted_folded_and_opened(page, tmp_path):
    found = audit(arrays.get("7B model"), rules.get("FSDP"), meshes.get())
    page.goto(open_explorer(found, ExecutableCache()).save_html(tmp_path / "page").as_uri())
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    show_view(page, "Model")
    rows = page.locator(".sv-modelinner .sv-modelrow")
    page.get_by_role("button", name="Fold layers").click()
    expect(rows).to_have_count(len(found.rows))
    page.get_by_label("Sort leaves").select_option("bytes")
    largest = max(found.rows, key=lambda row: row.bytes_per_device or 0)
    expect(rows.first).to_contain_text(largest.path)
    page.get_by_label("Find leaves").fill(found.rows[0].path)
    expect(rows.first).to_contain_text(found.rows[0].path)
    rows.first.click()
    expect(page.locator(".sv-modelfoot")).to_contain_text(str(found.rows[0].spec))


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
    at = next(i for i, name in enumerate(names) if "mlp" in name)
    repair.nth(at).click()
    screen.wait_for_selector(SETTLED)
    # One undo takes the remedy back, whatever it changed; redo makes it again.
    screen.get_by_role("button", name="Undo").click()
    screen.wait_for_selector(SETTLED)
    assert ask_kernel(screen, "explorer.session.arrays[0].logical") == ["embed", "mpl"]
    screen.get_by_role("button", name="Redo").click()
    screen.wait_for_selector(SETTLED)
    assert ask_kernel(screen, "explorer.session.arrays[0].logical") != ["embed", "mpl"]


def test_rules_are_reordered_by_keys_and_by_dragging(screen):
    show_view(screen, "Rules")
    before = rules_text(screen)
    screen.get_by_role("gridcell", name="Rule 5, w_in.embed: decided").click()
    screen.keyboard.press("Alt+ArrowUp")
    screen.wait_for_selector(SETTLED)
    assert rules_text(screen) == [*before[:3], before[4], before[3]]
    expect(screen.locator(".sv-gridrow.sv-on")).to_have_count(1)
    handle = screen.locator(".sv-number")
    handle.nth(4).hover()
    screen.mouse.down()
    box = handle.first.bounding_box()
    screen.mouse.move(box["x"] + 5, box["y"] + 2, steps=5)
    screen.mouse.up()
    screen.wait_for_selector(SETTLED)
    assert rules_text(screen)[0] == before[3]
    screen.keyboard.press("Control+z")
    screen.wait_for_selector(SETTLED)
    screen.keyboard.press("Control+z")
    screen.wait_for_selector(SETTLED)
    assert rules_text(screen) == before
    screen.keyboard.press("Control+Shift+z")
    screen.wait_for_selector(SETTLED)
    assert rules_text(screen) != before


def test_two_views_of_one_explorer_keep_their_own_pointing(lab):
    page = lab.open([OPEN, "explorer"], shared=True, width=1400, height=2200)
    expect(page.locator(".shardviz-explorer[data-seq]")).to_have_count(2)
    page.get_by_label("Devices", exact=True).first.focus()
    page.keyboard.press("End")
    words = page.locator(".sv-sentence")
    expect(words.first).to_contain_text("Device 7 holds")
    expect(words.nth(1)).to_contain_text("is split into 2 blocks")


KILL = """() => {
  const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
  kernel.requestExecute({ code: 'import os; os.kill(os.getpid(), 9)' });
}"""
# The controls that work although there is no kernel.
PRETENDS = """() => {
  const root = document.querySelector(".shardviz-explorer");
  const some = root.querySelectorAll("input, textarea, select, [data-edit]");
  const free = [...some].filter((e) => !e.disabled && !e.dataset.keep && !e.readOnly);
  return free.map((e) => e.getAttribute("aria-label") ?? e.textContent);
}"""


def test_a_killed_kernel_is_said_within_seconds_and_nothing_pretends_to_work(lab, complaints):
    page = lab.open([OPEN], width=1400, height=1000)
    page.wait_for_selector(SETTLED)
    type_into(page, "Mesh axes", "data=2, model=2")
    page.get_by_label("Mesh axes", exact=True).press_sequentially("2", delay=5)
    page.evaluate(KILL)
    begun = time.monotonic()
    expect(page.locator(".sv-banner")).to_be_visible(timeout=20_000)
    assert time.monotonic() - begun < GONE_S + 0.5
    assert page.evaluate(PRETENDS) == []
    call = ast.parse(page.evaluate(COPIED)).body[1].value
    assert open_state(call.args[0].value).mesh.size in (4, 8)
    page.close()  # what JupyterLab says of the kernel's end is its own
    complaints.take()


def test_after_a_reload_the_explorer_is_as_it_was(lab):
    page = lab.open([OPEN], width=1400, height=1000)
    page.wait_for_selector(SETTLED)
    type_into(page, "Mesh axes", "data=2, model=8")
    type_into(page, "Array shape", "64, 4096")
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    path = page.evaluate("() => window.jupyterapp.shell.currentWidget.context.path")
    reload_notebook(page, path)
    page.wait_for_selector(SETTLED, timeout=OPEN_MS)
    expect(page.get_by_label("Mesh axes", exact=True)).to_have_value("data=2, model=8")
    expect(page.locator(".sv-title")).to_have_text("w_in  f32[64, 4096]")
    type_into(page, "Mesh axes", "data=4")
    expect(page.locator(".sv-count")).to_contain_text("4 devices")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".sv-count")).to_contain_text("16 devices")


# Ends the kernel of the notebook in front and closes it, as one does in the evening.
END = """async () => {
  const widget = window.jupyterapp.shell.currentWidget;
  await window.jupyterapp.commands.execute('docmanager:save');
  await widget.sessionContext.shutdown();
  widget.dispose();
}"""


def test_a_notebook_opened_again_shows_the_stored_picture(lab, complaints):
    page = lab.open([OPEN], width=1400, height=1000)
    page.wait_for_selector(SETTLED)
    path = page.evaluate("() => window.jupyterapp.shell.currentWidget.context.path")
    page.evaluate(END)
    page.evaluate(OPEN_NOTEBOOK, [path, ""])
    page.wait_for_function(READY, timeout=OPEN_MS)
    expect(page.get_by_text("model not found")).to_be_visible(timeout=OPEN_MS)
    expect(page.locator(".jp-RenderedImage img")).to_be_visible()
    complaints.take()  # JupyterLab logs the missing model


# Until the kernel has said twice that it is there, on its new connection.
RECONNECT = """async () => {
  const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
  await kernel.reconnect();
  let beats = 0;
  await new Promise((done) => kernel.iopubMessage.connect((_, { content }) => {
    if (content.data?.content?.kind === "alive" && ++beats === 2) done();
  }));
}"""
# A cell that ends when the mesh has two devices.
BUSY = """() => {
  const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
  const code = "import time\\nwhile explorer.session.mesh.size != 2: time.sleep(0.05)";
  kernel.requestExecute({ code });
}"""


def test_edits_arrive_after_the_connection_was_lost_and_while_a_cell_runs(lab):
    page = lab.open([OPEN], shared=True, width=1400, height=1000)
    page.wait_for_selector(SETTLED)
    page.evaluate(RECONNECT)
    type_into(page, "Mesh axes", "data=4")
    expect(page.locator(".sv-count")).to_contain_text("4 devices")
    page.evaluate(BUSY)
    type_into(page, "Mesh axes", "data=2")
    expect(page.locator(".sv-count")).to_contain_text("2 devices")
    expect(page.locator(".sv-banner")).to_be_hidden()
