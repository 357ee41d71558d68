"""How many files of shardviz one Explorer edit calls, and one plan."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import shardviz as sv
from shardviz.gallery import programs

_ROOT = str(Path(sv.__file__).parent) + os.sep
_OWN = str(Path("gallery", "functions.py"))  # the function that is planned, not what plans it
MOST_FOR_EDIT, MOST_FOR_PLAN = 30, 22


def files_entered(call: Callable[[], Any]) -> list[str]:
    """The files of the package in which a function was called, relative to it, sorted.

    Calls in other threads are not counted, nor are imports of modules.
    """
    found: set[str] = set()

    def entered(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(_ROOT):
            file = code.co_filename.removeprefix(_ROOT)
            if file != _OWN:
                found.add(file)

    before = sys.getprofile()
    sys.setprofile(entered)
    try:
        call()
    finally:
        sys.setprofile(before)
    return sorted(found)


def edit_files() -> list[str]:
    """The files that a typed mesh calls, from the page's message to the synced traits."""
    explorer: Any = sv.explore(programs.get("MLP"))
    message = {
        "seq": 1,
        "client": "bench",
        "intents": [{"kind": "edit", "field": "mesh", "value": "data=2, model=4"}],
    }
    try:
        explorer._receive(
            explorer, {**message, "intents": []}, []
        )  # so that everything is imported
        found = files_entered(lambda: explorer._receive(explorer, message, []))
        assert explorer.mesh["text"] == "data=2, model=4"
    finally:
        explorer.close()
    return found


def plan_files() -> list[str]:
    """The files that `sv.plan` of the MLP calls."""
    program = programs.get("MLP")
    sv.plan(programs.get("attention"))  # so that everything is imported
    found = files_entered(lambda: sv.plan(program))
    assert sv.plan(program).error is None
    return found


def main() -> int:
    """Prints both; how many are more than they should be."""
    missed = 0
    for name, files, most in (
        ("one Explorer edit", edit_files(), MOST_FOR_EDIT),
        ("sv.plan of the MLP", plan_files(), MOST_FOR_PLAN),
    ):
        missed += len(files) > most
        print(f"  {name:<20} {len(files):>3} files, at most {most}")
        for file in files:
            print(f"      {file}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
