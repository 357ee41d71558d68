"""The tab Values: the list, what is picked, and the propagation step by step."""

from __future__ import annotations

from itertools import pairwise

import pytest
from playwright.sync_api import expect

from shardviz.core.backend.shardy.build_plan import plan_program
from shardviz.core.layout.mesh import make_mesh
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_values import PlannedOp
from shardviz.gallery import programs
from shardviz.picture.plan import axis_path
from shardviz.widgets.explorer import Explorer
from shardviz.widgets.session import Session
from shardviz.widgets.values_view import explanation_view, values_view
from tests.browser.values_page import as_script, opened, press, row, said, sharding
from tests.browser.views import open_tab
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


def test_bars_are_split_as_the_mesh_axes_split(page):
    opened(page, layers(1))
    bars = row(page, "dot_general").locator(".sv-bars rect")
    fills = bars.evaluate_all("all => all.map(r => r.getAttribute('fill'))")
    data, model = (axis["colour"] for axis in values_view(layers(1))["axes"])
    assert fills == [data] * 4 + [model] * 2


@pytest.mark.parametrize(
    ("axes", "shape"), [({"x": 8}, 1), ({"a": 2, "b": 2, "c": 2, "d": 4, "e": 128}, 5)]
)
def test_values_of_any_rank_and_meshes_of_any_size_are_drawn(page, axes, shape):
    mesh = make_mesh(**axes)
    op = PlannedOp("v", "argument", shape=(4096,) * shape, dtype="float32",
                   spec=Spec.of(*list(axes)[:shape]))  # fmt: skip
    opened(page, Plan("f", mesh, (op,)))
    boxes = (
        row(page, "v")
        .locator(".sv-bars rect")
        .evaluate_all(
            "all => all.map(r => [r.getBoundingClientRect().left, r.getBoundingClientRect().right])"
        )
    )
    assert len(boxes) == sum(min(8, size) for size in axes.values())
    assert all(left < right for left, right in boxes)
    assert all(a[1] <= b[0] + 0.01 for a, b in pairwise(boxes))


def test_badges_say_which_region_a_value_is_in_and_what_is_not_covered(page):
    opened(page, layers(3))
    assert row(page, "layer_1").locator(".sv-badge").all_inner_texts() == [
        "loop body × 12", "1 not covered",
    ]  # fmt: skip
    hidden = row(page, "add_1").locator(".sv-badge")
    assert hidden.all_inner_texts() == ["not covered"]
    view = values_view(layers(3))
    (note,) = view["valueNotes"].values()
    assert hidden.get_attribute("title") == view["text"][note]
    assert row(page, "reduce_1").locator(".sv-move").all_inner_texts() == ["all-reduce 1 MiB × 12"]
    press(page, "End")
    behind = row(page, "backward pass / layer_2")
    assert behind.locator(".sv-badge").all_inner_texts() == ["backward"]
    assert row(page, "tanh_2").locator(".sv-badge").count() == 0  # said of the call already


def test_calls_fold_and_unfold_by_keyboard(page):
    grid = opened(page, layers(3))
    press(page, "Home", "ArrowLeft")
    expect(row(page, "arguments")).to_have_attribute("aria-expanded", "false")
    expect(row(page, "x")).to_have_count(0)
    press(page, "ArrowRight")
    expect(row(page, "x")).to_have_count(1)
    press(page, "ArrowDown", "ArrowDown", "ArrowLeft")
    active = grid.get_attribute("aria-activedescendant")
    expect(page.locator(f"#{active}")).to_contain_text("arguments")
    page.get_by_role("button", name="Fold all", exact=True).click()
    expect(row(page, "tanh")).to_have_count(0)
    page.get_by_role("button", name="Unfold all").click()
    expect(row(page, "tanh")).to_have_count(1)


def test_enter_picks_and_escape_lets_go(page):
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


def test_a_picked_value_lights_up_where_its_axes_came_from(page):
    opened(page, layers(2))
    row(page, "tanh_1").click()
    lit = page.locator(".sv-vrow:has(.sv-vway) .sv-vlabel").all_inner_texts()
    ways = ["x", "w_1", "dot_general", "tanh", "reduce", "add", "dot_general_1", "tanh_1"]
    assert lit == ways
    assert sorted(page.evaluate("calls.light.at(-1)")) == sorted(ways)
    assert row(page, "tanh_1").locator(".sv-vway .sv-axisdot").count() == 2


def test_the_ways_of_all_axes_are_those_that_python_finds(page, gradient):
    opened(page, gradient)
    wanted, given = {}, []
    for number, op in enumerate(gradient.ops):
        for axis in op.origins:
            wanted[f"{op.name} {axis}"] = [name for name, _ in axis_path(gradient, op, axis)]
            given.append([number, axis, f"{op.name} {axis}"])
    assert len(given) > 150
    found = page.evaluate(
        "given => Object.fromEntries(given.map(([at, axis, key]) =>"
        " [key, panel.plan.path(at, axis).map(s => panel.plan.names[s.at])]))",
        given,
    )
    assert found == wanted


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


