"""Five questions of a user, on a program with thirty rules, in a notebook's output of 680 pixels.

Why is this not split? What would split it? Which collective costs most? Does it fit? What
changed? Each answer takes one click, is compared with flax or with arithmetic, and is in sight.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax.linen.spmd import logical_to_mesh_axes
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from playwright.sync_api import Locator, Page, expect

import shardviz as sv
from shardviz.base.format import bytes_text
from tests.browser.test_contract import Kernel
from tests.browser.test_main_question import in_sight
from tests.browser.views import show_view

OUTPUT = {"width": 696, "height": 604}  # a body's margin more than the output of a page of 848
SIZES = {"data": 2, "expert": 2, "model": 2}
SHAPES = {"up": (8, 512, 2048), "down": (8, 2048, 512), "x": (16, 256, 512)}
NAMES = {"up": "experts embed ff", "down": "experts ff embed", "x": "batch seq embed"}
#: Experts take one of the two axes that ff needs, so that ff stays unsplit.
RULES: list[tuple[str, Any]] = [
    ("batch", "data"),
    ("experts", "expert"),
    ("ff", ("expert", "model")),
    ("embed", None),
    *((f"spare{n}", "model") for n in range(26)),
]


def loss(params: dict[str, Any], x: Any) -> Any:
    h = jax.nn.relu(jnp.einsum("bse,nef->bsnf", x, params["up"]))
    return jnp.einsum("bsnf,nfe->bse", h, params["down"]).sum()


def step(params: dict[str, Any], x: Any) -> Any:
    return jax.tree.map(lambda w, g: w - g, params, jax.grad(loss)(params, x))


def line_of(words: str) -> int:
    with open(__file__, encoding="utf-8") as source:
        return next(n for n, line in enumerate(source, 1) if words in line)


def flax_spec(name: str, rules: list[tuple[str, Any]]) -> PartitionSpec:
    spec = logical_to_mesh_axes(tuple(NAMES[name].split()), rules)
    assert spec is not None
    return spec


def bytes_on_a_device(rules: list[tuple[str, Any]]) -> int:
    """As flax and jax have it."""
    mesh = AbstractMesh(tuple(SIZES.values()), tuple(SIZES))
    sizes = []
    for name, shape in SHAPES.items():
        sharding = NamedSharding(mesh, flax_spec(name, rules))
        sizes.append(4 * math.prod(sharding.shard_shape(shape)))
    return sum(sizes)


@pytest.fixture
def kernel(page: Page):
    page.set_viewport_size({"width": OUTPUT["width"], "height": OUTPUT["height"]})
    arrays = {name: sv.array(name, SHAPES[name], NAMES[name]) for name in SHAPES}
    x = arrays.pop("x")
    mesh = ", ".join(f"{axis}={size}" for axis, size in SIZES.items())
    opened = Kernel(page, made=sv.explore(step, arrays, x, mesh=mesh, rules=RULES))
    yield opened
    opened.made.close()


def check_in_sight(where: Locator, page: Page) -> None:
    expect(where).to_be_visible()
    assert in_sight(where, page), where.inner_text()
    assert where.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), where.inner_text()
    assert page.evaluate("() => document.scrollingElement.scrollHeight <= innerHeight")


def test_why_is_it_not_split_what_would_and_what_changes(page: Page, kernel: Kernel):
    plus = page.get_by_role("button", name="Add a mesh axis").bounding_box()
    assert plus is not None
    assert plus["y"] < 30, "three axes fit into the bar's only row"
    page.get_by_role("button", name="Compare").click()
    kernel.answer()
    show_view(page, "Rules")
    kernel.answer()
    # Why is it not split? By the view that opens.
    assert tuple(flax_spec("down", RULES)) == ("expert", None, None)
    reason = page.locator(".sv-reason")
    why = "Rule 3 asks for expert and model, but rule 2 gave expert to experts."
    expect(reason).to_have_text(f"ff is not split. {why}")
    check_in_sight(reason, page)
    rule = page.get_by_role("list", name="Rules for ff").get_by_role("listitem")
    expect(rule).to_contain_text("ff → expertmodel")
    check_in_sight(rule.locator("del"), page)
    # What would split it? A second click.
    remedy = page.get_by_role("list", name="Remedies").get_by_role("listitem").first
    check_in_sight(remedy, page)
    remedy.get_by_role("button").click()
    kernel.answer()
    rules = kernel.made.session.program.rules
    assert rules is not None
    edited = [(rule.logical, rule.axes or None) for rule in rules]
    now = flax_spec("down", edited)
    assert now[1] is not None
    expect(page.locator(".sv-done")).to_contain_text("P" + str(tuple(now)))
    check_in_sight(page.locator(".sv-done"), page)
    # What changed between A and now?
    before, after = bytes_on_a_device(RULES), bytes_on_a_device(edited)
    kernel.made.wait(60)
    kernel.push()
    row = page.get_by_role("region", name="A and now").get_by_role("listitem").first
    expect(row).to_contain_text(f"−{bytes_text(before - after)}")
    check_in_sight(row, page)


def test_which_collective_costs_most_and_does_it_fit(page: Page, kernel: Kernel):
    show_view(page, "Program")
    kernel.answer()
    kernel.made.wait(60)
    kernel.push()
    headline = page.get_by_role("group", name="Least time")
    expect(headline.locator(".sv-hbar")).to_have_count(3)
    costliest = headline.get_by_role("button", name="costliest collective")
    # Gradients of 4 experts each are summed over data: 16 MiB of f32, twice.
    first, second = line_of('"bse,nef->bsnf"'), line_of('"bsnf,nfe->bse"')
    lines = f"test_five_questions.py:{first}, {second}"
    expect(costliest).to_contain_text(f"all-reduce over data × 2, {lines}, ≥ ")
    check_in_sight(costliest, page)
    fits = headline.get_by_role("button", name="needs about")
    # Arguments of 36 MiB and gradients of 32, the saved activations and their gradient.
    expect(fits).to_have_text(f"needs about {36 + 32 + 2 * 64} MiB of 16 GiB")
    check_in_sight(fits, page)
    check_in_sight(page.get_by_role("listbox", name="Operations"), page)
    costliest.click()
    kernel.answer()
    expect(page.locator(".sv-crow[aria-selected=true]")).to_contain_text("32 MiB")
    check_in_sight(page.locator(".sv-crow[aria-selected=true]"), page)
    for name in ("Play", "What would help?"):
        check_in_sight(page.get_by_role("button", name=name, exact=True), page)
