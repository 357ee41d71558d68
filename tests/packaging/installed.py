"""Installs the wheel in empty environments and uses it there: `make wheel`.

    python -m tests.packaging.installed FOLDER

FOLDER has one sdist and one wheel. With numpy alone, layouts, rules, audits and texts must work,
and what needs more says so in a sentence. With `[notebooks]` the first lesson runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LESSON = ROOT / "notebooks" / "01_see_a_sharding.ipynb"

WITH_NUMPY_ALONE = """
import sys
import shardviz as sv

heavy = {"jax", "jaxlib", "matplotlib", "ipywidgets", "anywidget", "flax"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert "site-packages" in sv.__file__, sv.__file__

mesh = sv.mesh(data=4, model=2)
rules = sv.rules(("batch", "data"), ("mlp", "model"), ("embed", None))
w = sv.array("w", (512, 2048), "embed mlp")
layout = sv.layout(w, mesh=mesh, rules=rules)
assert layout.shard_shape == (512, 1024)
assert layout.box(3) == (slice(0, 512), slice(1024, 2048))
assert "rule 2 (mlp → model)" in sv.resolve("embed mlp", rules, mesh=mesh, shape=w.shape).explain()
audit = sv.audit([("w", (512, 2048), "embed mpl")], rules, mesh)
assert "A rule names 'mlp', which no array has: one of the two names" in audit.explain()
assert any(r.names == ("embed", "mlp") for r in sv.remedies(audit.rows[0], "split"))
assert sv.topology("tpu:v5p:8x8x16").chips == 1024
for value in (mesh, rules, w, layout, audit):
    assert len(sv.text(value)) > 20, value
for function, arguments, package in (
    (sv.plot, (mesh,), "matplotlib"),
    (sv.explore, (), "anywidget"),
    (sv.program, (abs, w), "jax"),
):
    try:
        function(*arguments)
    except sv.ShardvizError as error:
        assert package in str(error), error
    else:
        raise AssertionError(f"{function.__name__} works without {package}")
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""

FIRST_LESSON = """
import sys
import nbclient, nbformat

lesson = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(lesson, timeout=300, resources={"metadata": {"path": "."}}).execute()
ran = [cell for cell in lesson.cells if cell.cell_type == "code" and cell.execution_count]
print(f"{len(ran)} cells of the first lesson ran")
assert len(ran) == sum(cell.cell_type == "code" for cell in lesson.cells)
"""


def tracked() -> set[str]:
    """What belongs to the package, by git or, without it, by what lies there."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "shardviz"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return set(done.stdout.split())
    files = (p for p in (ROOT / "shardviz").rglob("*") if p.is_file())
    return {p.relative_to(ROOT).as_posix() for p in files if "__pycache__" not in p.parts}


def missing_files(wheel: Path, sdist: Path) -> list[str]:
    """The files of the package that a wheel or an sdist lacks."""
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    wanted = tracked()
    assert "shardviz/py.typed" in wanted
    assert any(name.endswith(".js") for name in wanted)
    lacks = [f"wheel: {name}" for name in sorted(wanted - in_wheel)]
    return lacks + [f"sdist: {name}" for name in sorted(wanted - in_sdist)]


def environment(folder: Path, *packages: str) -> Path:
    """The Python of a new environment with these packages and nothing else, not even pip."""
    venv.create(folder)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    install(python, *packages)
    return python


def install(python: Path, *packages: str) -> None:
    """Installs into an environment with the pip of this one."""
    options = ("-qq", "--disable-pip-version-check", "--no-compile")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", *options, *packages]
    subprocess.run(pip, check=True)


def run(python: Path, *arguments: str) -> None:
    """Runs Python beside the project, which it must not find.

    Raises:
        CalledProcessError: where it fails; what it said is on the screen.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env |= {"JAX_PLATFORMS": "cpu"}
    subprocess.run([str(python), *arguments], cwd=python.parent, env=env, check=True)


def run_code(python: Path, code: str, *arguments: str) -> None:
    """Runs lines of Python from a file, so that a traceback shows them."""
    file = python.parent / "use_shardviz.py"
    file.write_text(code, encoding="utf-8")
    run(python, str(file), *arguments)


def main(folder: Path) -> None:
    """Checks the one wheel and the one sdist in a folder."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    lacks = missing_files(wheel, sdist)
    assert not lacks, "\n".join(lacks)
    with tempfile.TemporaryDirectory() as parent:
        begun = time.monotonic()
        python = environment(Path(parent) / "numpy", "numpy")
        install(python, "--no-deps", str(wheel.resolve()))
        run_code(python, WITH_NUMPY_ALONE)
        print(f"{wheel.name} works with numpy alone ({time.monotonic() - begun:.0f} s).")
        begun = time.monotonic()
        python = environment(Path(parent) / "notebooks", f"{wheel.resolve()}[notebooks]")
        run_code(python, FIRST_LESSON, str(LESSON))
        print(f"{wheel.name}[notebooks] runs it ({time.monotonic() - begun:.0f} s).")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
