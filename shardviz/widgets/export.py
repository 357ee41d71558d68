"""What leaves the Explorer: plain JAX code, and a page that needs no kernel."""

from __future__ import annotations

import base64
import json
import keyword
import re
from collections.abc import Iterable
from functools import lru_cache
from html import escape
from typing import Any

from shardviz.core.layout.array import ArraySpec
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.spec import Spec
from shardviz.widgets import bundle
from shardviz.widgets.known_programs import is_known, known_sources
from shardviz.widgets.session import PLACE, Session

# jax keeps most narrow floats and int4 under the very names they have here.
_IDENTIFIER = re.compile(r"[^0-9a-zA-Z_]")


def code(session: Session) -> str:
    """The current state as plain JAX code: mesh, specs, arrays, and the program jitted over them.

    What cannot be laid out stands in it as a comment with the reason.
    """
    names = _variables(session.arrays)
    parts = [_HEAD, _mesh_code(session.mesh)]
    sources, function = _function_code(session)
    if sources:
        parts.append(sources)
    parts.append(_arrays_code(session, names))
    if not session.program.problems:
        call = ", ".join(names)
        parts.append(_call_code(function, call))
    return "\n".join(parts)


_HEAD = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
"""


def _mesh_code(mesh: MeshSpec) -> str:
    types = ", ".join(f"AxisType.{t}" for t in mesh.axis_types)
    ids = "" if mesh.ids_are_positions else _order_code(mesh)
    return f"""\
try:  # simulated devices, where there are too few real ones; only before JAX starts
    jax.config.update("jax_num_cpu_devices", {mesh.size})
except RuntimeError:
    pass
devices = jax.devices() if jax.device_count() >= {mesh.size} else jax.devices("cpu")
devices = np.array(devices[:{mesh.size}]){ids}.reshape({mesh.axis_sizes!r})
mesh = Mesh(devices, {mesh.axis_names!r}, axis_types=({types},))
"""


def _order_code(mesh: MeshSpec) -> str:
    """The order of the devices, as ranks: ids are names, and other machines have others."""
    order = mesh.device_ids.ravel().argsort().argsort().tolist()
    return f"[{order}]"


def _function_code(session: Session) -> tuple[str, str]:
    """The source of the program's function and what it is called; no source for one's own."""
    if is_known(session.entry):
        return _known_source(session.entry), session.program.fn.__name__
    if session.entry == PLACE:
        return "", ""
    name = getattr(session.program.fn, "__name__", "")
    if name.isidentifier() and not keyword.iskeyword(name):
        return f"# {name} is your own function: define it above.\n", name
    return "# The program's function has no name to call it by.\n", ""


@lru_cache(maxsize=64)
def _known_source(name: str) -> str:
    return "\n\n".join(s.rstrip() for s in known_sources(name)) + "\n"


def _arrays_code(session: Session, names: list[str]) -> str:
    lines = []
    for name, asked in zip(names, session.program.requests, strict=True):
        if asked.layout is None:
            lines.append(f"# {name}: {asked.problem}")
            continue
        assert asked.spec is not None
        lines.append(
            f"{name} = jnp.ones({asked.array.shape!r}, {asked.array.dtype!r},"
            f" device=NamedSharding(mesh, {_spec_code(asked.spec)}))"
        )
    return "\n".join(lines) + "\n"


def _spec_code(spec: Spec) -> str:
    return str(spec)


def _call_code(function: str, call: str) -> str:
    if not function:
        shown = "array.sharding.spec, array.addressable_shards[0].index"
        return f"for array in ({call},):\n    print({shown})\n"
    return f"""\
with jax.set_mesh(mesh):
    outputs = jax.jit({function})({call})
for output in jax.tree.leaves(outputs):
    print(output.shape, output.sharding)
"""


def _variables(arrays: Iterable[ArraySpec]) -> list[str]:
    """A Python name for every array: its own where it is one."""
    taken: set[str] = {"jax", "jnp", "np", "P", "Mesh", "mesh", "devices", "outputs", "output"}
    names = []
    for array in arrays:
        name = _IDENTIFIER.sub("_", array.name)
        if not name.isidentifier() or keyword.iskeyword(name):
            name = f"a_{name}"
        base, count = name, 2
        while name in taken:
            name, count = f"{base}_{count}", count + 1
        taken.add(name)
        names.append(name)
    return names


def page(traits: dict[str, Any], alt: str) -> str:
    """One HTML file with the view inside: no kernel, no network.

    Args:
        traits: the synced traits of an Explorer, by name.
        alt: the same in text, for readers without scripts.
    """
    data = json.dumps(_packed({**traits, "offline": True}), separators=(",", ":"))
    # `<` ends no script element when it is written as an escape.
    data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    module = base64.b64encode(bundle.module("explorer").encode()).decode()
    return _PAGE.format(
        css=bundle.styles(), data=data, module=module, alt=escape(alt), policy=_POLICY
    )


def _packed(value: Any) -> Any:
    """JSON has no bytes: they become base64 under a name of their own."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, dict):
        return {k: _packed(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_packed(v) for v in value]
    return value


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' data:"
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>shardviz</title>
<style>
body {{ margin: 16px; background: Canvas; color-scheme: light dark; }}
{css}
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
const state = JSON.parse(document.getElementById("state").textContent, (key, value) =>
  value && typeof value === "object" && "$bytes" in value ? bytes(value.$bytes) : value);
const model = {{ get: (name) => state[name], on() {{}}, off() {{}} }};
explorer.render({{ model, el: document.getElementById("shardviz") }});
</script>
</body>
</html>
"""
