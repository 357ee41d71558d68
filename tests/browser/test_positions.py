"""Devices by position: pointing, pinning and keys as elsewhere, and a collective's links."""

import io

import numpy as np
from PIL import Image
from playwright.sync_api import Page, expect

from tests.browser.test_explorer import RUN_MS
from tests.browser.test_page import explorer, opened, sentence
from tests.browser.views import show_view

PLACED = {"mesh": "data=4, model=4", "target": "tpu:v5e:4x4", "by": "position"}
LIVE = """
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


def test_keys_move_over_chips_and_enter_pins(page, tmp_path):
    opened(page, explorer(**PLACED), tmp_path)
    expect(page.locator(".sv-count")).to_have_text("16 · in id order")
    expect(page.get_by_label("Device order")).to_have_value("position/block")
    page.get_by_label("Devices", exact=True).focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    # Down one row of a slice 4 chips wide: device 6, on the second host.
    assert "Device 6 holds" in sentence(page)
    assert "data 1, model 2, host 1" in sentence(page)
    page.keyboard.press("Enter")
    expect(page.locator(".sv-sentence.sv-pinned")).to_have_count(1)


def test_pointing_at_a_block_marks_its_devices_by_position(page, tmp_path):
    opened(page, explorer(**PLACED), tmp_path)
    before = pixels(page)
    page.get_by_label("Array", exact=True).focus()
    page.keyboard.press("Home")
    assert "is held by" in sentence(page)
    assert (np.abs(pixels(page) - before) > 20).mean() > 0.02


def test_a_chosen_collective_shows_its_links_until_it_is_let_go(lab):
    page = lab.open([LIVE], width=1400, height=1400)
    show_view(page, "Program")
    page.wait_for_selector('.sv-stage:nth-of-type(3)[data-state="estimate"]', timeout=RUN_MS)
    note = page.locator(".sv-devicenote")
    row = page.locator(".sv-crow").first
    row.click()
    expect(note).to_be_empty()
    page.get_by_role("button", name="Show its links by position").click()
    expect(note).to_contain_text("links carry", timeout=RUN_MS)
    expect(page.get_by_role("button", name="Show its links by position")).to_be_hidden()
    linked = pixels(page)
    show_view(page, "Layout")
    expect(note).to_be_empty()
    in_layout = pixels(page)
    show_view(page, "Program")
    expect(note).to_contain_text("links carry")
    row.click()
    expect(note).to_contain_text("Choose a collective below", timeout=RUN_MS)
    page.wait_for_selector('.shardviz-explorer[data-settled="true"]')
    show_view(page, "Layout")
    assert (pixels(page) == in_layout).all(), "in Layout a colour is a block, whatever is chosen"
    show_view(page, "Program")
    assert (np.abs(pixels(page) - linked) > 20).mean() > 0.002
    row.click()
    expect(note).to_contain_text("links carry", timeout=RUN_MS)
    page.get_by_label("Mesh axes").fill("data=2, model=4")
    expect(note).to_contain_text("has 16 devices and the mesh has 8", timeout=RUN_MS)
    page.get_by_label("Mesh axes").fill("data=4, model=4")
    expect(page.get_by_label("Device order")).to_have_value("position/block", timeout=RUN_MS)
