"""However the Explorer was opened: a clicked cell shows the reason and a remedy in the page."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

import shardviz as sv
from tests.browser.test_contract import Kernel
from tests.browser.views import show_view
from tests.widgets.ways_to_open import IN_A_BROWSER, WAYS

WAITING = "Choose a cell"


def first_unsplit(explorer: Any) -> str:
    """The cell of the first dimension in the grid of verdicts that is not split."""
    for column in explorer.rule_use["columns"]:
        layout = explorer.session.program.requests[column["array"]].layout
        for dim in range(len(column["dims"])):
            if layout is None or layout.block_counts[dim] == 1:
                return f"-1:{column['array']}:{dim}"
    raise AssertionError("Every dimension is split.")


@pytest.mark.parametrize("name", IN_A_BROWSER)
def test_a_cell_that_is_clicked_says_why_and_what_would_split_it(page: Page, name):
    kernel = Kernel(page, made=sv.explore(WAYS[name]()))
    made = kernel.made
    show_view(page, "Rules")
    kernel.answer()
    key = first_unsplit(made)
    if made.cell.get("key") != key:  # what is likely to be mended is chosen by itself
        page.locator(f'[data-key="{key}"]').click()
        kernel.answer()
    words = page.locator(".sv-cellwords")
    expect(words).to_contain_text(made.cell["text"])
    expect(words).not_to_contain_text(WAITING)
    expect(page.locator(".sv-failed")).to_have_text("")
    remedy = page.locator(".sv-remedy").first
    expect(remedy).to_contain_text(made.cell["remedies"][0]["edit"])
    spec = made.cell["remedies"][0]["spec"]
    remedy.get_by_role("button").click()
    kernel.answer()
    assert str(made.session.program.requests[int(key.split(":")[1])].spec) == spec
    expect(page.locator(".sv-failed")).to_have_text("")
    made.close()
