"""The modules of the page are joined into one: a name at the top of a file is that file's alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import shardviz

STATIC = Path(shardviz.__file__).parent / "explorer" / "static"
TOP = re.compile(r"^(?:export )?(?:const|let|function|class) (\w+)", re.MULTILINE)


def twice(files: Mapping[str, str]) -> list[str]:
    """The names that two files have at the top."""
    owners: dict[str, str] = {}
    found = []
    for file, text in files.items():
        for name in TOP.findall(text):
            if owners.setdefault(name, file) != file:
                found.append(f"{name}: {owners[name]}, {file}")
    return found


def test_no_name_is_declared_in_two_files():
    found = twice({path.name: path.read_text(encoding="utf-8") for path in STATIC.glob("*.js")})
    assert not found, "\n".join(found)


def test_it_would_be_found():
    files = {
        "a.js": "const ROW = 1;\n",
        "b.js": "export function ROW() {}\n",
        "c.js": "  const ROW = 2;",
    }
    assert twice(files) == ["ROW: a.js, b.js"]
