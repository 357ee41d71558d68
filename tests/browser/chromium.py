"""Which Chromium the browser tests drive, and how to get one where there is none.

Run as a script (`make test` does) it asks Playwright for a missing one, and otherwise says in one
sentence how a person can get one. It imports nothing but the standard library.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys

VARIABLE = "SHARDVIZ_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLACES = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
HOW = (
    "No Chromium was found, so the browser tests cannot run: install one with `apt-get install"
    " chromium` or `.venv/bin/python -m playwright install --with-deps chromium`, or name yours in"
    f" {VARIABLE}."
)
_ASK_PLAYWRIGHT = (
    "from playwright.sync_api import sync_playwright\n"
    "with sync_playwright() as p: print(p.chromium.executable_path)"
)


@functools.cache
def find_chromium() -> str | None:
    """The path of a Chromium that answers, or None.

    What the variable names is taken alone, so that a mistake in it shows.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return named if version_of(named) else None
    on_path = [shutil.which(name) for name in NAMES]
    for path in (*on_path, *PLACES, _output([sys.executable, "-c", _ASK_PLAYWRIGHT])):
        if path and version_of(path):
            return path
    return None


def version_of(path: str) -> str:
    """What the browser at `path` calls itself; empty where it is missing or does not start.

    Some systems put a `chromium-browser` on the path that only tells people to install one.
    """
    return _output([path, "--version"])


def in_ci() -> bool:
    """Whether this is a CI run, where a missing browser is a failure and not a skip."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def _output(command: list[str], timeout: int = 60) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def main() -> int:
    """Says which browser there is, getting one if need be; 1 where CI has none, else 0."""
    path = find_chromium()
    if path is None and not os.environ.get(VARIABLE):
        print("No Chromium here; asking Playwright for its own.", flush=True)
        _output([sys.executable, "-m", "playwright", "install", "chromium"], 900)
        find_chromium.cache_clear()
        path = find_chromium()
    if path is None:
        print(HOW)
        return int(in_ci())
    print(f"Browser tests use {path} ({version_of(path)}).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
