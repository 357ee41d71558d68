"""The main question: of one's own program, which dimension is not split, why, and what would."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from playwright.sync_api import Locator, Page, expect

import shardviz as sv
from shardviz.base.format import bytes_text
from tests.browser.test_contract import Kernel
from tests.browser.views import opened, show_view
from tests.widgets.test_every_way import audit_anew, held

#: What is wrong: the heads of q, the last name of x, the rules for embed and heads; then the array,
#: the dimension, and what the reason says.
CASES = {
    "a size that does not divide": (
        (6, "embed", [("heads", "model"), ("embed", None)]),
        (
            "q",
            "heads",
            "Rule 30 wins and asks for model, but 6 is not divisible by 4: 2 left over.",
        ),
    ),
    "a misspelt name": (
        (8, "embd", [("heads", "model"), ("embed", "data")]),
        ("x", "embd", "No rule names embd. Did you mean embed?"),
    ),
    "an axis in use": (
        (8, "embed", [("heads", "model"), ("embed", "model")]),
        ("wi", "embed", "Rule 31 asks for model, but rule 3 gave model to mlp."),
    ),
}


def forward(params: dict[str, Any], x: Any) -> Any:
    q = jnp.einsum("bse,ehd->bshd", x, params["q"])
    return q.sum((2, 3))[..., None] * (x @ params["wi"])


def program(heads: int, last: str, rules: list[Any]) -> Any:
    """A program of one's own, with thirty other rules."""
    table = [("batch", "data"), ("vocab", "model"), ("mlp", "model")]
    table += [(f"name{n}", None) for n in range(26)]
    params = {
        "q": sv.array("q", (512, heads, 64), "embed heads hd"),
        "wi": sv.array("wi", (512, 2048), "embed mlp"),
    }
    x = sv.array("x", (16, 32, 512), f"batch seq {last}")
    mesh = sv.mesh(data=2, model=4)
    return sv.program(forward, params, x, mesh=mesh, rules=[*table, *rules])


def in_sight(where: Locator, page: Page) -> bool:
    """Whether nobody needs to scroll to see all of it."""
    box = where.bounding_box()
    assert box is not None
    size = page.viewport_size
    assert size is not None
    shown = where.evaluate(
        """(e) => { const { left, top, right, bottom } = e.getBoundingClientRect();
          const seen = (x, y) => e.contains(e.ownerDocument.elementFromPoint(x, y));
          return seen((left + right) / 2, top + 3) && seen((left + right) / 2, bottom - 3); }"""
    )
    inside = box["y"] >= 0 and box["y"] + box["height"] <= size["height"]
    return shown and inside and box["x"] + box["width"] <= size["width"]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_unsplit_dimension_its_reason_and_a_true_remedy(page: Page, case):
    parts, (name, logical, reason) = case
    page.set_viewport_size({"width": 848, "height": 620})
    kernel = Kernel(page, made=sv.explore(program(*parts)))
    session = kernel.made.session
    show_view(page, "Rules")  # the first click
    kernel.answer()
    expect(page.get_by_role("button", name="Why is")).to_have_text(f"{name} ▾")
    chosen = page.get_by_role("radio", checked=True)
    expect(chosen).to_contain_text(logical)
    sentence = page.locator(".sv-reason")
    expect(sentence).to_have_text(f"{logical} is not split. {reason}")
    remedy = page.get_by_role("list", name="Remedies").get_by_role("listitem").first
    apply = remedy.get_by_role("button")
    cascade = page.get_by_role("list", name=f"Rules for {logical}")
    for where in (chosen, sentence, remedy, apply, page.get_by_label("Rules", exact=True).first):
        assert where.is_visible()
    shown = [chosen, sentence, remedy, apply]
    if "No rule" not in reason:
        shown += [cascade, cascade.get_by_role("listitem").last]
    for where in shown:
        assert in_sight(where, page), where
    assert page.evaluate("() => document.scrollingElement.scrollHeight <= innerHeight")
    view, before = kernel.made.cell["remedies"][0], held(audit_anew(session))
    number = [array.name for array in session.arrays].index(name)
    fails = session.program.requests[number].problem
    apply.click()  # the second
    kernel.answer()
    after = audit_anew(session)
    row = next(row for row in after.rows if row.path == name)
    assert str(row.spec) == str(session.program.requests[number].spec) == view["spec"]
    saved = sum(before.values()) - sum(held(after).values())
    promised = f"−{bytes_text(saved)} stored per device"
    if fails:  # what it takes, as it took nothing before
        promised = f"takes {bytes_text(row.bytes_per_device)} on every device"
    assert view["memory"] == promised
    expect(page.locator(".sv-done")).to_contain_text(f"{name} is now {view['spec']}")
    assert "is split" in page.locator(".sv-reason").inner_text()
    page.get_by_role("button", name="Undo").click()
    kernel.answer()
    expect(sentence).to_have_text(f"{logical} is not split. {reason}")
    kernel.made.close()


def test_a_saved_page_says_it_by_keyboard_alone(page: Page, tmp_path):
    made = sv.explore(program(*CASES["an axis in use"][0]))
    opened(page, made, tmp_path)
    made.close()
    show_view(page, "Rules")
    chosen, reason = page.get_by_role("radio", checked=True), page.locator(".sv-reason")
    expect(reason).to_contain_text("Rule 31 asks for model")
    expect(page.get_by_role("button", name="Apply: ").first).to_be_disabled()
    chosen.focus()
    page.keyboard.press("ArrowRight")
    expect(chosen).to_contain_text("mlp")
    expect(chosen).to_be_focused()
    expect(reason).to_have_text("mlp is split 4 ways over model. Rule 3 decides.")
    fold = page.get_by_role("button", name="30 other rules do not name mlp")
    fold.focus()
    page.keyboard.press("Enter")
    expect(fold).to_have_attribute("aria-expanded", "true")
    rows = page.get_by_role("listitem").filter(has_text="matches no array here")
    expect(rows.first).to_be_visible()
    page.get_by_role("button", name="Why is").focus()
    for keys in ("Enter", "q", "Enter"):
        page.keyboard.press(keys)
    expect(reason).to_contain_text("embed is not split.")
