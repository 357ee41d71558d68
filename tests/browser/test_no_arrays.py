"""Programs without arrays, and states whose function was not restored, on the page."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from shardviz.core.layout.mesh import make_mesh
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.program import Program
from shardviz.widgets.explorer import Explorer, open_explorer
from tests.browser.test_page import opened, sentence
from tests.browser.views import open_tab


def made(tmp_path_name: str = "nothing") -> Explorer:
    program = Program(lambda: 0, (), make_mesh(data=2, model=4), name=tmp_path_name)
    return open_explorer(program, ExecutableCache())


def test_a_program_without_arrays_is_shown(page: Page, tmp_path):
    opened(page, made(), tmp_path)
    expect(page.get_by_text("The program takes no arrays.", exact=True)).to_be_visible()
    assert sentence(page).startswith("The program takes no arrays: it makes what it works on.")
    devices = page.get_by_label("Devices")
    devices.first.hover()
    open_tab(page, "Shards")
    row = page.locator(".sv-shardrow").nth(5)
    row.hover()
    assert sentence(page).startswith("Device 5: data 1, model 1.")
