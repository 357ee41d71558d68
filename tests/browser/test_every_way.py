"""However the Explorer was opened: a chosen dimension shows the reason and a remedy in the page."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

import shardviz as sv
from tests.browser.test_contract import Kernel
from tests.browser.views import show_view
from tests.widgets.ways_to_open import IN_A_BROWSER, WAYS


def first_unsplit(explorer: Any) -> tuple[int, int]:
    """The first dimension that is not split, of the arrays with names."""
    for number, request in enumerate(explorer.session.program.requests):
        for dim in range(request.array.rank if request.array.logical else 0):
            if request.layout is None or request.layout.block_counts[dim] == 1:
                return number, dim
    raise AssertionError("Every dimension is split.")


def plain(text: str) -> str:
    """A sentence as the page shows it, where mesh axes are tags."""
    return " ".join(text.replace("'", "").split())


@pytest.mark.parametrize("name", IN_A_BROWSER)
def test_a_dimension_that_is_chosen_says_why_and_what_would_split_it(page: Page, name):
    kernel = Kernel(page, made=sv.explore(WAYS[name]()))
    made = kernel.made
    show_view(page, "Rules")
    kernel.answer()
    array, dim = first_unsplit(made)
    page.get_by_role("button", name="Why is").click()
    page.get_by_role("combobox", name="Find an array").fill(made.session.arrays[array].name)
    page.keyboard.press("Enter")
    kernel.answer()
    page.get_by_role("radiogroup", name="Dimensions").get_by_role("radio").nth(dim).click()
    kernel.answer()
    assert made.cell["key"] == f"{array}:{dim}"
    shown = plain(page.locator(".sv-reason").inner_text())
    assert shown == plain(f"{made.cell['head']} {made.cell['text']}")
    expect(page.locator(".sv-failed")).to_have_text("")
    view = made.cell["remedies"][0]
    remedy = page.get_by_role("list", name="Remedies").get_by_role("listitem").first
    assert plain(remedy.inner_text()).startswith(plain(view["edit"]))
    remedy.get_by_role("button").click()
    kernel.answer()
    assert str(made.session.program.requests[array].spec) == view["spec"]
    expect(page.locator(".sv-done")).to_contain_text("is now")
    expect(page.get_by_role("radio").nth(dim)).to_have_attribute("aria-checked", "true")
    expect(page.locator(".sv-failed")).to_have_text("")
    made.close()
