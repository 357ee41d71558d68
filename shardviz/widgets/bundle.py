"""One ES module out of several files: front ends load a widget's code as one piece.

Each file imports its neighbours as plain ES modules, so that editors and tsc understand them.
Here the imports between them go, and what they export stays under its own name. No build step,
nothing from the network.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

HERE = Path(__file__).parent / "static"
_IMPORT = re.compile(r"^import \{[^}]*\} from \"\./([a-z_]+)\.js\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) )", re.MULTILINE)


@lru_cache(maxsize=4)
def module(entry: str = "explorer") -> str:
    """The source of one ES module: the entry file and everything it imports, in order.

    >>> source = module("explorer")
    >>> "import {" in source, source.count("export default") == 1
    (False, True)
    """
    done: dict[str, str] = {}
    _collect(entry, done)
    return "\n".join(done.values())


def _collect(name: str, done: dict[str, str]) -> None:
    if name in done:
        return
    source = (HERE / f"{name}.js").read_text(encoding="utf-8")
    for needed in _IMPORT.findall(source):
        _collect(needed, done)
    body = _EXPORT.sub("", _IMPORT.sub("", source)).replace("// @ts-check\n", "")
    done[name] = f"// {name}.js\n{body}"


def styles() -> str:
    """The style sheet."""
    return (HERE / "explorer.css").read_text(encoding="utf-8")
