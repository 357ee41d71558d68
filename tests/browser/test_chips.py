"""How devices stand: as the mesh has them, by host, or as the chips of the target."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from shardviz.explorer.explorer import Explorer
from shardviz.explorer.session import Session
from shardviz.gallery import programs
from shardviz.runs.cache import ExecutableCache
from tests.browser.test_contract import Kernel


def test_the_order_of_devices_is_chosen_by_keyboard_and_says_why_chips_are_missing(page: Page):
    session = Session(programs.get(), programs.DEFAULT)
    session.edit("target", "tpu:v5e:4x2")
    kernel = Kernel(page, made=Explorer(session, ExecutableCache()))
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    order = page.get_by_role("tablist", name="Device order")
    chips = order.get_by_role("tab", name="Chips")
    order.get_by_role("tab", name="Mesh").focus()
    for key, by in (("ArrowRight", "host"), ("ArrowRight", "position"), ("Home", "mesh")):
        page.keyboard.press(key)
        kernel.answer()
        assert session.now.by == by
        expect(page.locator(":focus")).to_have_attribute("aria-selected", "true")
    expect(chips).to_have_attribute("aria-disabled", "false")
    session.edit("target", "cpu:8")
    kernel.push()
    expect(chips).to_have_attribute("aria-disabled", "true")
    assert "Only described hardware" in (chips.get_attribute("title") or "")
    page.keyboard.press("End")
    expect(chips).to_be_focused()
    kernel.answer()
    assert session.now.by == "mesh"
    kernel.made.close()
