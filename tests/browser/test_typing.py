"""What is typed takes effect on a pause or Enter, and what is half typed means nothing yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_contract import Kernel

KEY_MS = 30  # between two keys of somebody who types fast


@pytest.fixture
def kernel(page: Page) -> Iterator[Kernel]:
    kernel = Kernel(page)
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    yield kernel
    kernel.made.close()


def type_text(kernel: Kernel, label: str, text: str) -> None:
    """Types with keys, while a kernel answers as fast as it can, until all is answered."""
    field = kernel.page.get_by_label(label, exact=True)
    field.fill("")
    for letter in text:
        field.press_sequentially(letter)
        kernel.page.wait_for_timeout(KEY_MS)
        kernel.answer()
    while kernel.page.get_attribute(".shardviz-explorer", "data-settled") != "true":
        kernel.page.wait_for_timeout(50)
        kernel.answer()


def error_at(kernel: Kernel, label: str) -> str:
    field = kernel.page.get_by_label(label, exact=True)
    return field.locator("xpath=..").locator(".sv-error").inner_text()


def test_a_mesh_too_large_leaves_the_mesh_that_was_there(kernel):
    type_text(kernel, "Mesh axes", "data=99999999999")
    assert dict(kernel.made.session.mesh.shape) == {"data": 4, "model": 2}
    assert error_at(kernel, "Mesh axes")
    type_text(kernel, "Mesh axes", "data=16")
    assert dict(kernel.made.session.mesh.shape) == {"data": 16}


def test_a_spec_that_is_begun_lays_nothing_out(kernel):
    type_text(kernel, "PartitionSpec", "P(")
    assert kernel.made.session.arrays[0].spec is None
    assert error_at(kernel, "PartitionSpec")
    type_text(kernel, "PartitionSpec", "P('data')")
    assert str(kernel.made.session.arrays[0].spec) == "P('data')"


def test_a_name_that_exists_leaves_the_old_name(kernel):
    type_text(kernel, "Array name", "w_out")
    assert [a.name for a in kernel.made.session.arrays] == ["w_in", "w_out", "x"]
    assert "w_out" in error_at(kernel, "Array name")


def test_enter_and_leaving_the_field_do_not_wait(kernel):
    page = kernel.page
    field = page.get_by_label("Mesh axes", exact=True)
    for text, end in (("data=2", "Enter"), ("data=8", "Tab")):
        field.fill(text)
        page.keyboard.press(end)
        kernel.answer()
        expect(page.locator(".shardviz-explorer")).to_have_attribute("data-settled", "true")
        assert str(kernel.made.session.mesh.size) == text[-1]
