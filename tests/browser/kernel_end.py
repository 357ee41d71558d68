"""What a page says and does when its kernel is killed; run as a script, at random moments.

python -m tests.browser.kernel_end        20 moments
python -m tests.browser.kernel_end 5      as many
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.chromium import HOW, find_chromium
from tests.browser.lab import Lab, lab_server
from tests.browser.views import show_view
from tests.browser.watch import Complaints, chromium

WITHIN_S = 3.0
OPEN = "import shardviz as sv\nexplorer = sv.explore()\nexplorer"
KILL = """() => {
  const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
  kernel.requestExecute({ code: 'import os; os.kill(os.getpid(), 9)' });
}"""
# The controls that work although there is no kernel, and whether an edit seems to be under way.
PRETENDS = """() => {
  const root = document.querySelector(".shardviz-explorer");
  const some = root.querySelectorAll("input, textarea, select, [data-edit]");
  const free = [...some].filter((e) => !e.disabled && !e.dataset.keep && !e.readOnly);
  return free.map((e) => e.getAttribute("aria-label") ?? e.textContent);
}"""


def killed(page: Page, types: bool = False) -> float:
    """Kills the kernel of the open notebook; the seconds until the page says so."""
    if types:
        page.get_by_label("Mesh axes", exact=True).press_sequentially("2", delay=5)
    page.evaluate(KILL)
    begun = time.monotonic()
    expect(page.locator(".sv-banner")).to_be_visible(timeout=20_000)
    return time.monotonic() - begun


def pretends(page: Page) -> list[str]:
    """The names of the controls that could be used although there is no kernel."""
    return page.evaluate(PRETENDS)


def _one(lab: Lab, chance: random.Random) -> tuple[float, list[str]]:
    """One Explorer, a few actions, and the end of its kernel."""
    page = lab.open([OPEN], width=1280, height=800)
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    for _ in range(chance.randrange(4)):
        view = chance.choice(["Layout", "Rules", "Model", "Program"])
        show_view(page, view)
        page.get_by_label("Double axis data").click()
    page.wait_for_timeout(chance.uniform(0, 2500))
    if chance.random() < 0.3:
        show_view(page, "Program")
        page.get_by_role("button", name="Compile", exact=True).click()
    found = killed(page, types=chance.random() < 0.3), pretends(page)
    page.close()
    return found


def main(moments: int = 20, seed: int = 0) -> int:
    """Prints how long each page took to say it; 1 where one took too long or pretends to work."""
    path = find_chromium()
    if path is None:
        print(HOW)
        return 1
    chance, bad = random.Random(seed), 0
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium(path) as browser,
        lab_server(Path(folder)) as server,
    ):
        for number in range(moments):
            took, free = _one(Lab(server, browser, Complaints()), chance)
            wrong = took > WITHIN_S or bool(free)
            bad += wrong
            print(
                f"{number + 1}: {took:.2f} s{f', still usable: {free}' if free else ''}", flush=True
            )
    print(f"{moments - bad} of {moments} kernels killed: said within {WITHIN_S:g} s, all locked.")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
