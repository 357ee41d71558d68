"""The saved page: no kernel, no network, everything one can point at."""

import io
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from shardviz.axis_rules.audit import audit
from shardviz.base.array_spec import ArraySpec
from shardviz.explorer.explorer import open_explorer
from shardviz.gallery import arrays, meshes, rules
from shardviz.runs.cache import ExecutableCache
from tests.browser.views import (
    explorer,
    full_screen_and_back,
    open_tab,
    opened,
    sentence,
    show_view,
)

NAMELESS = """all => all.filter(e => !(e.getAttribute('aria-label') || e.textContent.trim()))
  .map(e => e.outerHTML.slice(0, 120))"""


def test_devices_and_blocks_are_pointed_at_and_pinned(page, tmp_path):
    opened(page, explorer(), tmp_path)
    devices = page.get_by_label("Devices", exact=True)
    devices.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    words = "Device 3 holds w_in[0:512, 1024:2048], 2 MiB, replica 2 of 4 (with 1, 5, 7)"
    assert words in sentence(page)
    page.keyboard.press("Enter")
    expect(page.locator(".sv-sentence.sv-pinned")).to_have_count(1)
    page.get_by_label("Array", exact=True).hover()
    assert "Device 3" in sentence(page)
    devices.focus()
    page.keyboard.press("Escape")
    assert "is split into 2 blocks" in sentence(page)
    page.keyboard.press("Escape")
    page.locator(".sv-cardhead").nth(2).click()
    expect(page.locator(".sv-title")).to_have_text("x  f32[64, 512]")
    assert "x is split into 8 blocks" in sentence(page)


def test_equal_layers_are_one_card_with_a_name_cut_at_its_head(page, tmp_path):
    page.set_viewport_size({"width": 680, "height": 900})
    layers = [(f"params.decoder.layers.{i}.attention.query", (64, 64), "embed mlp") for i in (0, 1)]
    made = open_explorer([ArraySpec(n, s, axes) for n, s, axes in layers], ExecutableCache())
    opened(page, made, tmp_path)
    made.close()
    card = page.locator(".sv-cardhead:visible")
    expect(card).to_have_count(1)
    expect(card).to_contain_text("layers 0 to 1")
    name = card.locator("b")
    expect(name).to_have_text("params.decoder.attention.query")
    tail = "(e) => e.firstChild.getBoundingClientRect().right - e.getBoundingClientRect().right"
    assert abs(name.evaluate(tail)) < 2, "its tail is in sight"
    show_view(page, "Rules")
    why = page.get_by_role("button", name="Why is")
    expect(why).to_have_text("params.decoder.attention.query, layers 0 to 1 ▾")
    why.click()
    options = page.get_by_role("dialog", name="Why is").get_by_role("option")
    expect(options).to_have_count(1)
    expect(options).to_contain_text("params.decoder.attention.query, layers 0 to 1")


def test_the_card_of_the_chosen_array_has_its_split_once(page, tmp_path):
    opened(page, explorer(), tmp_path)
    card = page.locator(".sv-card.sv-selected")
    expect(card.get_by_label("PartitionSpec")).to_have_attribute("placeholder", "by the rules")
    assert "P(" not in card.inner_text()
    expect(card.get_by_role("list", name="Dimensions")).to_contain_text("data")


def pixels(page: Page) -> np.ndarray:
    shot = page.get_by_label("Devices", exact=True).screenshot(animations="disabled")
    return np.asarray(Image.open(io.BytesIO(shot)).convert("L"), dtype=np.int64)


def test_chips_by_position_are_pointed_at_as_devices_are(page, tmp_path):
    placed = {"mesh": "data=4, model=4", "target": "tpu:v5e:4x4", "by": "position"}
    opened(page, explorer(**placed), tmp_path)
    expect(page.locator(".sv-count")).to_have_text("16 · in id order")
    expect(page.get_by_role("tab", name="Chips")).to_have_attribute("aria-selected", "true")
    before = pixels(page)
    page.get_by_label("Array", exact=True).focus()
    page.keyboard.press("Home")
    assert "is held by" in sentence(page)
    assert (np.abs(pixels(page) - before) > 20).mean() > 0.01
    page.get_by_label("Devices", exact=True).focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    # Down one row of a slice 4 chips wide: device 6, on the second host.
    assert "Device 6 holds" in sentence(page)
    assert "data 1, model 2, host 1" in sentence(page)


