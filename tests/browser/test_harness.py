from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.browser.lab import Lab
from tests.browser.watch import Complaints

pytestmark = pytest.mark.browser

BROKEN = """
import anywidget

class Broken(anywidget.AnyWidget):
    _esm = "export default { render() { throw new Error('planted fault'); } };"

Broken()
"""


@pytest.mark.parametrize(
    ("html", "complaint"),
    [
        ("<script>console.error('planted words')</script>", "console: planted words"),
        ("<script>throw new Error('planted fault')</script>", "uncaught: planted fault"),
        ("<img src='http://shardviz.example/x.png'>", "beyond this machine: http://shardviz.ex"),
    ],
)
def test_a_planted_fault_is_caught(page: Page, complaints: Complaints, html: str, complaint: str):
    page.set_content(html)
    page.wait_for_load_state("networkidle")
    assert complaint in "\n".join(complaints)
    with pytest.raises(AssertionError, match="The page complained"):
        complaints.check()


def test_a_fault_in_a_widget_is_caught(lab: Lab, complaints: Complaints):
    page = lab.open([BROKEN])
    if not complaints:
        page.wait_for_event("console", lambda _: bool(complaints))
    assert "planted fault" in "\n".join(complaints.take())
