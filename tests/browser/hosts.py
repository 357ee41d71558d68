"""Places other than JupyterLab that show anywidgets: Notebook 7 and marimo, each as a process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.browser.lab import environment, notebook
from tests.ports import free_port

START_S = 120
NOTEBOOK, MARIMO = "notebook", "marimo"


@contextmanager
def served(host: str, cells: Sequence[str], folder: Path) -> Iterator[str]:
    """Where a page with these cells is served by `host`; ends the server afterwards.

    Args:
        host: `NOTEBOOK`, whose cells are still to be run, or `MARIMO`, which runs them itself.
        cells: the code, one string a cell.
        folder: what the server writes goes there.

    Raises:
        RuntimeError: if the server does not come up, with what it said.
    """
    port = free_port()
    command, page = (_notebook if host == NOTEBOOK else _marimo)(cells, folder, port)
    log = folder / "log"
    with log.open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    try:
        _wait(process, port, log)
        yield f"http://127.0.0.1:{port}{page}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


def _notebook(cells: Sequence[str], folder: Path, port: int) -> tuple[list[str], str]:
    root = folder / "notebooks"
    root.mkdir(parents=True)
    (root / "page.ipynb").write_text(json.dumps(notebook(cells)))
    options = {
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "ServerApp.root_dir": root,
        "IdentityProvider.token": "",
        "JupyterNotebookApp.expose_app_in_browser": True,
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    return ["notebook", *arguments], "/notebooks/page.ipynb"


def _marimo(cells: Sequence[str], folder: Path, port: int) -> tuple[list[str], str]:
    lines = ["import marimo", 'app = marimo.App(width="full")']
    for code in cells:
        body = code.replace("\n", "\n    ")
        # Names without an underscore in front are marimo's to pass from cell to cell.
        lines += ["@app.cell", "def _():", f"    {body}", "    return"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "page.py").write_text("\n".join(lines) + "\n")
    options = ["--headless", "--no-token", "--host", "127.0.0.1", "--port", str(port)]
    return ["marimo", "run", "page.py", *options], "/"


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30).close()
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"The server did not start:\n{log.read_text()[-3000:]}")