def test_wheel_zooms_drag_pans_and_fit_resets(page, tmp_path):
    opened(page, explorer(mesh="data=16, model=16"), tmp_path)
    devices = page.get_by_label("Devices", exact=True)
    box = devices.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 3

    def shown() -> str:
        return devices.locator("canvas").first.evaluate("c => c.toDataURL()")

    seen = [shown()]
    page.mouse.move(x, y)
    page.mouse.wheel(0, -600)
    assert shown() == seen[0], "the wheel scrolls the page"
    page.keyboard.down("Control")
    page.mouse.wheel(0, -600)
    page.keyboard.up("Control")
    seen.append(shown())
    page.mouse.down()
    page.mouse.move(x + 60, y + 40, steps=4)
    page.mouse.up()
    seen.append(shown())
    assert all(one != other for one, other in pairwise(seen))
    fit = page.get_by_role("button", name="Fit").first
    inside, around = fit.bounding_box(), devices.bounding_box()
    assert inside is not None
    assert around is not None
    assert inside["y"] + inside["height"] <= around["y"], "it covers nothing"
    fit.click()
    page.mouse.move(x, y)
    assert shown() == seen[0]
    expect(fit).to_be_hidden()


def test_views_have_tabs_and_nothing_can_be_edited_without_a_kernel(page, tmp_path):
    opened(page, explorer(), tmp_path)
    for label in ("Mesh axes", "Target", "Array shape", "Logical axes", "PartitionSpec", "Rules"):
        assert page.get_by_label(label, exact=True).is_disabled(), label
    tabs = page.get_by_role("tablist", name="Views").get_by_role("tab")
    assert tabs.all_inner_texts() == ["Layout", "Rules", "Model", "Program"]
    tabs.first.focus()
    for key, name in (("ArrowRight", "Rules"), ("ArrowLeft", "Layout"), ("End", "Program")):
        page.keyboard.press(key)
        expect(page.get_by_role("tab", name=name, exact=True)).to_be_focused()
        expect(page.locator(".sv-view:not([hidden])")).to_have_count(1)
    for name in ("Compile", "Run"):
        assert page.get_by_role("button", name=name, exact=True).is_disabled()
    named = ".shardviz-explorer :is(input, textarea, select, button, [tabindex], [role=img])"
    for tab in ("Values", "Collectives", "Memory", "Checks"):
        open_tab(page, tab)
        assert page.eval_on_selector_all(named, NAMELESS) == []
    full_screen_and_back(page)


def test_leaves_are_found_sorted_folded_and_opened(page, tmp_path):
    found = audit(arrays.get("7B model"), rules.get("FSDP"), meshes.get())
    opened(page, open_explorer(found, ExecutableCache()), tmp_path)
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


# Names that mean something to JSON, to JavaScript, to HTML or to the page itself.
NAMES = ("$bytes", "__proto__", "]]>", "</script><img src=x onerror=alert(1)>")


@pytest.mark.parametrize("name", NAMES)
def test_an_axis_and_an_array_may_have_any_name(page, tmp_path, name):
    made = explorer(hosts="2", mesh=f"'{name}'=32, model=2", rules=f"'{name}' -> '{name}'")
    made.session.edit("name", name, 2)
    made.session.edit("logical", f"'{name}' embed", 2)
    assert made.session.program.problems == ()
    dialogs: list[str] = []
    page.on("dialog", lambda d: (dialogs.append(d.message), d.dismiss()))
    opened(page, made, tmp_path)
    assert made.plan.ok, "the page has the values and stages, too"
    expect(page.locator(".sv-chip b").first).to_have_text(name)
    page.locator(".sv-cardhead").nth(2).click()
    assert f"Dimension 0 “{name}” → {name}" in sentence(page)
    page.get_by_label("Devices", exact=True).focus()
    page.keyboard.press("End")
    assert f"Device 63 holds {name}[" in sentence(page)
    assert f"{name} 31, model 1" in sentence(page)
    open_tab(page, "Values")
    expect(page.locator(".sv-vdims .sv-axis").first).to_have_text(name)
    expect(page.locator(".sv-vrow").first).to_be_visible()
    open_tab(page, "Collectives")
    expect(page.locator(".sv-stage").nth(1)).not_to_have_attribute("data-state", "none")
    assert page.locator(".shardviz-explorer img").count() == 0
    assert dialogs == []


def test_shortcuts_of_jupyterlab_are_off_for_whatever_has_the_focus(page, tmp_path):
    opened(page, explorer(), tmp_path)
    open_tab(page, "Collectives")
    row = page.locator(".sv-crow").first
    row.click()
    expect(row).to_be_focused()
    expect(row).to_have_attribute("data-lm-suppress-shortcuts", "true")
