"""The Explorer works wherever anywidgets do: here in Notebook 7 and in marimo."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.hosts import MARIMO, NOTEBOOK, served
from tests.browser.lab import READY, run_all
from tests.browser.views import press_button
from tests.browser.watch import new_context

CELL = """import shardviz as sv
sv.explore()"""
OPEN_MS, RUN_MS = 120_000, 180_000


@pytest.mark.long
@pytest.mark.parametrize("host", [NOTEBOOK, MARIMO])
def test_an_edit_a_mistake_and_a_run(browser: Browser, tmp_path: Path, host: str):
    with served(host, [CELL], tmp_path / host) as url:
        context = new_context(browser, 1400, 1500, 1)
        page = context.new_page()
        page.goto(url)
        if host == NOTEBOOK:
            page.wait_for_function(READY, timeout=OPEN_MS)
            run_all(page)
        field = page.get_by_label("Mesh axes")
        field.wait_for(timeout=OPEN_MS)
        field.fill("data=2, model=banana")
        field.press("Enter")
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(page.get_by_role("alert").filter(has_text="banana")).to_be_visible()
        field.fill("data=2, model=4")
        field.press("Enter")
        expect(field).to_have_attribute("aria-invalid", "false")
        expect(page.get_by_role("alert").filter(has_text="banana")).to_have_count(0)
        press_button(page, "Run")
        expect(page.get_by_text("checks passed")).to_be_visible(timeout=RUN_MS)
        compiled = page.locator(".sv-stage").nth(3)
        expect(compiled).to_have_attribute("title", re.compile("1 all-reduce"))
        context.close()
