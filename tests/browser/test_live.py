"""Explorers in kernels of their own: two views, long work, lost connections, killed kernels."""

from __future__ import annotations

import ast
import io
import re
import time

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from shardviz.explorer.state import open_state
from tests.browser.lab import OPEN, OPEN_MS, OPEN_NOTEBOOK, READY, reload_notebook
from tests.browser.legible import wrong_in
from tests.browser.test_explorer import RUN_MS
from tests.browser.test_fit import VIEWS
from tests.browser.views import SETTLED, ask_kernel, open_tab, press_button, show_view, type_into

SAID_S = 15.0  # the page says it after three, and a busy machine takes longer
WORK_ENDS_S = 20.0
COPIED = """() => new Promise((done) => {
  navigator.clipboard.writeText = async (text) => done(text);
  document.querySelector(".sv-banner button").click();
})"""
SLOW = """
import time
import shardviz as sv
def slow(x):
    time.sleep(8)
    return x * 2
explorer = sv.explore(sv.program(slow, sv.array("x", (8, 8), spec="data"), mesh="data=4"))
explorer
"""


def test_an_edit_during_a_run_is_not_held_up_and_cancel_ends_it(lab):
    page = lab.open([SLOW], width=1400, height=1200)
    page.wait_for_selector(SETTLED)
    press_button(page, "Run")
    expect(page.locator(".sv-status")).to_contain_text(" s")
    type_into(page, "Mesh axes", "data=8")
    expect(page.locator(".sv-count")).to_contain_text("8 devices", timeout=6_000)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".sv-status")).to_contain_text("The run was cancelled in the stage")
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_enabled()


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


def test_two_views_fit_follow_each_other_and_survive_a_lost_connection_and_a_busy_kernel(lab):
    page = lab.open([OPEN, "explorer"], shared=True, width=1280, height=800)
    expect(page.locator(".shardviz-explorer[data-seq]")).to_have_count(2)
    # Each fits beside the sidebar of JupyterLab.
    page.evaluate("() => window.jupyterapp.commands.execute('filebrowser:activate')")
    page.locator(".jp-FileBrowser").wait_for()
    panel = page.locator(".jp-WindowedPanel-outer").first.bounding_box()
    explorer = page.locator(".shardviz-explorer").first.bounding_box()
    assert explorer["height"] <= panel["height"], "all of it is in sight at once"
    assert explorer["width"] < panel["width"] < 1100
    page.locator(".shardviz-explorer").first.scroll_into_view_if_needed()
    for view in VIEWS:
        page.get_by_role("tablist", name="Views").first.get_by_role("tab", name=view).click()
        assert wrong_in(page) == [], view
    page.get_by_role("tablist", name="Views").first.get_by_role("tab", name="Layout").click()
    # What is pointed at is of one view; what is edited is of both.
    page.get_by_label("Devices", exact=True).first.focus()
    page.keyboard.press("End")
    words = page.locator(".sv-sentence")
    expect(words.first).to_contain_text("Device 7 holds")
    expect(words.nth(1)).to_contain_text("is split into 2 blocks")
    page.get_by_label("Mesh axes", exact=True).first.fill("data=32")
    expect(page.locator(".sv-count").nth(1)).to_contain_text("32 devices")
    page.evaluate(RECONNECT)
    page.get_by_label("Mesh axes", exact=True).first.fill("data=4")
    expect(page.locator(".sv-count").first).to_contain_text("4 devices")
    page.evaluate(BUSY)
    page.get_by_label("Mesh axes", exact=True).first.fill("data=2")
    expect(page.locator(".sv-count").first).to_contain_text("2 devices")
    expect(page.locator(".sv-banner").first).to_be_hidden()


STATE = """
import comm, ipywidgets, psutil, threading
def state():
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "processes": len(psutil.Process().children()),
        "comms": len(comm.get_comm_manager().comms),
        "widgets": len(ipywidgets.widgets.widget._instances),
    }
"""
# Counts the intervals from now on.
COUNT_INTERVALS = """() => {
  const { setInterval, clearInterval } = window;
  window.intervals = new Set();
  window.setInterval = (...timer) => {
    const id = setInterval.call(window, ...timer);
    window.intervals.add(id);
    return id;
  };
  window.clearInterval = (id) => {
    window.intervals.delete(id);
    clearInterval.call(window, id);
  };
}"""
IN_PAGE = """() => ({
  roots: document.querySelectorAll(".shardviz-explorer").length,
  intervals: window.intervals.size,
})"""


def state_of(page: Page) -> dict[str, object]:
    """The threads, processes, comms and widgets of the kernel; the roots and timers of the page."""
    return {"kernel": ask_kernel(page, "state()"), "page": page.evaluate(IN_PAGE)}


def run_again(page: Page, cell: int) -> None:
    """Runs one cell, and waits until its Explorer is drawn, not until it is planned."""
    page.evaluate(
        """async (cell) => {
          const { content } = window.jupyterapp.shell.currentWidget;
          content.deselectAll();
          content.activeCellIndex = cell;
          await window.jupyterapp.commands.execute('notebook:run-cell');
        }""",
        cell,
    )
    page.wait_for_selector(".shardviz-explorer[data-seq]")


