"""A plugin of pytest: nbval compares the outputs that are stored in a lesson with those it gets.

`--nbval-lax` alone runs the cells and compares nothing. With `-p tests.notebooks.compared` (`make
test`) it compares the text of every cell that is not marked `nbval-ignore-output`, where jax is of
the version that the outputs are from: another compiler makes other numbers. Left out are what a
lesson does not store, pictures, which each matplotlib draws in its own way, how long something
took, how much memory the machine has, and how far results are rounded, which differs from one
processor to another.

The cells of the appendices are marked `long`, and those of the lessons in `_LONG`, whose compiles
for TPUs take about 210 seconds of processor time.
"""

from __future__ import annotations

from importlib.metadata import version

import pytest

from tests.notebooks.outputs import KEY

_LONG = {"one_block_four_tables", "will_it_fit", "how_far", "overlap", "kv_cache", "several_slices"}
# What a kernel gives beside text, and `tests.notebooks.outputs` does not store.
_NOT_STORED = ("text/html", "text/latex", "text/markdown", "stderr")
_TIME = r"[\d.,]+ (?:ns|µs|us|ms|s)\b"
# Regular expressions and what stands for them, in this order. A text is wrapped where a time ends.
SAME = {
    r"\s+": " ",
    rf"\b(lower|compile|place|run|in) {_TIME}": r"\1 TIME",
    rf"{_TIME} for ": "TIME for ",
    rf"devices, {_TIME}": "devices, TIME",
    r"(the unsharded function:) \S+, which is \S+ of": r"\1 SOME of",
    r"(simulated: .*?Fits: \S+ \S+ of) \S+ \S+": r"\1 MEMORY",
}


def minor(text: str) -> str:
    """A version without its last number.

    >>> minor("0.10.2")
    '0.10'
    """
    return text.rpartition(".")[0]


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = minor(version("jax"))
    for item in items:
        if type(item).__name__ == "IPyNbCell":
            number, _, name = item.path.stem.partition("_")
            if number.startswith("a") or name in _LONG:
                item.add_marker("long")
            made_with = item.parent.nb["metadata"].get(KEY, {}).get("made_with", {})
            if minor(made_with.get("jax", "")) == here:
                _compare(item)


def _compare(cell) -> None:
    marked = "nbval-ignore-output" in cell.cell["metadata"].get("tags", [])
    cell.options["check"] = not marked
    file = cell.parent
    file.skip_compare = tuple(dict.fromkeys((*file.skip_compare, *_NOT_STORED)))
    file.sanitize_patterns.update(SAME)
