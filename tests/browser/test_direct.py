"""What is touched directly: the chips of the mesh axes, and the dimensions that they split."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.test_contract import Kernel


@pytest.fixture
def kernel(page: Page) -> Kernel:
    """A page with the arrays w_in, w_out and x on a mesh of data=4, model=2."""
    return Kernel(page)


def chip(kernel: Kernel, axis: str) -> Locator:
    return kernel.page.locator(f'.sv-chip[data-axis="{axis}"]')


def mesh_of(kernel: Kernel) -> dict[str, int]:
    kernel.answer()
    return dict(kernel.made.session.mesh.shape)


def spec_of(kernel: Kernel) -> str:
    kernel.answer()
    return str(kernel.made.session.program.requests[0].spec)


def drag(kernel: Kernel, start: Locator, x: float, y: float) -> None:
    """Drags something to a point of the page, and stays there with the button pressed."""
    start.hover()
    kernel.page.mouse.down()
    kernel.page.mouse.move(x, y, steps=6)


def middle(where: Locator, right: float = 0.5, down: float = 0.5) -> tuple[float, float]:
    box = where.bounding_box()
    assert box is not None
    return box["x"] + right * box["width"], box["y"] + down * box["height"]


def test_a_size_is_typed_where_it_stands(kernel: Kernel):
    keys, size = kernel.page.keyboard, kernel.page.get_by_label("Size of data")
    size.click()
    keys.type("8")  # the click has chosen all of the number
    assert mesh_of(kernel)["data"] == 4, "nothing is taken before Enter"
    keys.press("Enter")
    assert mesh_of(kernel) == {"data": 8, "model": 2}
    expect(chip(kernel, "data")).to_be_focused()
    keys.press("Enter")
    keys.type("64")
    keys.press("Escape")
    assert mesh_of(kernel)["data"] == 8
    expect(size).to_have_value("8")
    keys.press("Enter")
    keys.press("ArrowUp")
    assert mesh_of(kernel)["data"] == 16
    keys.press("ArrowDown")
    keys.press("ArrowDown")
    assert mesh_of(kernel)["data"] == 4
    expect(size).to_be_focused()
    expect(chip(kernel, "data")).to_have_attribute("title", "data: 4-way, the compiler chooses")


def test_a_chip_says_who_decides_how_its_axis_is_used(kernel: Kernel):
    kernel.made.session.edit("types", "Explicit")
    kernel.answer()
    about = "data: 4-way, explicit: the type of every array says how it is split"
    expect(kernel.page.get_by_role("group", name=about)).to_be_visible()


def test_axes_are_moved_and_removed_by_keys(kernel: Kernel):
    keys = kernel.page.keyboard
    chip(kernel, "data").focus()
    keys.press("Alt+ArrowRight")
    assert list(mesh_of(kernel)) == ["model", "data"]
    expect(chip(kernel, "data")).to_be_focused()
    keys.press("Delete")
    assert mesh_of(kernel) == {"model": 2}
    expect(chip(kernel, "model")).to_be_focused()
    kernel.page.get_by_label("Add a mesh axis").click()
    assert mesh_of(kernel) == {"model": 2, "data": 2}
    chip(kernel, "model").hover()
    kernel.page.get_by_label("Remove axis model").click()
    assert mesh_of(kernel) == {"data": 2}


def test_axes_are_reordered_by_dragging(kernel: Kernel):
    drag(kernel, chip(kernel, "model").locator("b"), *middle(chip(kernel, "data")))
    expect(kernel.page.locator(".sv-dragged")).to_have_text("model")
    kernel.page.keyboard.press("Escape")
    kernel.page.mouse.up()
    assert list(mesh_of(kernel)) == ["data", "model"], "Escape lets it go"
    drag(kernel, chip(kernel, "model").locator("b"), *middle(chip(kernel, "data")))
    kernel.page.mouse.up()
    assert list(mesh_of(kernel)) == ["model", "data"]
    expect(kernel.page.locator(".sv-dragged")).to_have_count(0)


def test_an_axis_dropped_on_an_edge_splits_that_dimension_and_dragged_off_leaves_it(
    kernel: Kernel,
):
    page = kernel.page
    assert spec_of(kernel) == "P(None, 'model')"
    picture = page.locator("[data-drop-array]")
    drag(kernel, chip(kernel, "data").locator("b"), *middle(picture, 0.02))
    expect(page.locator(".sv-dragged")).to_have_text("datasplits embed")
    page.mouse.up()
    assert spec_of(kernel) == "P('data', 'model')"
    drag(kernel, chip(kernel, "data").locator("b"), *middle(picture, 0.5, 0.04))
    page.mouse.up()
    assert spec_of(kernel) == "P(None, ('model', 'data'))"
    tag = page.locator('.sv-dimrow [data-axis="model"]')
    drag(kernel, tag, *middle(page.locator('[data-drop-dim="0"]')))
    page.mouse.up()
    assert spec_of(kernel) == "P('model', 'data')"
    drag(
        kernel, page.locator('.sv-dimrow [data-axis="data"]'), *middle(page.get_by_text("shardviz"))
    )
    expect(page.locator(".sv-dragged")).to_have_text("dataoff mlp")
    page.mouse.up()
    assert spec_of(kernel) == "P('model', None)"


def test_a_dimension_is_split_from_its_menu(kernel: Kernel):
    menu = kernel.page.get_by_label("Split dimension 0 over")
    expect(menu.locator("option")).to_have_text(["+", "data 4"])
    menu.select_option("data")
    assert spec_of(kernel) == "P('data', 'model')"
    expect(kernel.page.get_by_label("PartitionSpec")).to_have_value("P('data', 'model')")
    kernel.page.get_by_label("Do not split dimension 1 over model").click()
    assert spec_of(kernel) == "P('data', None)"
    expect(kernel.page.locator('[data-drop-dim="1"]')).to_contain_text("mlp")
