"""Takes the screenshots in docs/images, of the Explorer in JupyterLab.

python -m tests.browser.images            every one
python -m tests.browser.images 64 dark    those whose names hold these words
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page

from tests.browser.chromium import HOW, find_chromium
from tests.browser.lab import DARK, LIGHT, Lab, lab_server
from tests.browser.watch import Complaints, chromium

FOLDER = Path(__file__).parents[2] / "docs" / "images"
THEMES = {"light": LIGHT, "dark": DARK}
WIDTH, HEIGHT, SCALE = 1440, 1800, 2
EXPLORER = ".shardviz-explorer"


def as_it_opens(page: Page) -> None:
    """Nothing is touched."""


def on_mesh(axes: str) -> Callable[[Page], None]:
    """Types other mesh axes, as a person would, and waits for the picture."""

    def prepare(page: Page) -> None:
        before = page.locator(EXPLORER).get_attribute("data-seq")
        field = page.get_by_label("Mesh axes")
        field.fill(axes)
        page.wait_for_selector(f"{EXPLORER}:not([data-seq='{before}'])")
        field.blur()

    return prepare


@dataclass(frozen=True)
class Shot:
    """One screenshot of an Explorer.

    Attributes:
        name: of the file, less its theme and ending.
        cells: the code of the notebook; the last one shows the Explorer.
        prepare: what is done in the page before the picture is taken.
    """

    name: str
    cells: tuple[str, ...]
    prepare: Callable[[Page], None] = as_it_opens


OPEN = ("import shardviz as sv", "sv.explore()")
SHOTS = (
    Shot("explorer-8", OPEN),
    Shot("explorer-64", OPEN, on_mesh("data=16, model=4")),
    Shot("explorer-4096", OPEN, on_mesh("data=64, model=64")),
)


def take(lab: Lab, shot: Shot, theme: str, path: Path) -> None:
    """Writes one picture of the Explorer, and of nothing around it."""
    page = lab.open(shot.cells, theme=THEMES[theme], width=WIDTH, height=HEIGHT, scale=SCALE)
    explorer = page.locator(EXPLORER)
    page.wait_for_selector(f"{EXPLORER}[data-seq]")
    shot.prepare(page)
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    explorer.screenshot(path=path, animations="disabled", caret="hide")
    lab.close()


def main(words: Sequence[str] = ()) -> int:
    """Takes the pictures whose file names hold every word; 1 where there is no browser."""
    chromium_path = find_chromium()
    if chromium_path is None:
        print(HOW)
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    complaints = Complaints()
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium(chromium_path) as browser,
        lab_server(Path(folder)) as server,
    ):
        lab = Lab(server, browser, complaints)
        for shot in SHOTS:
            for theme in THEMES:
                name = f"{shot.name}-{theme}.png"
                if set(words) <= set(name.removesuffix(".png").split("-")):
                    take(lab, shot, theme, FOLDER / name)
                    print(f"docs/images/{name}")
    complaints.check()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
