"""One ES module and one style sheet out of several files: front ends load each as one piece.

Each file imports its neighbours as plain ES modules, so that editors and tsc understand them.
Here the imports between them go, and what they export stays under its own name. The colours of the
style sheet come from `shardviz.picture.palette`. No build step, nothing from the network.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from shardviz.picture.palette import THEMES, theme_data

HERE = Path(__file__).parent / "static"
_IMPORT = re.compile(r"^import \{[^}]*\} from \"\./([a-z_]+)\.js\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) )", re.MULTILINE)

# What the style sheet calls a colour, where the palette's name for it is another.
_PROPERTY = {"ink": "text", "faint_ink": "faint-text", "unsplit": "not-split"}
_STYLES = ("base", "arrays_and_rules", "pictures", "program", "collectives", "values")


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
    """The style sheet: the colours of both themes, and every part in order."""
    parts = [(HERE / f"{name}.css").read_text(encoding="utf-8") for name in _STYLES]
    return "\n".join([*(_colours(name) for name in THEMES), *parts])


def _colours(name: str) -> str:
    """The colours of a theme as custom properties; the light ones hold until a theme is known.

    >>> "--sv-text: #1f2430;" in _colours("light"), "--sv-group-9: #92dadd;" in _colours("dark")
    (True, True)
    """
    chosen = "" if name == "light" else f'[data-theme="{name}"]'
    named = {_PROPERTY.get(k, k.replace("_", "-")): v for k, v in theme_data(name).items()}
    named |= {f"group-{i}": colour for i, colour in enumerate(THEMES[name].groups)}
    lines = [f"  --sv-{k}: {v};" for k, v in named.items()]
    return "\n".join([f".shardviz-explorer{chosen} {{", *lines, f"  color-scheme: {name};", "}"])
