"""Find: by keys alone to an array, a leaf, a rule, a device, an element, a view and a command."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from playwright.sync_api import Locator, Page, expect

import shardviz as sv
from shardviz.axis_rules.audit import audit
from shardviz.explorer.explorer import Explorer, open_explorer
from shardviz.explorer.session import Session
from shardviz.gallery import programs
from shardviz.runs.cache import ExecutableCache
from tests.browser.test_contract import Kernel
from tests.browser.views import opened, sentence

FRAMES = "() => new Promise((d) => requestAnimationFrame(() => requestAnimationFrame(d)))"


@pytest.fixture
def saved(page: Page, tmp_path, complaints) -> Page:
    """A saved page of the MLP: nothing of this needs a kernel."""
    made = Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())
    opened(page, made, tmp_path)
    made.close()
    return page


def find(page: Page, text: str) -> Locator:
    """Types into Find from where the focus is; what was found."""
    if page.evaluate("() => document.activeElement === document.body"):
        page.locator(".sv-viewtab[tabindex='0']").focus()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Find")).to_be_focused()
    page.keyboard.type(text)
    return page.get_by_role("listbox", name="Found").get_by_role("option")


def view_of(page: Page) -> str:
    return page.locator('.sv-viewtab[aria-selected="true"]').inner_text()


def test_in_a_saved_page_the_keys_open_it_wherever_the_focus_is(saved: Page):
    assert saved.evaluate("() => document.activeElement === document.body")
    saved.keyboard.press("Control+k")
    expect(saved.get_by_role("combobox", name="Find")).to_be_focused()


def test_views_tabs_and_arrays(saved: Page):
    find(saved, "prog")
    saved.keyboard.press("Enter")
    assert view_of(saved) == "Program"
    find(saved, "memory")
    saved.keyboard.press("Enter")
    expect(saved.get_by_role("tab", name="Memory")).to_have_attribute("aria-selected", "true")
    find(saved, "w_out array")
    saved.keyboard.press("Enter")
    assert view_of(saved) == "Layout"
    assert sentence(saved).startswith("w_out ")


def test_the_code_has_the_rules_as_python_and_as_yaml(saved: Page):
    find(saved, "code")
    saved.keyboard.press("Enter")
    for title in ("JAX", "Rules as Python", "Rules as YAML"):
        expect(saved.get_by_role("button", name=f"Copy: {title}")).to_be_visible()
    expect(saved.get_by_label("Rules as YAML", exact=True)).to_contain_text('- ["mlp", "model"]')


def test_the_best_comes_first_and_arrow_keys_choose(saved: Page):
    options = find(saved, "w_in")
    expect(options.first).to_have_attribute("aria-selected", "true")
    expect(options.first).to_contain_text("w_in")
    field = saved.get_by_role("combobox", name="Find")
    saved.keyboard.press("ArrowDown")
    second = options.nth(1)
    expect(second).to_have_attribute("aria-selected", "true")
    assert field.get_attribute("aria-activedescendant") == second.get_attribute("id")
    expect(second).to_contain_text("dimension")
    saved.keyboard.press("Enter")
    assert view_of(saved) == "Rules"


def test_escape_gives_the_focus_back(saved: Page):
    opener = saved.get_by_role("button", name="Find anything")
    opener.click()
    expect(saved.get_by_role("combobox", name="Find")).to_be_focused()
    saved.keyboard.press("Escape")
    expect(opener).to_be_focused()
    expect(saved.get_by_role("listbox", name="Found")).to_be_hidden()


def test_a_device_and_an_element(saved: Page):
    find(saved, "device 5")
    saved.keyboard.press("Enter")
    assert "Device 5 holds w_in" in sentence(saved)
    # w_in[512, 2048] over model=2: column 1200 is in the second block, on the odd devices.
    options = find(saved, "w_in[37, 1200]")
    expect(options.first).to_contain_text("w_in[0:512, 1024:2048], on devices 1, 3, 5, 7")
    saved.keyboard.press("Enter")
    assert sentence(saved).startswith("w_in[0:512, 1024:2048]")
    for text, words in {
        "device 8": "no device 8",
        "w_in[512, 0]": "size 512",
        "w_in[1]": "2 dimensions",
        "nobody[1]": "No array",
    }.items():
        expect(find(saved, text).first).to_contain_text(words)
        saved.keyboard.press("Enter")  # there is nothing to go to
        saved.keyboard.press("Escape")


def step(params, x):
    return jnp.sum(jnp.tanh(x @ params["w1"]) @ params["w2"])


def test_collectives_lines_axes_and_names_as_python_has_them(page: Page, complaints):
    params = {
        "w1": sv.array("params.w1", (64, 128), "embed mlp"),
        "w2": sv.array("params.w2", (128, 64), "mlp embed"),
    }
    x = sv.array("x", (32, 64), "batch embed")
    rules = [("mlp", "model"), ("batch", "data")]
    kernel = Kernel(page, made=sv.explore(step, params, x, mesh="data=4, model=2", rules=rules))
    kernel.made.wait(60)
    kernel.push()
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    options = find(page, "all-reduce")
    expect(options.first).to_contain_text("all-reduce over ")
    expect(options.first).to_contain_text("collective")
    page.keyboard.press("Enter")
    kernel.answer()
    assert view_of(page) == "Program"
    row = page.locator(".sv-crow[aria-selected='true']")
    expect(row).to_contain_text("all-reduce")
    line = f"test_find.py:{step.__code__.co_firstlineno + 1}"
    options = find(page, line).filter(has_text="line")
    expect(options).to_have_count(1)
    options.click()
    expect(page.get_by_label("Find values")).to_have_value(line)
    find(page, "model=2")
    page.keyboard.press("Enter")
    expect(page.locator(":focus")).to_have_attribute("data-axis", "model")
    options = find(page, "params['w1']")
    expect(options.first).to_contain_text("params.w1")
    page.keyboard.press("Control+a")
    page.keyboard.type("w1[5, 127]")
    expect(options.first).to_contain_text("params.w1[0:64, 64:128]")
    page.keyboard.press("Enter")
    assert sentence(page).startswith("params.w1[0:64, 64:128]")
    kernel.made.close()


def test_without_a_kernel_there_are_no_commands_that_need_one(saved: Page):
    options = find(saved, "command")
    expect(options.filter(has_text="Code")).to_have_count(1)
    for name in ("Undo", "Run", "Save page"):
        expect(options.filter(has_text=name)).to_have_count(0)


def test_a_command_and_the_leaves_of_a_model_that_the_kernel_has(page: Page, complaints):
    tree = {f"layer_{i}": {"w": ((64, 64), "embed mlp")} for i in range(200)}
    found = audit(tree, [("mlp", "model")], "data=4, model=2")
    kernel = Kernel(page, made=open_explorer(found, ExecutableCache()))
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    kernel.answer()
    options = find(page, "layer_1 w leaf")
    kernel.answer()
    page.evaluate(FRAMES)
    expect(options).to_have_count(50)
    expect(page.get_by_role("dialog", name="Find anything")).to_contain_text("61 more")
    page.keyboard.press("Control+a")
    page.keyboard.type("layer_137")
    expect(options.first).to_contain_text("layer_137/w")
    page.keyboard.press("Enter")
    kernel.answer()
    assert view_of(page) == "Model"
    picked = page.get_by_role("treegrid").get_by_role("row", selected=True)
    expect(picked).to_contain_text("layer_137")
    expect(picked).to_be_in_viewport()
    before = kernel.made.session.mesh
    kernel.made.session.edit("mesh", "data=2, model=2")
    kernel.push()
    find(page, "undo")
    page.keyboard.press("Enter")
    kernel.answer()
    assert kernel.made.session.mesh == before
    kernel.made.close()
