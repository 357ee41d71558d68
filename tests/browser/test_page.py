"""The saved page: no kernel, no network, everything one can point at."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from shardviz.core.program.cache import ExecutableCache
from shardviz.gallery import programs
from shardviz.widgets.explorer import Explorer
from shardviz.widgets.session import Session
from tests.browser.views import open_tab, show_view

SIZES = {
    "8": {},
    "64 on 8 hosts": {"mesh": "data=8, model=8", "hosts": "8"},
    "5-D": {"mesh": "data=2, a=2, model=2, b=2, c=2"},
    "1-D": {"mesh": "model=8", "rules": "mlp -> model"},
}


def explorer(name: str = programs.DEFAULT, **edits: str) -> Explorer:
    session = Session(programs.get(name), name)
    for field, value in edits.items():
        session.edit(field, value)
    assert session.now.errors == {}
    return Explorer(session, ExecutableCache())


def opened(page: Page, made: Explorer, folder: Path) -> Page:
    page.goto(made.save_html(folder / "page").as_uri())
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    return page


def sentence(page: Page) -> str:
    return page.locator(".sv-sentence").inner_text()


def shard_rows(page: Page) -> dict[int, list[str]]:
    open_tab(page, "Shards")
    rows = page.locator(".sv-shardrow").all()
    cells = [row.locator("> *").all_inner_texts() for row in rows]
    return {int(row[0]): row[2:] for row in cells}


@pytest.mark.parametrize("edits", SIZES.values(), ids=SIZES.keys())
def test_the_page_has_the_shard_indices_of_python(page, tmp_path, edits):
    made = explorer(**edits)
    rows = shard_rows(opened(page, made, tmp_path))
    assert len(rows) >= 8
    for device, cells in rows.items():
        for text, asked in zip(cells, made.session.program.requests, strict=True):
            box = asked.layout.box(device)
            assert text == "[" + ", ".join(f"{s.start}:{s.stop}" for s in box) + "]"


def test_arrow_keys_move_over_devices_and_enter_pins(page, tmp_path):
    opened(page, explorer(), tmp_path)
    page.get_by_label("Devices", exact=True).focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert "Device 3 holds w_in[0:512, 1024:2048], 2 MiB, replica 2 of 4 (with 1, 5, 7)" in (
        sentence(page)
    )
    page.keyboard.press("Enter")
    expect(page.locator(".sv-sentence.sv-pinned")).to_have_count(1)
    page.get_by_label("Array", exact=True).hover()
    assert "Device 3" in sentence(page)
    page.get_by_label("Devices", exact=True).focus()
    page.keyboard.press("Escape")
    assert "is split into 2 blocks" in sentence(page)


def test_pointing_at_a_device_marks_its_block_everywhere_and_its_row(page, tmp_path):
    opened(page, explorer(), tmp_path)
    open_tab(page, "Shards")
    page.get_by_label("Devices", exact=True).focus()
    page.keyboard.press("End")
    assert page.locator(".sv-marked b").all_inner_texts() == ["7"]
    assert page.locator(".sv-holds").all_inner_texts() == [
        "w_out[1024:2048, 0:512]",
        "x[48:64, 256:512]",
    ]


def canvas_hash(page: Page, label: str) -> str:
    return (
        page.get_by_label(label, exact=True).locator("canvas").first.evaluate("c => c.toDataURL()")
    )


def test_wheel_zooms_drag_pans_and_double_click_fits(page, tmp_path):
    opened(page, explorer(mesh="data=16, model=16"), tmp_path)
    box = page.get_by_label("Devices", exact=True).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 3
    fitted = canvas_hash(page, "Devices")
    page.mouse.move(x, y)
    page.mouse.wheel(0, -600)
    assert canvas_hash(page, "Devices") == fitted, "the wheel scrolls the page"
    page.keyboard.down("Control")
    page.mouse.wheel(0, -600)
    page.keyboard.up("Control")
    zoomed = canvas_hash(page, "Devices")
    assert zoomed != fitted
    page.mouse.down()
    page.mouse.move(x + 60, y + 40, steps=4)
    page.mouse.up()
    assert canvas_hash(page, "Devices") not in (fitted, zoomed)
    page.mouse.dblclick(x, y)
    assert canvas_hash(page, "Devices") == fitted


def test_cards_choose_an_array_without_a_kernel(page, tmp_path):
    opened(page, explorer(), tmp_path)
    page.locator(".sv-cardhead").nth(2).click()
    expect(page.locator(".sv-title")).to_have_text("x  f32[64, 512]")
    assert "x is split into 8 blocks" in sentence(page)


def test_nothing_can_be_edited_without_a_kernel(page, tmp_path):
    opened(page, explorer(), tmp_path)
    for label in ("Mesh axes", "Target", "Array shape", "Logical axes", "PartitionSpec", "Rules"):
        assert page.get_by_label(label, exact=True).is_disabled(), label
    show_view(page, "Program")
    for name in ("Compile", "Run"):
        assert page.get_by_role("button", name=name, exact=True).is_disabled()


def test_names_that_are_markup_stay_text(page, tmp_path):
    made = explorer()
    bad = "</script><img src=x onerror=alert(1)>"
    made.session.edit("name", bad, 0)
    made.session.edit("rules", f"'{bad}' -> '{bad}'")
    made.session.edit("logical", f"'{bad}' mlp", 0)
    dialogs = []
    page.on("dialog", lambda d: (dialogs.append(d.message), d.dismiss()))
    opened(page, made, tmp_path)
    assert bad in page.locator(".sv-card b").first.inner_text()
    assert page.locator(".shardviz-explorer img").count() == 0
    assert dialogs == []


# Names that mean something to JSON, to JavaScript or to the page itself.
NAMES = ("$bytes", "__proto__", "]]>")


@pytest.mark.parametrize("name", NAMES)
def test_an_axis_and_an_array_may_have_any_name(page, tmp_path, name):
    made = explorer(hosts="2", mesh=f"'{name}'=32, model=2", rules=f"'{name}' -> '{name}'")
    made.session.edit("name", name, 2)
    made.session.edit("logical", f"'{name}' embed", 2)
    assert made.session.program.problems == ()
    assert made.plan is None
    opened(page, made, tmp_path)
    assert made.plan.ok, "the page has the values and stages, too"
    expect(page.locator(".sv-chip b").first).to_have_text(name)
    assert f"dimension 0 “{name}” → {name}" in select(page, 2)
    page.get_by_label("Devices", exact=True).focus()
    page.keyboard.press("End")
    assert f"Device 63 holds {name}[" in sentence(page)
    assert f"{name} 31, model 1" in sentence(page)
    open_tab(page, "Values")
    expect(page.locator(".sv-axislegend")).to_contain_text(name)
    expect(page.locator(".sv-vrow").first).to_be_visible()
    open_tab(page, "Collectives")
    expect(page.locator(".sv-stage").nth(1)).not_to_have_attribute("data-state", "none")


def select(page: Page, index: int) -> str:
    page.locator(".sv-cardhead").nth(index).click()
    return sentence(page)


# The colours of the corners of blocks, where no text is.
COLOURS = """() => {
  const canvas = document.querySelector('[aria-label="Array"] canvas');
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const counts = new Map();
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] < 255) continue;
    const key = `${data[i]},${data[i + 1]},${data[i + 2]}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  const large = [...counts].filter(([, n]) => n > canvas.width * canvas.height * 0.02);
  return large.map(([key]) => key);
}"""


def test_every_control_has_a_name(page, tmp_path):
    opened(page, explorer(), tmp_path)
    for tab in ("Values", "Collectives", "Memory"):
        open_tab(page, tab)
        nameless = page.eval_on_selector_all(
            ".shardviz-explorer :is(input, textarea, select, button, [tabindex], [role=img])",
            "all => all.filter(e => !(e.getAttribute('aria-label') || e.textContent.trim()))"
            ".map(e => e.outerHTML.slice(0, 120))",
        )
        assert nameless == []