def test_values_named_in_an_explanation_can_be_chosen_there(page):
    opened(page, layers(2))
    row(page, "tanh_1").click()
    page.get_by_label("Why this sharding").get_by_label("Show value w_1").click()
    expect(row(page, "w_1")).to_have_attribute("aria-selected", "true")


def test_steps_bring_axes_one_by_one(page):
    opened(page, layers(2))
    assert said(page).startswith("The propagation took 9 steps.")
    press(page, ".")
    assert said(page) == "Before the first of 9 steps: only what was requested."
    assert sharding(page, "x") == "dimension 0 over data; dimension 1 not split"
    assert sharding(page, "dot_general") == "dimension 0 not split; dimension 1 not split"
    press(page, ".")
    assert said(page) == (
        "1 of 9 · step 0, through dot_general: data from x to dot_general;"
        " model from w_0 to dot_general."
    )
    assert sharding(page, "dot_general") == "dimension 0 over data; dimension 1 over model"
    assert sharding(page, "tanh") == "dimension 0 not split; dimension 1 not split"
    assert page.evaluate("calls.light.at(-1)") == ["x", "dot_general", "w_0"]
    press(page, *["."] * 8)
    assert said(page).startswith("9 of 9 · step 8, through output")
    press(page, ",")
    assert said(page).startswith("8 of 9 · step 7, through add_1")
    page.get_by_label("Propagation step").fill("3")
    assert said(page).startswith("3 of 9 · step 2, through reduce")
    press(page, "Escape")
    assert said(page).startswith("The propagation took 9 steps.")


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


def test_a_step_out_of_sight_is_brought_into_sight(page):
    opened(page, layers(30))
    page.get_by_label("Propagation step").fill("100")
    expect(row(page, "add_24")).to_be_in_viewport()
    expect(row(page, "add_24")).to_have_class("sv-vrow sv-vop sv-vreached")


def test_thousands_of_values_make_no_more_rows_than_are_in_sight(page):
    grid = opened(page, layers(400))
    assert page.get_by_role("row").count() < 40
    page.get_by_role("button", name="Unfold all").click()
    press(page, "End")
    expect(row(page, "output")).to_be_in_viewport()
    assert page.get_by_role("row").count() < 40
    assert int(grid.get_attribute("aria-rowcount")) > 2000


def test_values_are_found_by_the_text_of_their_row(page):
    opened(page, layers(30))
    page.get_by_label("Find values").fill("tanh block.py:41")
    expect(page.locator(".sv-vrow:not(.sv-vcall) .sv-vlabel")).to_have_text(["tanh_11"])
    page.get_by_label("Find values").fill("nothing like it")
    expect(page.get_by_role("row")).to_have_count(0)
    page.get_by_label("Find values").press("Escape")
    expect(row(page, "arguments")).to_have_count(1)


def test_a_new_plan_keeps_what_was_picked_and_folded(page):
    opened(page, layers(2))
    row(page, "arguments").click()
    row(page, "tanh_1").click()
    other = layers(2, make_mesh(data=8, model=4))
    page.evaluate(f"panel.show({as_script(values_view(other))})")
    expect(row(page, "arguments")).to_have_attribute("aria-expanded", "false")
    expect(row(page, "tanh_1")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_label("Why this sharding")).to_contain_text("64 over data (8): 8 per device")
    assert page.evaluate("calls.why") == [
        "tanh_1",
        "tanh_1",
    ]  # another plan, another one
    page.evaluate(f"panel.show({as_script(values_view(layers(1)))})")
    assert page.evaluate("calls.light.at(-1)") is None


def test_without_a_plan_it_says_so_and_a_refused_program_shows_its_choices(page):
    opened(page, None)
    expect(page.locator(".sv-vmessage")).to_contain_text("There is no plan yet")
    expect(page.get_by_role("treegrid")).to_have_count(0)
    page.evaluate(f"panel.show({as_script(values_view(REFUSED))})")
    cells = page.get_by_label("Legal choices of out_sharding").locator("tbody tr").all_inner_texts()
    assert [c.split("\t") for c in cells] == [
        ["P('data', None)", "4 KiB, estimated", "an all-reduce of 4 KiB over model."],
        ["P(None, None)", "nothing moves, estimated", "nothing moves."],
    ]
    page.evaluate(f"panel.show({as_script(values_view(layers(1)))})")
    expect(page.get_by_role("treegrid", name="Values")).to_be_visible()


def test_the_last_good_list_stays_when_an_edit_cannot_be_planned(page):
    opened(page, layers(1))
    page.evaluate(f"panel.show({as_script(values_view(REFUSED))})")
    expect(page.locator(".sv-vmain")).to_have_class("sv-vmain sv-vold")
    expect(page.locator(".sv-vmessage")).to_contain_text(str(REFUSED.diagnosis.problem))
    row(page, "tanh").click()
    assert page.evaluate("calls.why") == []  # the kernel has no such value any more
    page.evaluate(f"panel.show({as_script(values_view(layers(1)))})")
    expect(page.locator(".sv-vmain")).to_have_class("sv-vmain")
    assert page.evaluate("calls.why") == ["tanh"]


def test_the_saved_page_has_every_explanation_without_a_kernel(page, tmp_path):
    made = Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())
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
