"""The outputs that are stored in the lessons, so that every figure shows where no kernel runs.

`python -m tests.notebooks.outputs [NAME ...]` (`make lessons`) executes the lessons and stores text
and PNG of every cell, of what code they are, and with which jax they were made. What only a kernel
can show is left out: a front end would try it first and show an error. `stale` says which outputs
are of other code; `tests.notebooks.compared` which are not what the code prints.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notebooks"
MOST_BYTES = 1 << 20  # of a notebook
_STORED = ("text/plain", "image/png")
KEY = "shardviz"  # of what a notebook says of its outputs


def code_hash(cell: dict[str, Any]) -> str:
    """What stands for the code of a cell."""
    return hashlib.sha256("".join(cell["source"]).encode()).hexdigest()[:16]


def _code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [c for c in notebook["cells"] if c["cell_type"] == "code"]


def stale(notebook: dict[str, Any]) -> list[str]:
    """The cells whose stored output is missing or of other code, by name.

    A cell runs after all before it: where one has changed, those after it are stale, too.
    """
    of = notebook["metadata"].get(KEY, {}).get("outputs_of", [])
    cells = _code_cells(notebook)
    hashes = [code_hash(c) for c in cells]
    same = 0
    while same < min(len(of), len(hashes)) and of[same] == hashes[same]:
        same += 1
    if same == len(cells) == len(of):
        return []
    return [c["id"] for c in cells[same:]] or ["a cell that is there no longer"]


def _stored(output: dict[str, Any]) -> dict[str, Any] | None:
    """An output as it is stored; None for one that is not."""
    kind = output["output_type"]
    if kind == "stream":
        return dict(output) if output["name"] == "stdout" else None
    data = {mime: output["data"][mime] for mime in _STORED if mime in output["data"]}
    if not data:  # the bar of long work
        return None
    metadata = {}
    if "image/png" in data:
        data["image/png"], words = _small(data["image/png"])
        # Where nbconvert looks for the alternative text of an image, of slides for example.
        metadata = {"image/png": {"alt": words}} if words else {}
    return {**output, "data": data, "metadata": metadata}


def _joined(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The outputs with printed text in one piece: a slow kernel sends it in several."""
    joined: list[dict[str, Any]] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if output["output_type"] == last.get("output_type") == "stream":
            last["text"] += output["text"]
        else:
            joined.append(output)
    return joined


def _small(png: str) -> tuple[str, str]:
    """The same picture with at most 256 colours, a third of the bytes, and what describes it.

    Both pictures are in base64.
    """
    from PIL import Image

    picture = Image.open(io.BytesIO(base64.b64decode(png)))
    words = picture.info.get("Description", "")
    file = io.BytesIO()
    few = picture.convert("RGB").quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode(), words


def execute(path: Path) -> None:
    """Executes a lesson and stores its outputs in the file.

    Raises:
        CellExecutionError: where a cell fails.
    """
    import nbclient
    import nbformat

    notebook: Any = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": FOLDER}}
    nbclient.NotebookClient(notebook, timeout=900, resources=where).execute()
    for cell in _code_cells(notebook):
        kept = (_stored(output) for output in cell["outputs"])
        stored = _joined([output for output in kept if output is not None])
        cell["outputs"] = [nbformat.from_dict(output) for output in stored]
        cell["metadata"].pop("execution", None)
    notebook["metadata"].pop("widgets", None)
    notebook["metadata"]["language_info"] = {"name": "python"}
    hashes = [code_hash(c) for c in _code_cells(notebook)]
    notebook["metadata"][KEY] = {"made_with": {"jax": version("jax")}, "outputs_of": hashes}
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def main(names: list[str]) -> None:
    """Executes the lessons whose file names begin so; all without names."""
    os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.name.startswith(tuple(names)):
            execute(path)
            print(f"{path.name}: {path.stat().st_size >> 10} KiB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
