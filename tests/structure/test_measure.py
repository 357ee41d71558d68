from __future__ import annotations

from pathlib import Path

import shardviz
from tests.structure.measure import (
    FILE_LINES,
    FUNCTION_LINES,
    MEDIAN_FUNCTION,
    MOST_FILES,
    long_files,
    long_functions,
    median_function,
)

ROOT = Path(shardviz.__file__).parent


def test_no_file_is_too_long():
    found = long_files(ROOT)
    assert not found, "\n".join(found)


def test_no_function_is_too_long():
    found = long_functions(ROOT)
    assert not found, "\n".join(found)


def test_files_are_not_cut_apart():
    assert len(list(ROOT.rglob("*.py"))) <= MOST_FILES


def test_most_functions_are_small():
    assert median_function(ROOT) <= MEDIAN_FUNCTION


def test_a_planted_long_file_is_found(tmp_path: Path):
    for suffix, limit in FILE_LINES.items():
        (tmp_path / f"fits{suffix}").write_text("\n" * limit)
        (tmp_path / f"long{suffix}").write_text("\n" * (limit + 1))
    assert long_files(tmp_path) == [
        "long.py has 601 lines of 600",
        "long.js has 601 lines of 600",
        "long.css has 601 lines of 600",
    ]


def test_a_planted_long_function_is_found(tmp_path: Path):
    docstring = '    """Words.\n' + "    more\n" * 30 + '    """\n'
    fits = "def fits():\n" + docstring + "    x = 1\n" * (FUNCTION_LINES - 1)
    long = "class A:\n    async def long(self):\n" + "        x = 1\n" * FUNCTION_LINES
    (tmp_path / "a.py").write_text(fits + long)
    assert long_functions(tmp_path) == ["a.py: long has 61 lines of 60"]