@pytest.mark.long
def test_a_cell_that_runs_eleven_times_leaves_what_one_run_leaves(lab):
    page = lab.open([STATE, "import shardviz as sv"], width=1400, height=1000)
    page.evaluate(COUNT_INTERVALS)
    page.evaluate(
        """source => window.jupyterapp.shell.currentWidget.content.model.sharedModel
          .cells[1].setSource(source)""",
        "import shardviz as sv\nexplorer = sv.explore()\nexplorer",
    )
    run_again(page, 1)
    page.wait_for_selector(SETTLED, timeout=RUN_MS)
    ask_kernel(page, "explorer.wait(60) and None")
    page.wait_for_timeout(500)  # threads end
    after_one = state_of(page)
    for _ in range(10):
        run_again(page, 1)
    page.wait_for_selector(SETTLED, timeout=RUN_MS)
    ask_kernel(page, "explorer.wait(60) and None")
    # Work of the Explorers before it ends within seconds.
    ends = time.monotonic() + WORK_ENDS_S
    while (after_eleven := state_of(page)) != after_one and time.monotonic() < ends:
        page.wait_for_timeout(250)
    assert after_eleven == after_one


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
# Ends the kernel of the notebook in front and closes it, as one does in the evening.
END = """async () => {
  const widget = window.jupyterapp.shell.currentWidget;
  await window.jupyterapp.commands.execute('docmanager:save');
  await widget.sessionContext.shutdown();
  widget.dispose();
}"""


@pytest.mark.long
def test_a_reloaded_page_is_as_it_was_and_a_notebook_opened_again_shows_the_picture(
    lab, complaints
):
    page = lab.open([OPEN], width=1400, height=1000)
    page.wait_for_selector(SETTLED)
    type_into(page, "Mesh axes", "data=2, model=8")
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    path = page.evaluate("() => window.jupyterapp.shell.currentWidget.context.path")
    reload_notebook(page, path)
    page.wait_for_selector(SETTLED, timeout=OPEN_MS)
    expect(page.get_by_label("Mesh axes", exact=True)).to_have_value("data=2, model=8")
    type_into(page, "Mesh axes", "data=4")
    expect(page.locator(".sv-count")).to_contain_text("4 devices")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".sv-count")).to_contain_text("16 devices")
    page.evaluate(END)
    page.evaluate(OPEN_NOTEBOOK, [path, ""])
    page.wait_for_function(READY, timeout=OPEN_MS)
    expect(page.get_by_text("model not found")).to_be_visible(timeout=OPEN_MS)
    expect(page.locator(".jp-RenderedImage img")).to_be_visible()
    complaints.take()  # JupyterLab logs the missing model


def test_a_killed_kernel_is_said_within_seconds_and_nothing_pretends_to_work(lab, complaints):
    page = lab.open([OPEN], width=1400, height=1000)
    page.wait_for_selector(SETTLED)
    type_into(page, "Mesh axes", "data=2, model=2")
    page.get_by_label("Mesh axes", exact=True).press_sequentially("2", delay=5)
    page.evaluate(KILL)
    begun = time.monotonic()
    expect(page.locator(".sv-banner")).to_be_visible()
    assert time.monotonic() - begun < SAID_S
    assert page.evaluate(PRETENDS) == []
    call = ast.parse(page.evaluate(COPIED)).body[1].value
    assert open_state(call.args[0].value).mesh.size in (4, 8)
    page.close()  # what JupyterLab says of the kernel's end is its own
    complaints.take()


PLACED = """
import shardviz as sv
from shardviz.gallery import programs
mesh = sv.mesh(data=4, model=4)
explorer = sv.explore(programs.get("MLP, gradient").replace(mesh=mesh))
explorer.session.edit("target", "tpu:v5e:4x4")
explorer
"""


def pixels(page: Page) -> np.ndarray:
    shot = page.get_by_label("Devices", exact=True).screenshot(animations="disabled")
    return np.asarray(Image.open(io.BytesIO(shot)).convert("L"), dtype=np.int64)


@pytest.mark.long
def test_a_chosen_collective_shows_its_links_until_it_is_let_go(lab):
    page = lab.open([PLACED], shared=True, width=1400, height=1400)
    open_tab(page, "Collectives")
    page.wait_for_selector('.sv-stage:nth-of-type(3)[data-state="estimate"]', timeout=RUN_MS)
    note, row = page.locator(".sv-devicenote"), page.locator(".sv-crow").first
    expect(note).to_have_text(re.compile("^colours: shards of "))
    row.click()
    expect(note).to_have_text(re.compile("^all-.*: devices 0, "))
    page.get_by_role("button", name="Show links").click()
    expect(note).to_contain_text("busiest link", timeout=RUN_MS)
    expect(page.get_by_role("button", name="Show links")).to_be_hidden()  # they are shown
    linked = pixels(page)
    show_view(page, "Layout")
    expect(note).to_be_empty()
    in_layout = pixels(page)
    show_view(page, "Program")
    expect(note).to_contain_text("busiest link")
    row.click()
    expect(note).to_contain_text("choose a collective to see", timeout=RUN_MS)
    page.wait_for_selector(SETTLED)
    assert (np.abs(pixels(page) - linked) > 20).mean() > 0.002
    show_view(page, "Layout")
    assert (pixels(page) == in_layout).all(), "in Layout a colour is a block, whatever is chosen"
    page.get_by_label("Mesh axes").fill("data=2, model=4")
    expect(note).to_contain_text("has 16 devices and the mesh has 8", timeout=RUN_MS)
