"""The views of the Explorer: which one has a control, and how a test opens it."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from shardviz.explorer.explorer import Explorer
from shardviz.explorer.session import Session
from shardviz.gallery import programs
from shardviz.runs.cache import ExecutableCache

SETTLED = '.shardviz-explorer[data-settled="true"]'
VIEW_OF = {
    "Array name": "Layout",
    "Array shape": "Layout",
    "Logical axes": "Layout",
    "PartitionSpec": "Layout",
    "Shown dimensions": "Layout",
    "Array": "Layout",
    "Rules": "Rules",
    "Dialect": "Rules",
    "Program": "Program",
}


def show_view(page: Page, name: str) -> None:
    """Opens one of the views Layout, Rules, Model and Program."""
    tab = page.get_by_role("tablist", name="Views").get_by_role("tab", name=name)
    tab.click()
    expect(tab).to_have_attribute("aria-selected", "true")


def open_tab(page: Page, name: str) -> None:
    """Opens a tab of the view Program."""
    show_view(page, "Program")
    page.get_by_role("tab", name=name).click()


def press_button(page: Page, name: str) -> None:
    """Presses Compile, Run or Cancel, which are in the view Program."""
    show_view(page, "Program")
    page.get_by_role("button", name=name, exact=True).click()


def play_largest(page: Page) -> bool:
    """Plays the first collective of the table; False where there is none."""
    open_tab(page, "Collectives")
    rows = page.locator(".sv-crow")
    if not rows.count():
        return False
    if rows.first.get_attribute("aria-selected") != "true":
        rows.first.click()
    page.get_by_role("button", name="Play", exact=True).click()
    return True


def show_control(page: Page, label: str) -> None:
    """Opens the view that has this control; those of the bar are in sight always."""
    if label in VIEW_OF:
        show_view(page, VIEW_OF[label])


def explorer(name: str = programs.DEFAULT, **edits: str) -> Explorer:
    """An Explorer of a program of the gallery after some edits."""
    session = Session(programs.get(name), name)
    for field, value in edits.items():
        session.edit(field, value)
    assert session.now.errors == {}
    return Explorer(session, ExecutableCache())


def opened(page: Page, made: Explorer, folder: Path) -> Page:
    """The saved page of an Explorer."""
    page.goto(made.save_html(folder / "page").as_uri())
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    return page


def sentence(page: Page) -> str:
    """What is said under the pictures."""
    return page.locator(".sv-sentence").inner_text()


def type_into(page: Page, label: str, text: str) -> None:
    """Types into a field of a live page, and waits until the kernel has answered."""
    show_control(page, label)
    page.get_by_label(label, exact=True).fill(text)
    page.wait_for_selector(SETTLED)


def ask_kernel(page: Page, expression: str) -> object:
    """What an expression gives in the notebook's kernel, through JSON."""
    return page.evaluate(
        """async (code) => {
          const panel = window.jupyterapp.shell.currentWidget;
          const kernel = panel.sessionContext.session.kernel;
          const future = kernel.requestExecute({ code: '', user_expressions: { it: code } });
          const reply = await future.done;
          const it = reply.content.user_expressions.it;
          if (it.status !== 'ok') throw new Error(it.evalue);
          return JSON.parse(eval(it.data['text/plain']));
        }""",
        f"__import__('json').dumps({expression})",
    )


# How far the Explorer is from the edges of the window, and what is painted at its lower edge.
EDGES = """
() => {
  const root = document.querySelector(".shardviz-explorer");
  const { left, top, right, bottom } = root.getBoundingClientRect();
  const lowest = document.elementFromPoint(innerWidth / 2, innerHeight - 3);
  return [left, top, right - innerWidth, bottom - innerHeight, root.contains(lowest)].join();
}
"""


def full_screen_and_back(page: Page) -> None:
    """Fills the screen with the Explorer, and goes back to where it was."""
    before = page.evaluate(EDGES)
    page.get_by_role("button", name="Full screen").click()
    page.wait_for_function(f"() => ({EDGES})() === '0,0,0,0,true'")
    page.get_by_role("button", name="Back into the page").click()
    page.wait_for_function(f"() => ({EDGES})() === '{before}'")
