"""The Explorers in the pages of the site: they work with no kernel and with the network blocked.

`make docs` builds the site; without it there is nothing to open. The browser reaches no other
machine, and a request beyond this one fails the test.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, Response, expect

from tests.browser.views import play_largest
from tests.docs.made_pages import HOW, SITE, read_page

GALLERY = SITE / "gallery" / "explorers.html"
needs_site = pytest.mark.skipif(not GALLERY.is_file(), reason=HOW)


def embedded() -> list[str]:
    """The files of the Explorers in the gallery, in order."""
    if not GALLERY.is_file():
        return []
    references, _ = read_page(GALLERY.read_text(encoding="utf-8"))
    found = [r.target for r in references if r.loaded and r.target.startswith("../explorers/")]
    return list(dict.fromkeys(found))


@needs_site
def test_the_gallery_embeds_explorers():
    assert len(embedded()) >= 4


@needs_site
@pytest.mark.parametrize(("file", "theme"), list(zip(embedded(), cycle(["light", "dark"]))))
def test_an_embedded_explorer_works_without_kernel_and_network(page: Page, file: str, theme: str):
    page.emulate_media(color_scheme=theme)
    page.goto(GALLERY.as_uri())
    frame = page.locator(f'iframe[src="{file}"]')
    frame.scroll_into_view_if_needed()  # frames load when they are in sight
    explorer = frame.content_frame
    root = explorer.locator(".shardviz-explorer[data-seq]")
    expect(root).to_be_visible()
    expect(root).to_have_attribute("data-theme", theme)
    explorer.get_by_role("tab", name="Layout", exact=True).click()  # each opens where its answer is
    devices = explorer.get_by_label("Devices", exact=True)
    devices.focus()
    for _ in range(2):  # to the first device, and on
        page.keyboard.press("ArrowRight")
    expect(explorer.locator(".sv-sentence")).to_have_text(re.compile(r"^Device 1 holds \S+\["))
    for view in ("Rules", "Program", "Layout"):
        explorer.get_by_role("tab", name=view, exact=True).click()
        expect(explorer.get_by_role("tab", name=view, exact=True)).to_have_attribute(
            "aria-selected", "true"
        )


@needs_site
def test_the_first_screen_of_home_has_buttons_and_an_explorer_of_two_arrays(page: Page):
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto((SITE / "index.html").as_uri())
    buttons = page.locator("article a.shardviz-button")
    expect(buttons).to_have_text(["First steps", "Course"])
    explorer = page.locator("iframe.shardviz-saved").first.content_frame
    devices = explorer.get_by_label("Devices", exact=True)
    expect(devices).to_be_visible()
    box = devices.bounding_box()
    assert box is not None
    assert box["y"] < 800
    devices.focus()
    page.keyboard.press("ArrowRight")
    expect(explorer.locator(".sv-sentence")).to_have_text(re.compile(r"^Device \d+ holds \S+\["))


@needs_site
def test_the_train_step_of_home_plays(page: Page):
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto((SITE / "index.html").as_uri())
    frame = page.locator('iframe[src="explorers/train-8b.html"]')
    frame.scroll_into_view_if_needed()
    explorer = frame.content_frame
    expect(explorer.locator(".sv-headline")).to_be_visible()
    assert play_largest(explorer)
    expect(explorer.locator(".sv-movement")).to_be_visible()


def built_pages() -> list[Path]:
    """Every page of the site; not the saved Explorers, nor templates of the theme."""
    found = []
    for path in sorted(SITE.rglob("*.html")):
        if path.relative_to(SITE).parts[0] not in ("_static", "explorers"):
            found.append(path)
    return found


@needs_site
def test_on_a_telephone_no_page_scrolls_sideways(page: Page):
    page.set_viewport_size({"width": 400, "height": 800})
    wide = []
    for path in built_pages():
        page.goto(path.as_uri())
        if page.evaluate("() => document.documentElement.scrollWidth") > 400:
            wide.append(path.name)
    assert wide == []
    # A page that does would be found.
    page.evaluate("() => { document.querySelector('article h1').style.width = '500px'; }")
    assert page.evaluate("() => document.documentElement.scrollWidth") > 400


@needs_site
def test_a_lesson_has_a_download_tasks_as_text_and_code_to_copy(page: Page):
    page.goto((SITE / "lessons" / "01_see_a_sharding.html").as_uri())
    download = page.get_by_role("link", name="Download this notebook")
    expect(download).to_have_attribute("href", re.compile(r"_downloads/.*\.ipynb$"))
    expect(page.locator("article .cell_output strong").first).to_have_text(re.compile(r"^\w+/"))
    assert page.locator("button.copybtn").count() > 5


@needs_site
def test_an_explorer_that_needs_only_the_gallery_is_live_in_its_lesson(page: Page):
    page.goto((SITE / "lessons" / "12_why_did_no_rule_match.html").as_uri())
    expect(page.locator("iframe.shardviz-saved")).to_have_count(1)


@needs_site
@pytest.mark.parametrize("name", ["index", "first-steps", "howto/all-gather", "reference/layout"])
def test_a_page_loads_nothing_from_elsewhere_and_complains_of_nothing(page: Page, name: str):
    page.goto((SITE / f"{name}.html").as_uri())
    expect(page.locator("article h1").first).to_be_visible()
    shown = page.evaluate(
        "() => [...document.images].filter(i => i.checkVisibility() && i.loading !== 'lazy')"
        ".every(i => i.complete && i.naturalWidth > 0)"
    )
    assert shown


@pytest.fixture(scope="module")
def site_address() -> Iterator[str]:
    """The address of the site behind a server on this machine, which counts as no other one."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


LIGHT = ["index", "first-steps", "stages", "howto/all-gather", "reference/plot"]
LIGHT += ["gallery/programs", "gallery/programs-transformer", "gallery/layout-view"]


@needs_site
@pytest.mark.parametrize("name", LIGHT)
def test_a_page_without_explorers_loads_less_than_800_kb(page: Page, site_address: str, name: str):
    loaded: dict[str, int] = {}

    def count(response: Response) -> None:
        if "/explorers/" not in response.url:
            loaded[response.url] = int(response.headers.get("content-length", 0))

    page.on("response", count)
    page.goto(f"{site_address}/{name}.html")
    page.wait_for_load_state("load")
    assert len(loaded) > 5
    assert not any("fontawesome" in url or "searchindex" in url for url in loaded)
    assert sum(loaded.values()) < 800_000, loaded


SEARCHES = {
    "OOM": "howto/out-of-memory",
    "out of memory": "howto/out-of-memory",
    "FSDP": "lessons/07_data_fsdp_tensor",
    "KV cache": "lessons/23_kv_cache",
    "recompile": "howto/recompile",
    "replicated": "howto/optimizer-state",
    "install": "first-steps",
}


@needs_site
@pytest.mark.parametrize(("words", "leads_to"), SEARCHES.items(), ids=SEARCHES)
def test_a_search_leads_to_the_page_that_answers(
    page: Page, site_address: str, words: str, leads_to: str
):
    page.goto(f"{site_address}/search.html?q={quote(words)}")
    first = page.locator("#search-results li a").first
    expect(first).to_have_attribute("href", re.compile(rf"^{leads_to}\.html"))
