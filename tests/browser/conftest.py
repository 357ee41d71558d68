"""Fixtures of the browser tests: a Chromium, a page, a JupyterLab.

`page` and `lab` fail the test that leaves an error in the console, an uncaught error, or a
request beyond this machine behind; a test that means to takes it with `complaints.take()`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import HOW, find_chromium, in_ci
from tests.browser.lab import Lab, LabServer, lab_server
from tests.browser.watch import HEIGHT, WIDTH, Complaints, chromium, new_context

# Playwright's 5 s are not enough for a kernel on a busy machine.
expect.set_options(timeout=30_000)


# Playwright keeps an event loop running in this thread, which other tests must not meet: so the
# browser lives as long as this folder's tests and no longer.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = find_chromium()
    if path is None:
        (pytest.fail if in_ci() else pytest.skip)(HOW)
    with chromium(path) as launched:
        yield launched


@pytest.fixture(scope="package")
def one_tab(browser: Browser) -> Iterator[Page]:
    """The tab that `page` empties for every test: a new one costs more than most tests."""
    context = new_context(browser)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="package")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    with lab_server(tmp_path_factory.mktemp("lab")) as started:
        yield started


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    kept = Complaints()
    yield kept
    kept.check()


@pytest.fixture
def page(one_tab: Page, complaints: Complaints) -> Iterator[Page]:
    """An empty page of the usual size and colours."""
    one_tab.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    one_tab.emulate_media(color_scheme="light")
    with complaints.watching(one_tab):
        yield one_tab
        one_tab.goto("about:blank")


@pytest.fixture(scope="module")
def module_lab(browser: Browser, server: LabServer) -> Iterator[Lab]:
    """For tests that share a notebook; in their file none may have one of its own."""
    kept = Complaints()
    opened = Lab(server, browser, kept)
    yield opened
    opened.close()
    kept.check()


@pytest.fixture
def lab(browser: Browser, server: LabServer, complaints: Complaints) -> Iterator[Lab]:
    opened = Lab(server, browser, complaints)
    yield opened
    opened.close()
