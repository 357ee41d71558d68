"""Nothing is cut, covered or pale in an output of JupyterLab and of Notebook 7.

Every view and tab, at three widths of the window, light and dark, of programs from 8 to 65,536
devices, with arrays of five dimensions, long names, many rules and hundreds of arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.hosts import NOTEBOOK, served
from tests.browser.lab import DARK, LIGHT, READY, Lab, run_all, set_theme
from tests.browser.legible import wrong_in
from tests.browser.test_fit import VIEWS
from tests.browser.views import play_largest, press_button, show_view
from tests.browser.watch import new_context

pytestmark = [pytest.mark.browser, pytest.mark.long]
# The Explorer has a height of its own; in lower windows it is as high, but partly out of sight.
WINDOWS = ((848, 850), (1280, 900), (1500, 1000))
COMPILE_MS = 120_000
OPEN_MS = 120_000
MADE = """
import jax, jax.numpy as jnp
import shardviz as sv
from shardviz.explorer.explorer import Explorer
from shardviz.explorer.session import Session
from shardviz.gallery import programs
from shardviz.runs.cache import ExecutableCache

def edited(**edits):
    session = Session(programs.get(programs.DEFAULT), programs.DEFAULT)
    for field, texts in edits.items():
        for text in texts if isinstance(texts, list) else [texts]:
            session.edit(field, text)
    assert session.now.errors == {}
    return Explorer(session, ExecutableCache())
"""
LONG_NAMES = """
def block(weights, x):
    heads = jnp.einsum("bse,ehd->bshd", x, weights["self_attention_query_projection"])
    x = x + jnp.einsum("bshd,hde->bse", heads, weights["self_attention_output_projection"])
    hidden = jax.nn.gelu(jnp.einsum("bse,ef->bsf", x, weights["mlp_intermediate_dense"]))
    return x + jnp.einsum("bsf,fe->bse", hidden, weights["mlp_output_dense"])

def loss(params, batch_of_tokens):
    x = batch_of_tokens
    for weights in params["transformer_encoder_blocks"]:
        x = block(weights, x)
    return (x**2).mean()

AXES = {
    "self_attention_query_projection": ((512, 8, 64), "embed heads kv"),
    "self_attention_output_projection": ((8, 64, 512), "heads kv embed"),
    "mlp_intermediate_dense": ((512, 2048), "embed mlp"),
    "mlp_output_dense": ((2048, 512), "mlp embed"),
}
layers = [
    {
        name: sv.array(f"params.transformer_encoder_blocks.{i}.{name}", shape, axes)
        for name, (shape, axes) in AXES.items()
    }
    for i in range(4)
]
rules = [(f"a_logical_name_that_is_long_{i}", None) for i in range(24)]
rules += [("batch", "data"), ("embed", "data"), ("heads", "model"), ("mlp", "model"), ("kv", None)]
explorer = sv.explore(
    jax.grad(loss),
    {"transformer_encoder_blocks": layers},
    sv.array("batch_of_tokens", (32, 512, 512), "batch seq embed"),
    mesh="data=4, model=2",
    rules=[*rules, ("seq", None)],
)
explorer"""
FIVE = """
scores, cache = (32, 64, 16, 4096, 4096), (32, 64, 16, 4096, 128)
axes = ["batch", "expert", "heads", "query", "key"]
explorer = sv.explore(
    [
        sv.array("model.decoder.blocks.attention.scores", scores, " ".join(axes)),
        sv.array("model.decoder.blocks.cache", cache, "batch expert heads query kv"),
    ],
    mesh="data=8, expert=4, tensor=4, sequence=4, context=2",
    rules=[*zip(axes, ["data", "expert", "tensor", "sequence", "context"]), ("kv", None)],
)
explorer"""
MANY = """
shapes = {
    "self_attention_query_projection": ((1024, 16, 64), "embed heads kv"),
    "mlp_intermediate_dense": ((1024, 4096), "embed mlp"),
    "layer_norm_scale": ((1024,), "norm"),
    "odd": ((1023, 77), "embed mlp"),
}
explorer = sv.explore(
    [
        sv.array(f"transformer_encoder_block_{i}/{name}", shape, axes)
        for i in range(100)
        for name, (shape, axes) in shapes.items()
    ],
    mesh="data=16, model=4",
    rules=[("embed", "data"), ("heads", "model"), ("mlp", "model"), ("norm", None), ("kv", None)],
)
explorer"""
MESH = "replica=2, data=256, model=8, sequence=2, expert=8"
CELLS = {
    "8 devices, long names": LONG_NAMES,
    "1,024 devices": 'explorer = edited(mesh="data=16, model=8, expert=8", hosts="128")\nexplorer',
    "65,536 devices, five axes": f'explorer = edited(mesh="{MESH}", hosts="8192", '
    'preset=["arrays:7B model", "rules:FSDP + tensor parallel"])\nexplorer',
    "an array of five dimensions": FIVE,
    "400 arrays": MANY,
}


def screens(page: Page) -> Iterator[str]:
    """Opens each view, tab and list in turn."""
    for view in VIEWS:
        show_view(page, view)
        if view != "Program":
            yield view
            continue
        for tab in page.locator(".sv-tabline [role=tab]").all():
            tab.click()
            yield tab.inner_text()
            row = page.locator(".sv-crow:visible").first
            if row.is_visible() and row.get_attribute("aria-selected") != "true":
                row.click()
                yield "the chosen collective"
    if play_largest(page):
        yield "the player"
    for chip in page.locator(".sv-problemchip:visible").all()[:1]:
        chip.click()
        yield "the problems"
        page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    yield "Find"
    page.keyboard.press("Escape")


def wrong_anywhere(page: Page, themes: tuple[str, ...] = (LIGHT, DARK)) -> list[str]:
    """What cannot be read on any screen, in windows of all sizes."""
    wrong = []
    for theme in themes:
        set_theme(page, theme)
        for width, height in WINDOWS:
            page.set_viewport_size({"width": width, "height": height})
            explorer = page.locator(".shardviz-explorer")
            explorer.evaluate("(node) => node.scrollIntoView({ block: 'end' })")
            for screen in screens(page):
                wrong += [f"{theme}, {width}, {screen}: {what}" for what in wrong_in(page)]
    return wrong


def compiled(page: Page) -> None:
    press_button(page, "Compile")
    stage = page.locator(".sv-stage").nth(3)
    expect(stage).to_have_attribute("data-state", "live", timeout=COMPILE_MS)


@pytest.mark.parametrize("case", CELLS)
def test_all_of_it_can_be_read_in_jupyterlab(lab: Lab, case: str):
    page = lab.open([MADE, CELLS[case]], shared=True, width=848, height=850)
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    planned = page.locator(".sv-stage").nth(1)
    expect(planned).not_to_have_attribute("data-state", "none", timeout=COMPILE_MS)
    wrong = wrong_anywhere(page)
    if case.startswith("8 devices"):
        compiled(page)
        wrong += wrong_anywhere(page, (DARK,))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("case", [*CELLS][::2])
def test_all_of_it_can_be_read_in_notebook_7(browser: Browser, tmp_path: Path, case: str):
    with served(NOTEBOOK, [MADE, CELLS[case]], tmp_path / "host") as url:
        context = new_context(browser, *WINDOWS[0])
        page = context.new_page()
        page.goto(url)
        page.wait_for_function(READY, timeout=OPEN_MS)
        run_all(page)
        page.wait_for_selector(".shardviz-explorer[data-seq]")
        wrong = wrong_anywhere(page)
        context.close()
    assert not wrong, "\n".join(wrong)
