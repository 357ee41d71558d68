"""A plugin of pytest: nbval compares the outputs that are stored in a lesson with those it gets.

`--nbval-lax` alone runs the cells and compares nothing. With `-p tests.notebooks.compared` (`make
test`) it compares the text of every cell that is not marked `nbval-ignore-output`. Left out are
what a lesson does not store, pictures, which each matplotlib draws in its own way, and how long
something took.
"""

from __future__ import annotations

import pytest

# What a kernel gives beside text, and `tests.notebooks.outputs` does not store.
_NOT_STORED = ("text/html", "text/latex", "stderr")
_TIME = r"[\d.,]+ (?:ns|µs|us|ms|s)\b"
# Regular expressions and what stands for them, in this order. A text is wrapped where a time ends.
SAME = {
    r"\s+": " ",
    rf"\b(lower|compile|place|run|in) {_TIME}": r"\1 TIME",
    rf"{_TIME} for ": "TIME for ",
    rf"devices, {_TIME}": "devices, TIME",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if type(item).__name__ == "IPyNbCell":
            _compare(item)


def _compare(cell) -> None:
    cell.options["check"] = "nbval-ignore-output" not in cell.cell["metadata"].get("tags", [])
    file = cell.parent
    file.skip_compare = tuple(dict.fromkeys((*file.skip_compare, *_NOT_STORED)))
    file.sanitize_patterns.update(SAME)
