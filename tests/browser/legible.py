"""What cannot be read on a page: cut or covered text, small targets, pale or tiny letters.

`legible.js` measures it. Every page of `watch.new_context` has that script from its start, since
it records the text that is drawn on canvases.
"""

from __future__ import annotations

from playwright.sync_api import Page

# Two frames: the first for what the last event changed, the second for what that resized.
_PAINTED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def wrong_in(page: Page) -> list[str]:
    """What cannot be read in the view that is open."""
    page.evaluate(_PAINTED)
    return page.evaluate("() => legible.findings()")
