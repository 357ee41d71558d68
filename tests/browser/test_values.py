"""The tab Values: the list, what is picked, and the propagation step by step."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from shardviz.core.backend.shardy.build_plan import plan_program
from shardviz.core.program.plan import Plan
from shardviz.gallery import programs
from shardviz.widgets.values_view import explanation_view, values_view
from tests.browser.values_page import as_script, opened, press, row, said, sharding
from tests.browser.views import explorer, open_tab
from tests.widgets.plans import REFUSED, layers

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def gradient() -> Plan:
    return plan_program(programs.get("transformer block, gradient"))


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
        "64 over data (4): 16 per device"
    )
    assert page.evaluate("calls") == {"why": ["x"], "light": [["x"]]}
    press(page, "Escape")
    expect(row(page, "x")).to_have_attribute("aria-selected", "false")
    assert page.evaluate("calls.light.at(-1)") is None
    row(page, "tanh_1").click()
    lit = page.locator(".sv-vrow:has(.sv-vway) .sv-vlabel").all_inner_texts()
    ways = ["x", "w_1", "dot_general", "tanh", "reduce", "add", "dot_general_1", "tanh_1"]
    assert lit == ways
    assert sorted(page.evaluate("calls.light.at(-1)")) == sorted(ways)


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


def test_at_every_step_the_page_shows_what_had_arrived(page, gradient):
    """Held against the plan: an axis is there from the first step on that brought it."""
    opened(page, gradient)
    came: dict[tuple[str, str], int] = {}
    numbers = sorted({s.number for op in gradient.ops for s in op.steps})
    for step in sorted((s for op in gradient.ops for s in op.steps), key=lambda s: s.number):
        for name in step.to:
            came.setdefault((name, step.axis), step.number)
    for shown in (0, 1, len(numbers) // 2, len(numbers)):
        last = numbers[shown - 1] if shown else -1
        wanted = [
            [[came.get((op.name, axis), -1) <= last for axis in axes] for axes in op.spec.dims]
            for op in gradient.ops
        ]
        found = page.evaluate(
            "step => panel.plan.names.map((_, i) =>"
            " panel.plan.splits(i, step).map(dim => dim.map(c => !c.pending)))",
            shown,
        )
        padded = [
            w + [[]] * (len(op.shape) - len(w)) for op, w in zip(gradient.ops, wanted, strict=True)
        ]
        assert found == padded


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


def test_without_a_plan_it_says_so_and_a_refused_program_shows_why(page):
    opened(page, None)
    expect(page.locator(".sv-vmessage")).to_contain_text("There is no plan yet")
    expect(page.get_by_role("treegrid")).to_have_count(0)
    page.evaluate(f"panel.show({as_script(values_view(REFUSED))})")
    expect(page.locator(".sv-vmessage")).to_contain_text("Both sides contract over model.")
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
    press(page, ",")
    page.get_by_label("Propagation step").fill("1")
    assert said(page).startswith("1 of ")
    made.close()
