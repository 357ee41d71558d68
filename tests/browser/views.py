"""The views of the Explorer: which one has a control, and how a test opens it."""

from __future__ import annotations

from playwright.sync_api import Page, expect

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
