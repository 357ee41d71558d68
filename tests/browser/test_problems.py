"""The problems in the head of every view, and the strip that compares with a pinned state."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

import shardviz as sv
from shardviz.axis_rules.audit import audit
from shardviz.explorer.explorer import Explorer, open_explorer
from shardviz.explorer.session import Session
from shardviz.gallery import programs
from shardviz.runs.cache import ExecutableCache
from tests.browser.legible import wrong_in
from tests.browser.test_contract import Kernel
from tests.browser.views import open_tab, opened, show_view

WAIT_S = 120
# Whether what is open over the page is inside of the Explorer.
INSIDE = """() => {
  const inner = document.querySelector(".sv-popover:not([hidden])").getBoundingClientRect();
  const outer = document.querySelector(".shardviz-explorer").getBoundingClientRect();
  return inner.left > outer.left && inner.right < outer.right && inner.bottom < outer.bottom;
}"""
NARROW = {"width": 848, "height": 620}


def mlp(**edits: str) -> Explorer:
    session = Session(programs.get(), programs.DEFAULT)
    for field, value in edits.items():
        session.edit(field, value, 2)
    return Explorer(session, ExecutableCache())


def settled(kernel: Kernel) -> None:
    """Waits for what comes after an edit."""
    kernel.answer()
    kernel.made.wait(WAIT_S)
    kernel.answer()


def live(page: Page, made: Explorer) -> Kernel:
    kernel = Kernel(page, made=made)
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    settled(kernel)
    return kernel


def head(page: Page) -> Locator:
    return page.get_by_role("group", name="Problems")


def rows(page: Page) -> Locator:
    return page.get_by_role("dialog", name="Problems").get_by_role("listitem")


def test_by_keyboard_from_the_sign_to_the_place_and_back(page: Page, complaints):
    kernel = live(page, mlp(logical="batch embd"))
    sign = head(page).get_by_role("button", name="of extra copies (3 arrays)")
    sign.focus()
    page.keyboard.press("Enter")
    expect(sign).to_have_attribute("aria-expanded", "true")
    misspelt = rows(page).filter(has_text="embd")
    expect(misspelt).to_contain_text("loses")
    expect(rows(page).first.get_by_role("button").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(rows(page)).to_have_count(0)
    expect(sign).to_be_focused()
    page.keyboard.press("Enter")
    place = misspelt.get_by_role("button", name="No rule names 'embd'")
    for _ in range(rows(page).count() * 2):
        if place.evaluate("(e) => e === document.activeElement"):
            break
        page.keyboard.press("ArrowDown")
    expect(place).to_be_focused()
    page.keyboard.press("Enter")
    kernel.answer()
    expect(rows(page)).to_have_count(0)
    tab = page.get_by_role("tablist", name="Views").get_by_role("tab", name="Rules")
    expect(tab).to_have_attribute("aria-selected", "true")
    panel = page.get_by_role("tabpanel", name="Why a dimension is split or not")
    expect(panel).to_contain_text("embd")
    kernel.made.close()


def test_fix_leads_to_remedies_and_the_problem_goes(page: Page, complaints):
    kernel = live(page, mlp(logical="batch embd"))
    before = head(page).inner_text()
    head(page).get_by_role("button").first.click()
    rows(page).filter(has_text="embd").get_by_role("button", name="Fix x.embd").click()
    kernel.answer()
    page.get_by_role("button", name="Apply").first.click()
    settled(kernel)
    assert head(page).inner_text() != before
    head(page).get_by_role("button").first.click()
    expect(rows(page).filter(has_text="embd")).to_have_count(0)
    kernel.made.close()


def test_a_program_without_a_plan_lists_all_reasons_in_every_tab_with_fix(page: Page, complaints):
    table = [("batch", "data"), ("mlp", "model"), ("embed", "data")]
    w, x = sv.array("w", (4094, 8190), "embed mlp"), sv.array("x", (510, 4096), "batch embed")
    program = sv.program(lambda w, x: (w @ w.T, x), w, x, mesh="data=4, model=4", rules=table)
    kernel = live(page, open_explorer(program, ExecutableCache()))
    show_view(page, "Program")
    settled(kernel)
    headline = page.get_by_role("group", name="Least time")
    reasons = page.get_by_role("alert")
    for tab in ("Timeline", "Collectives", "Values", "Memory"):
        open_tab(page, tab)
        expect(headline).to_have_text("There is no plan, so least times and memory are not known.")
        expect(reasons).to_contain_text("No plan.")
        listed = reasons.get_by_role("listitem")
        expect(listed).to_have_count(3)
        expect(listed.nth(0)).to_contain_text("Dimension 0: 4,094 is not divisible by 4 (data)")
        expect(listed.nth(1)).to_contain_text("Dimension 1: 8,190 is not divisible by 4 (model)")
        expect(listed.nth(2)).to_contain_text("x cannot be laid out. Dimension 0: 510")
        body = page.get_by_role("tabpanel", name=f"Tab {tab}")
        expect(body).not_to_contain_text("is not divisible")
        expect(body).not_to_contain_text("compile says")
    reasons.get_by_role("button", name="Fix x.batch").click()
    kernel.answer()
    page.get_by_role("button", name="Apply").first.click()
    settled(kernel)
    show_view(page, "Program")
    expect(reasons.get_by_role("listitem")).to_have_count(2)
    # The reasons are those of the program as it is now.
    kernel.made.session.edit("mesh", "data=2, model=2")
    settled(kernel)
    expect(reasons).to_be_hidden()
    expect(headline).to_contain_text("from the plan")
    kernel.made.close()


def test_a_program_that_raises_has_its_error_above_the_tabs(page: Page, complaints):
    x = sv.array("x", (64, 64), spec="data")
    program = sv.program(lambda x: x.reshape(3, 5), x, mesh="data=4")
    kernel = live(page, open_explorer(program, ExecutableCache()))
    show_view(page, "Program")
    settled(kernel)
    for tab in ("Timeline", "Collectives", "Values", "Memory"):
        open_tab(page, tab)
        expect(page.get_by_role("alert")).to_contain_text("(3, 5)")
        expect(page.get_by_role("alert").get_by_role("listitem")).to_have_count(0)
    expect(page.get_by_role("group", name="Least time")).to_have_text(
        "There is no plan, so least times and memory are not known."
    )
    kernel.made.close()


def test_what_fails_is_red_counted_and_changed_by_one_click(page: Page, complaints):
    kernel = live(page, mlp(target="tpu:v5e:4x4"))
    head(page).get_by_role("button", name="1 fails").click()
    rows(page).first.get_by_role("button", name="Change the mesh to").click()
    settled(kernel)
    assert kernel.made.session.mesh.size == 16
    expect(head(page).get_by_role("button", name="fail")).to_have_count(0)
    kernel.made.close()


def test_a_refused_field_counts_and_is_gone_to(page: Page, complaints):
    kernel = live(page, mlp())
    page.get_by_label("Mesh axes", exact=True).fill("data=x")
    page.keyboard.press("Enter")
    kernel.answer()
    head(page).get_by_role("button", name="1 fails").click()
    rows(page).first.get_by_role("button", name="refused").click()
    expect(page.get_by_label("Mesh axes", exact=True)).to_be_focused()
    kernel.made.close()


def test_a_saved_page_lists_them_without_what_needs_a_kernel(page: Page, tmp_path, complaints):
    table = [("batch", "data"), ("mlp", "model")]
    found = audit(
        [("a", (64, 64), "batch mpl"), ("b", (6, 64), "batch mlp")], table, "data=4, model=2"
    )
    made = open_explorer(found, ExecutableCache())
    opened(page, made, tmp_path)
    made.close()
    expect(head(page).get_by_role("button", name="1 fails")).to_be_visible()
    for view in ("Layout", "Rules", "Model", "Program"):
        show_view(page, view)
        expect(head(page).get_by_role("button", name="of extra copies")).to_be_visible()
    head(page).get_by_role("button", name="1 fails").click()
    expect(rows(page).first).to_contain_text("b cannot be laid out")
    dialog = page.get_by_role("dialog", name="Problems")
    expect(dialog.get_by_role("button", name="Fix")).to_have_count(0)


def test_compare_shows_both_states_in_every_view_and_goes_back(page: Page, complaints):
    kernel = live(page, mlp())
    page.get_by_role("button", name="Compare").click()
    kernel.answer()
    pinned = kernel.made.session.now
    strip = page.get_by_role("region", name="A and now")
    expect(strip.get_by_role("button", name="Back to A")).to_be_disabled()
    kernel.made.session.edit("mesh", "data=2, model=4")
    settled(kernel)
    bytes_of = [
        sum(r.bytes_per_device for r in made.program.requests)
        for made in (pinned, kernel.made.session.now)
    ]
    assert bytes_of[0] > bytes_of[1]
    for view in ("Layout", "Rules", "Model", "Program"):
        show_view(page, view)
        kernel.answer()
        expect(strip).to_contain_text("bytes per device")
        expect(strip.locator(".sv-good").first).to_contain_text("▾ −")
    strip.get_by_role("button", name="Back to A").click()
    kernel.answer()
    assert kernel.made.session.mesh.shape == {"data": 4, "model": 2}
    page.get_by_role("button", name="Undo").click()
    kernel.answer()
    assert kernel.made.session.mesh.shape == {"data": 2, "model": 4}
    strip.get_by_role("button", name="Unpin").click()
    kernel.answer()
    expect(strip).to_be_hidden()
    kernel.made.close()


def test_all_of_it_fits_a_narrow_page(page: Page, complaints):
    page.set_viewport_size(NARROW)
    kernel = live(page, mlp(logical="batch embd"))
    page.get_by_role("button", name="Compare").click()
    kernel.answer()
    kernel.made.session.edit("mesh", "data=2, model=4")
    settled(kernel)
    wrong = []
    for view in ("Layout", "Rules", "Model", "Program"):
        show_view(page, view)
        kernel.answer()
        wrong += [f"{view}: {what}" for what in wrong_in(page)]
        head(page).get_by_role("button").first.click()
        assert page.evaluate(INSIDE), f"{view}: the list"
        page.keyboard.press("Escape")
        page.keyboard.press("Control+k")
        assert page.evaluate(INSIDE), f"{view}: Find"
        page.keyboard.press("Escape")
    wrong = [what for what in wrong if "Size of" not in what]
    assert not wrong, "\n".join(wrong)
    kernel.made.close()


def test_an_array_without_a_picture_never_has_the_picture_of_another(page: Page):
    kernel = live(page, mlp())
    picture = page.get_by_label("Array", exact=True)
    cards = page.get_by_role("list", name="Arrays").get_by_role("listitem")
    failing, other = cards.filter(has_text="w_out"), cards.filter(has_text="w_in")
    other.get_by_role("button").first.click()
    kernel.answer()
    expect(picture).to_be_visible()
    kernel.made.session.edit("shape", "511, 77", 1)
    settled(kernel)
    failing.get_by_role("button").first.click()
    settled(kernel)
    kernel.made.session.edit("hosts", "2")
    settled(kernel)
    expect(picture).to_be_hidden()
    other.get_by_role("button").first.click()
    kernel.answer()
    expect(picture).to_be_visible()
    kernel.made.close()
