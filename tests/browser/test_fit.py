"""Every view fits its window: no text on text, no control cut off, no page that scrolls."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from shardviz.axis_rules.audit import audit
from shardviz.axis_rules.optimizer_state import GROUPS
from shardviz.explorer.explorer import Explorer, open_explorer
from shardviz.explorer.session import Session
from shardviz.gallery import arrays, meshes, programs, rules
from shardviz.runs.cache import ExecutableCache
from tests.browser.legible import wrong_in
from tests.browser.views import opened, play_largest, show_view

WINDOWS = ((848, 620), (1280, 800), (1500, 900))
VIEWS = ("Layout", "Rules", "Model", "Program")
MESHES = {
    8: {},
    1024: {"mesh": "data=16, model=8, expert=8", "hosts": "128"},
    4096: {"mesh": "data=256, model=16", "hosts": "1024"},
    65536: {"mesh": "replica=2, data=256, fsdp=8, sequence=2, tensor=8", "hosts": "8192"},
}


def small(devices: int) -> Explorer:
    name = "transformer block, gradient" if devices == 64 else programs.DEFAULT
    session = Session(programs.get(name), name)
    for field, value in MESHES[devices].items():
        session.edit(field, value)
    if devices >= 4096:
        session.edit("preset", "arrays:7B model")
        session.edit("preset", "rules:FSDP + tensor parallel")
    assert session.now.errors == {}
    return Explorer(session, ExecutableCache())


def measured(page: Page, made: Explorer, folder) -> list[str]:
    """What is wrong in any view and window."""
    opened(page, made, folder)
    made.close()
    found = []
    for width, height in WINDOWS:
        page.set_viewport_size({"width": width, "height": height})
        for view in (*VIEWS, "Player"):
            if view != "Player":
                show_view(page, view)
            elif not play_largest(page):
                continue
            found += [f"{view}, {width}: {what}" for what in wrong_in(page)]
    return found


@pytest.mark.parametrize("devices", MESHES)
def test_every_view_fits(page: Page, tmp_path, devices: int):
    wrong = measured(page, small(devices), tmp_path)
    assert not wrong, "\n".join(wrong)


def test_a_model_of_many_leaves_fits(page: Page, tmp_path):
    found = audit(arrays.get("7B model"), rules.get("FSDP"), meshes.get())
    wrong = measured(page, open_explorer(found, ExecutableCache()), tmp_path)
    assert not wrong, "\n".join(wrong)


def test_in_the_model_red_is_failure_alone(page: Page, tmp_path):
    arrays_ = [
        ("fits", (64, 32, 3), "embed heads odd"),  # no rule knows its last name
        ("fails", (63, 32), "embed heads"),  # 63 does not divide
    ]
    found = audit(arrays_, [("embed", "data"), ("heads", "model")], meshes.get())
    made = open_explorer(found, ExecutableCache())
    opened(page, made, tmp_path)
    made.close()
    show_view(page, "Model")
    rows = page.locator(".sv-modelinner .sv-modelrow")
    fits, fails = rows.filter(has_text="fits"), rows.filter(has_text="fails")
    assert fits.locator(".sv-bad, .sv-over").count() == 0
    assert fits.locator(".sv-warn").count() == 0
    assert fails.locator(".sv-bad").count() == 1


def test_in_an_output_of_a_laptop_the_table_of_a_model_is_whole(page: Page, tmp_path):
    layer = {"q": ((1024, 16, 64), "embed heads kv"), "down": ((4096, 1024), "mlp embed")}
    weights = {"layers": [layer] * 4}
    found = audit(
        ({"params": weights}, {"opt": [{"mu": weights}]}), rules.get("FSDP"), meshes.get()
    )
    page.set_viewport_size({"width": 680, "height": 900})
    made = open_explorer(found, ExecutableCache())
    opened(page, made, tmp_path)
    made.close()
    show_view(page, "Model")
    labels = page.locator(".sv-modelinner .sv-leafname").all_inner_texts()
    heads = [label.strip("▾▸ \n").split("/")[0] for label in labels]
    assert [head for head in heads if head in GROUPS] == list(GROUPS[::2]), labels
    cut = "(all) => all.filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.innerText)"
    assert page.locator(".sv-model, .sv-model *").evaluate_all(cut) == []
