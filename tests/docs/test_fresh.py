"""The first lines that a reader pastes: in a new Python, and in a new notebook."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT, blocks

PAGES = ("README.md", "docs/first-steps.md")
# Cells that show a value, by the pages whose readers expect a picture there.
PICTURES = {"docs/first-steps.md": 6}


def code_of(page):
    return [block.code for block in blocks(page, (ROOT / page).read_text(encoding="utf-8"))]


def reader_environment():
    """The environment of a reader: no devices are chosen yet, and the checkout is installed."""
    chosen = ("XLA_FLAGS", "MPLBACKEND")
    kept = {k: v for k, v in os.environ.items() if k not in chosen and not k.startswith("JAX_")}
    return {**kept, "PYTHONPATH": str(ROOT)}


def run(command, folder):
    environment = reader_environment()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_its_lines_run_in_a_new_python(page, tmp_path):
    (tmp_path / "pasted.py").write_text("\n".join(code_of(page)), encoding="utf-8")
    out = run([sys.executable, "pasted.py"], tmp_path)
    assert "all-reduce" in out


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_its_lines_run_in_a_new_notebook(page, tmp_path):
    cells = [
        {"cell_type": "code", "id": f"cell-{number}", "metadata": {}, "source": code}
        | {"outputs": [], "execution_count": None}
        for number, code in enumerate(code_of(page))
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}}
    path = tmp_path / "pasted.ipynb"
    path.write_text(json.dumps({**notebook, "nbformat": 4, "nbformat_minor": 5}), "utf-8")
    command = ["-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", path.name]
    run([sys.executable, *command], tmp_path)
    pictures = 0
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for output in cell["outputs"]:
            picture = output.get("data", {}).get("image/png", "")
            pictures += base64.b64decode(picture).startswith(b"\x89PNG")
    assert pictures >= PICTURES.get(page, 0)


def test_the_readers_environment_has_no_devices_of_the_tests():
    assert not any(name.startswith("JAX_") for name in reader_environment())
