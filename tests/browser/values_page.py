"""The panel Values alone on a page, and what stands in it."""

from __future__ import annotations

import json

from playwright.sync_api import Locator, Page

from shardviz.explorer import html_page
from shardviz.plans.panel.values_view import values_view
from shardviz.plans.plan import Plan

PAGE = """<!doctype html><meta charset="utf-8"><style>body { margin: 0 } CSS</style>
<div class="shardviz-explorer" data-theme="light">
<div class="sv-body" id="host" style="height: 420px"></div>
</div>
<script type="module">
MODULE
window.calls = { why: [] };
window.panel = new ValuesPanel({
  ask: (kind, name) => calls[kind].push(name),
});
document.getElementById("host").append(panel.node);
panel.show(DATA);
</script>"""


def as_script(data: object) -> str:
    return json.dumps(data).replace("<", "\\u003c")


def opened(page: Page, plan: Plan | None, explanations: int = 0) -> Locator:
    """The panel alone on a page; its list is returned."""
    data = as_script(values_view(plan, explanations))
    html = PAGE.replace("CSS", html_page.bundled_styles()).replace("DATA", data)
    page.set_content(html.replace("MODULE", html_page.bundled_module("values")))
    page.wait_for_function("window.panel !== undefined")
    return page.get_by_role("treegrid", name="Values")


def row(page: Page, name: str) -> Locator:
    label = page.locator(".sv-vlabel").get_by_text(name, exact=True)
    return page.get_by_role("row").filter(has=label)


def sharding(page: Page, name: str) -> str | None:
    return row(page, name).locator(".sv-vdims").get_attribute("aria-label")


def press(page: Page, *keys: str) -> None:
    page.get_by_role("treegrid", name="Values").focus()
    for key in keys:
        page.keyboard.press(key)
