"""The tab Values: the list, what is picked, and why it is sharded as it is."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from shardviz.plans.panel.values_view import explanation_view, values_view
from tests.browser.values_page import as_script, opened, press, row, sharding
from tests.browser.views import explorer, open_tab
from tests.widgets.plans import REFUSED, layers

pytestmark = pytest.mark.browser


def test_every_value_is_in_the_list_with_type_sharding_origin_and_line(page):
    plan = layers(2)
    opened(page, plan)
    for op in plan.ops:
        cells = row(page, op.name).get_by_role("gridcell").all_inner_texts()
        assert cells[1] == plan_type(op)
        assert [o.name for o in op.origins.values()] == cells[3].split()
        assert cells[5] == op.source
        spec = [f"over {', '.join(axes)}" if axes else "not split" for axes in op.spec.dims]
        assert sharding(page, op.name) == "; ".join(
            f"dimension {d} {s}" for d, s in enumerate(spec)
        )


def plan_type(op) -> str:
    return op.short.replace("bfloat16", "bf16").replace("float32", "f32")


def test_a_picked_value_lights_up_where_its_axes_came_from_until_it_is_let_go(page):
    opened(page, layers(2))
    press(page, "Home", "ArrowDown", "Enter")
    expect(row(page, "x")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_label("Why this sharding")).to_contain_text(
        re.compile("64 over\\s*data\\s*: 16 per device")
    )
    assert page.evaluate("calls") == {"why": ["x"]}
    press(page, "Escape")
    expect(row(page, "x")).to_have_attribute("aria-selected", "false")
    row(page, "tanh_1").click()
    lit = page.locator(".sv-vrow:has(.sv-vway) .sv-vlabel").all_inner_texts()
    assert lit == ["x", "w_1", "tanh_1"]
    # Where an axis came from is a click away.
    page.get_by_role("button", name="Show value w_1").click()
    expect(row(page, "w_1")).to_have_attribute("aria-selected", "true")


def test_an_explanation_is_requested_once_and_shown_as_text(page):
    opened(page, layers(2))
    row(page, "tanh").click()
    row(page, "add").click()
    row(page, "tanh").click()
    explanation = {
        **explanation_view(layers(2), "tanh"),
        "lines": ["<img src=x onerror=alert(1)> & more"],
    }
    page.evaluate(f"panel.showExplanation({as_script(explanation)})")
    expect(page.locator(".sv-explanation li")).to_have_text(["<img src=x onerror=alert(1)> & more"])
    row(page, "add").click()
    row(page, "tanh").click()
    expect(page.locator(".sv-explanation li")).to_have_count(1)
    assert page.evaluate("calls.why").count("tanh") == 2  # once before it came, and once again
    assert page.locator(".sv-values img").count() == 0


def test_twelve_values_are_in_sight_on_a_small_screen(page, tmp_path):
    page.set_viewport_size({"width": 848, "height": 620})
    made = explorer("transformer block, gradient")
    page.goto(made.save_html(tmp_path / "page").as_uri())
    open_tab(page, "Values")
    grid = page.get_by_role("treegrid", name="Values").bounding_box()
    boxes = [each.bounding_box() for each in page.locator(".sv-vrow").all()]
    assert sum(b["y"] + b["height"] <= grid["y"] + grid["height"] for b in boxes) >= 12
    assert all(box["height"] >= 24 for box in boxes)
    made.close()


def test_values_are_found_and_no_more_rows_are_made_than_are_in_sight(page):
    grid = opened(page, layers(400))
    page.get_by_role("button", name="Unfold all").click()
    press(page, "End")
    expect(row(page, "output")).to_be_in_viewport()
    assert page.get_by_role("row").count() < 40
    assert int(grid.get_attribute("aria-rowcount")) > 2000
    page.get_by_label("Find values").fill("tanh block.py:411")
    expect(page.locator(".sv-vrow:not(.sv-vcall) .sv-vlabel")).to_have_text(["tanh_381"])
    page.get_by_label("Find values").press("Escape")
    assert page.get_by_role("row").count() > 1


def test_without_a_plan_it_says_so_until_the_program_is_refused(page):
    opened(page, None)
    waits = page.get_by_text("There is no plan yet")
    expect(waits).to_be_visible()
    expect(page.get_by_role("treegrid")).to_have_count(0)
    # The page has the reason above its tabs.
    page.evaluate(f"panel.show({as_script(values_view(REFUSED))}, true)")
    expect(waits).to_be_hidden()
    page.evaluate(f"panel.show({as_script(values_view(layers(1)))})")
    expect(page.get_by_role("treegrid", name="Values")).to_be_visible()


def test_the_saved_page_has_every_explanation_without_a_kernel(page, tmp_path):
    made = explorer()
    made.follow()
    made.wait(120)
    page.goto(made.save_html(tmp_path / "page").as_uri())
    open_tab(page, "Values")
    row(page, "dot_general").click()
    assert made.plan is not None
    lines = [line.strip() for line in made.plan.why("dot_general").lines]
    expect(page.locator(".sv-explanation li")).to_have_text(lines)
    made.close()
