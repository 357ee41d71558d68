"""Which Chromium the browser tests drive, and how to get one where there is none.

Run as a script (`make test` does) it gets a missing one where that can be done without asking,
and otherwise says in one sentence how a person can. It imports nothing but the standard library.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

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
APT = (
    ["apt-get", "-qq", "update"],
    ["apt-get", "-qq", "-y", "--no-install-recommends", "install", "chromium", "fonts-dejavu-core"],
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
    for path in (*on_path, *PLACES):
        if path and version_of(path):
            return path
    path = _playwrights_own()
    return path if path and version_of(path) else None


def version_of(path: str) -> str:
    """What the browser at `path` calls itself; empty where it is missing or does not start.

    Some systems put a `chromium-browser` on the path that only tells people to install one.
    """
    if not Path(path).is_file():
        return ""
    return _output([path, "--version"])


def get_chromium() -> str | None:
    """Installs a Chromium where that needs no questions; its path, or None where none came."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print("No Chromium here; installing one with apt-get.", flush=True)
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in APT:
            if not _succeeds(command, quiet):
                break
        find_chromium.cache_clear()
        if find_chromium():
            return find_chromium()
    print("No Chromium here; asking Playwright for its own.", flush=True)
    _succeeds([sys.executable, "-m", "playwright", "install", "chromium"], dict(os.environ))
    find_chromium.cache_clear()
    return find_chromium()


def in_ci() -> bool:
    """Whether this is a CI run, where a missing browser is a failure and not a skip."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def _playwrights_own() -> str:
    return _output([sys.executable, "-c", _ASK_PLAYWRIGHT])


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _succeeds(command: list[str], env: dict[str, str]) -> bool:
    """Runs a command silently; where it fails, prints the first error that it named."""
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )
    except (OSError, subprocess.SubprocessError) as error:
        print(f"{' '.join(command)}: {error}")
        return False
    if done.returncode:
        said = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        named = [line for line in said if line.startswith(("E:", "Error"))] or said[-1:]
        print(f"  {' '.join(command[:4])} … failed.", *named[:1])
    return done.returncode == 0


def main() -> int:
    """Says which browser there is, getting one if need be; 1 where CI has none, else 0."""
    path = find_chromium()
    if path is None and not os.environ.get(VARIABLE):
        path = get_chromium()
    if path is None:
        print(HOW)
        return int(in_ci())
    print(f"Browser tests use {path} ({version_of(path)}).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
