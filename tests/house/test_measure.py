from __future__ import annotations

from pathlib import Path

import shardviz
from tests.house.measure import FILE_LINES, FUNCTION_LINES, long_files, long_functions

ROOT = Path(shardviz.__file__).parent


def test_no_file_is_too_long():
    found = long_files(ROOT)
    assert not found, "\n".join(found)


def test_no_function_is_too_long():
    found = long_functions(ROOT)
    assert not found, "\n".join(found)


def test_a_planted_long_file_is_found(tmp_path: Path):
    for suffix, limit in FILE_LINES.items():
        (tmp_path / f"fits{suffix}").write_text("\n" * limit)
        (tmp_path / f"long{suffix}").write_text("\n" * (limit + 1))
    assert long_files(tmp_path) == [
        "long.py has 331 lines of 330",
        "long.js has 651 lines of 650",
    ]


def test_a_planted_long_function_is_found(tmp_path: Path):
    docstring = '    """Words.\n' + "    more\n" * 30 + '    """\n'
    fits = "def fits():\n" + docstring + "    x = 1\n" * (FUNCTION_LINES - 1)
    long = "class A:\n    async def long(self):\n" + "        x = 1\n" * FUNCTION_LINES
    (tmp_path / "a.py").write_text(fits + long)
    assert long_functions(tmp_path) == ["a.py: long has 61 lines of 60"]
