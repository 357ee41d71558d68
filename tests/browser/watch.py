"""A Chromium that reaches nothing but this machine, and pages whose every complaint is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # The page's own requests must fail as they would on a machine without a network.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost , EXCLUDE 127.0.0.1",
    # Screenshots must look alike on every machine.
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
]
WIDTH, HEIGHT = 1280, 900  # of a page, in CSS pixels
LOCAL = ("localhost", "127.0.0.1", "", None)


class Complaints(list[str]):
    """What went wrong in the pages of one test: uncaught errors, console errors, requests abroad.

    A test that plants an error takes it out with `take`; whatever is left at the end fails it.
    """

    @contextmanager
    def watching(self, page: Page) -> Iterator[None]:
        """Keeps every complaint of `page` while this is open."""
        handlers = {
            "pageerror": lambda error: self.append(f"uncaught: {error}"),
            "console": self._on_console,
            "request": lambda request: self._on_request(request.url),
        }
        for event, handler in handlers.items():
            page.on(event, handler)  # type: ignore[call-overload]
        yield
        for event, handler in handlers.items():
            page.remove_listener(event, handler)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not _expected(message):
            self.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _on_request(self, url: str) -> None:
        if urlsplit(url).hostname not in LOCAL:
            self.append(f"request beyond this machine: {url[:200]}")

    def take(self) -> list[str]:
        """What was kept until now, which is then forgotten."""
        kept = list(self)
        self.clear()
        return kept

    def check(self) -> None:
        """Fails with every complaint that was not taken.

        Raises:
            AssertionError: if there is one.
        """
        if self:
            raise AssertionError("The page complained:\n  " + "\n  ".join(self.take()))


def _expected(message: ConsoleMessage) -> bool:
    """JupyterLab asks for files that a new notebook does not have, and tries again."""
    url = message.location.get("url", "")
    return "404" in message.text and ("/api/workspaces" in url or "/api/contents" in url)


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """A headless Chromium, closed at the end."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGS)
        try:
            yield browser
        finally:
            browser.close()


def new_context(
    browser: Browser, width: int = WIDTH, height: int = HEIGHT, scale: float = 1
) -> BrowserContext:
    """A fresh profile: no cookies, no storage; sizes in CSS pixels of `scale` device pixels.

    Its pages have `legible.js`, which is to see the text that canvases draw.
    """
    context = browser.new_context(
        viewport={"width": width, "height": height},
        device_scale_factor=scale,
        reduced_motion="reduce",
        locale="en-US",
    )
    context.add_init_script(path=Path(__file__).with_name("legible.js"))
    return context
