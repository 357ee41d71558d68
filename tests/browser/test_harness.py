from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab import DARK, LIGHT, Lab, set_theme, tracebacks
from tests.browser.watch import Complaints

pytestmark = pytest.mark.browser

COUNTER = '''
import anywidget, traitlets

class Counter(anywidget.AnyWidget):
    count = traitlets.Int(0).tag(sync=True)
    doubled = traitlets.Int(0).tag(sync=True)
    _esm = """
    function render({ model, el }) {
      const button = document.createElement("button");
      button.setAttribute("aria-label", "Count");
      const shown = () => `${model.get("count")} doubled ${model.get("doubled")}`;
      const show = () => { button.textContent = shown(); };
      button.onclick = () => { model.set("count", model.get("count") + 1); model.save_changes(); };
      model.on("change:doubled", show);
      show();
      el.append(button);
    }
    export default { render };
    """

    @traitlets.observe("count")
    def _double(self, change):
        self.doubled = 2 * change.new

Counter(count=3)
'''
BROKEN = """
import anywidget

class Broken(anywidget.AnyWidget):
    _esm = "export default { render() { throw new Error('planted fault'); } };"

Broken()
"""


def test_a_page_renders_its_content(page: Page):
    page.set_content("<button aria-label='Press'>hello</button>")
    expect(page.get_by_label("Press")).to_have_text("hello")


@pytest.mark.parametrize(
    ("html", "complaint"),
    [
        ("<script>console.error('planted words')</script>", "console: planted words"),
        ("<script>throw new Error('planted fault')</script>", "uncaught: planted fault"),
        ("<script>Promise.reject(new Error('planted promise'))</script>", "planted promise"),
        ("<img src='http://shardviz.example/x.png'>", "beyond this machine: http://shardviz.ex"),
        ("<script>fetch('http://192.0.2.1/').catch(() => 0)</script>", "beyond this machine"),
    ],
)
def test_a_planted_fault_is_caught(page: Page, complaints: Complaints, html: str, complaint: str):
    page.set_content(html)
    page.wait_for_load_state("networkidle")
    assert complaint in "\n".join(complaints)
    with pytest.raises(AssertionError, match="The page complained"):
        complaints.check()


def test_a_widget_makes_the_round_trip_to_its_kernel(lab: Lab):
    page = lab.open([COUNTER])
    button = page.get_by_label("Count")
    expect(button).to_have_text("3 doubled 6")
    button.click()
    expect(button).to_have_text("4 doubled 8")


def test_a_fault_in_a_widget_is_caught(lab: Lab, complaints: Complaints):
    page = lab.open([BROKEN])
    if not complaints:
        page.wait_for_event("console", lambda _: bool(complaints))
    assert "planted fault" in "\n".join(complaints.take())


def test_a_cell_that_fails_is_caught(lab: Lab):
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        lab.open(["1 / 0"])


def test_cells_run_in_order_and_the_theme_can_be_switched(lab: Lab):
    page = lab.open(["x = 6", "x * 7"], theme=DARK)
    expect(page.locator(".jp-OutputArea-output").last).to_have_text("42")
    assert page.locator("body").get_attribute("data-jp-theme-light") == "false"
    set_theme(page, LIGHT)
    assert page.locator("body").get_attribute("data-jp-theme-light") == "true"
    assert tracebacks(page) == []
