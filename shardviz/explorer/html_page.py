"""Bundles the page into one ES module and one style sheet, and writes saved pages.

The files in `static/` are ES modules that import each other, so that editors and tsc
understand them. Front ends load a widget as a single module, so we concatenate the
files without these imports. The style sheet takes its colours from
`shardviz.draw.palette`. There is no build step, and nothing is loaded from the network.
"""

from __future__ import annotations

import base64
import json
import re
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import TypeAlias

from shardviz.base.typing import JsonDict, PyTree
from shardviz.draw.palette import THEMES, theme_data

#: A key path in the state, and the bytes at that path as base64.
Buffer: TypeAlias = list[list[str | int] | str]
HERE = Path(__file__).parent / "static"
_IMPORT = re.compile(r"^import \{[^}]*\} from \"\./([a-z_]+)\.js\";\n", re.MULTILINE)
_EXPORT = re.compile(
    r"^export (?=(?:async )?(?:function|class|const|let) )", re.MULTILINE
)

# Palette colour -> its name in the style sheet, if they differ.
_PROPERTY = {"unsplit": "not-split"}
_STYLES = (
    "base",
    "problems",
    "arrays",
    "rules",
    "pictures",
    "program",
    "collectives",
    "values",
    "timeline",
    "memory",
    "player",
    "model",
    "narrow",
)


@lru_cache(maxsize=4)
def bundled_module(entry: str = "explorer") -> str:
    """Returns the entry file and all files it imports, as one ES module.

    >>> source = bundled_module("explorer")
    >>> "\\nimport {" in source, source.count("export default") == 1
    (False, True)
    """
    sources: dict[str, str] = {}
    _collect(entry, sources)
    return "\n".join(sources.values())


def _collect(name: str, sources: dict[str, str]) -> None:
    if name in sources:
        return
    source = (HERE / f"{name}.js").read_text(encoding="utf-8")
    for imported in _IMPORT.findall(source):
        _collect(imported, sources)
    body = _EXPORT.sub("", _IMPORT.sub("", source)).replace("// @ts-check\n", "")
    sources[name] = f"// {name}.js\n{body}"


def bundled_styles() -> str:
    """Returns the style sheet: the colours of both themes, then the CSS files."""
    parts = [(HERE / f"{name}.css").read_text(encoding="utf-8") for name in _STYLES]
    return "\n".join([*(_colours(name) for name in THEMES), *parts])


def _colours(name: str) -> str:
    """Returns the colours of a theme as CSS custom properties."""
    # The light colours apply until the theme is known.
    chosen = "" if name == "light" else f'[data-theme="{name}"]'
    lines = [f".shardviz-explorer{chosen} {{"]
    for key, colour in theme_data(name).items():
        lines.append(f"  --sv-{_PROPERTY.get(key, key.replace('_', '-'))}: {colour};")
    for number, colour in enumerate(THEMES[name].groups):
        lines.append(f"  --sv-group-{number}: {colour};")
    return "\n".join([*lines, f"  color-scheme: {name};", "}"])


def saved_page(traits: JsonDict, alt: str) -> str:
    """Returns an HTML page that needs neither kernel nor network."""
    buffers: list[Buffer] = []
    state = _without_bytes({**traits, "offline": True}, [], buffers)
    data = json.dumps({"state": state, "buffers": buffers}, separators=(",", ":"))
    # A `<` could end the script element. json.dumps already escapes non-ASCII text.
    data = data.replace("<", "\\u003c")
    module = base64.b64encode(bundled_module("explorer").encode()).decode()
    return _PAGE.format(
        css=bundled_styles(), data=data, module=module, alt=escape(alt), policy=_POLICY
    )


def _without_bytes(
    value: PyTree, path: list[str | int], buffers: list[Buffer]
) -> PyTree:
    """Copies a value with None in place of bytes, which JSON doesn't support.

    The bytes are appended to `buffers` with their key paths. A reserved key inside the
    value can't mark them, because users may type any key as a name.

    >>> buffers = []
    >>> _without_bytes({"ids": [b"ab"]}, [], buffers), buffers
    ({'ids': [None]}, [[['ids', 0], 'YWI=']])
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        buffers.append([path, base64.b64encode(bytes(value)).decode()])
        return None
    if isinstance(value, dict):
        return {k: _without_bytes(v, [*path, k], buffers) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_bytes(v, [*path, i], buffers) for i, v in enumerate(value)]
    return value


_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' data:"
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>shardviz</title>
<style>
body {{ margin: 8px; background: Canvas; color-scheme: light dark; }}
{css}
.shardviz-explorer.sv-page {{ height: clamp(588px, 100vh - 16px, 1000px); }}
</style>
</head>
<body>
<div id="shardviz"></div>
<noscript><pre>{alt}</pre></noscript>
<script type="application/json" id="state">{data}</script>
<script type="module">
import explorer from "data:text/javascript;base64,{module}";
const bytes = (text) => {{
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return new DataView(out.buffer);
}};
const {{ state, buffers }} = JSON.parse(document.getElementById("state").textContent);
for (const [path, text] of buffers) {{
  const last = path.pop();
  path.reduce((value, key) => value[key], state)[last] = bytes(text);
}}
const model = {{ get: (name) => state[name], on() {{}}, off() {{}} }};
explorer.render({{ model, el: document.getElementById("shardviz") }});
</script>
</body>
</html>
"""
