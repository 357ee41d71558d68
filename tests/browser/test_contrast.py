"""All text can be read, in light and dark: measured on the page, old text included."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from shardviz.axis_rules.audit import audit
from shardviz.explorer.explorer import Explorer, open_explorer
from shardviz.gallery import arrays, meshes, rules
from shardviz.runs.cache import ExecutableCache
from tests.browser.legible import wrong_in
from tests.browser.test_fit import VIEWS, small
from tests.browser.views import play_largest, show_view
from tests.browser.watch import Complaints, new_context

WAIT_S = 120


@pytest.fixture
def measured_page(browser: Browser, complaints: Complaints):
    context = new_context(browser, 1500, 1000)
    page = context.new_page()
    with complaints.watching(page):
        yield page
    context.close()


def edited() -> Explorer:
    """A program of which every stage is old, with mistakes in its fields."""
    made = small(8)
    made.follow()
    made.wait(WAIT_S)
    made.session.edit("shape", "510, x", 0)
    made.session.edit("rules", "batch -> nothing\nmlp ->")
    made.session.edit("mesh", "data=4, model=")
    return made


def leaves() -> Explorer:
    found = audit(arrays.get("7B model"), rules.get("FSDP"), meshes.get())
    return open_explorer(found, ExecutableCache())


def misspelt() -> Explorer:
    """A name that no rule knows, and a target that does not fit."""
    made = small(8)
    made.session.edit("logical", "embed mpl", 0)
    made.session.edit("target", "tpu:v5e:4x4")
    return made


EXAMPLES = {"stages": edited, "mistakes": misspelt, "leaves": leaves}


def stale_page(made: Explorer, path: Path) -> Path:
    """The page of a program that was edited since all that is known of it."""
    made.page()  # now it is planned
    answer = {**made.answer, "revision": made.answer["revision"] + 1}
    made.answer = answer
    return made.save_html(path)


def pale(page: Page) -> list[str]:
    """The texts that cannot be read for their colours."""
    return [finding for finding in wrong_in(page) if finding.startswith("contrast")]


CASES = [
    pytest.param(make, id=name, marks=pytest.mark.long if name == "leaves" else ())
    for name, make in EXAMPLES.items()
]


@pytest.mark.parametrize("make", CASES)
def test_all_text_can_be_read(measured_page: Page, tmp_path, make):
    page, made = measured_page, make()
    page.goto(stale_page(made, tmp_path / "page").as_uri())
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    made.close()
    wrong = []
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_selector(f'.shardviz-explorer[data-theme="{theme}"]')
        for view in VIEWS:
            show_view(page, view)
            tabs = page.locator(".sv-tabline [role=tab]").all() if view == "Program" else [None]
            for tab in tabs:
                if tab:
                    tab.click()
                wrong += [
                    f"{theme}, {view}: {what}" for what in wrong_in(page) if "contrast" in what
                ]
        if play_largest(page):
            page.keyboard.press("ArrowRight")
            wrong += [f"{theme}, player: {what}" for what in pale(page)]
    assert not wrong, "\n".join(sorted(set(wrong)))
