"""A real JupyterLab with its kernels, in folders of its own, driven through Chromium."""

from __future__ import annotations

import collections
import itertools
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page

from tests.browser.watch import HEIGHT, WIDTH, Complaints, chromium, new_context
from tests.ports import free_port

OPEN = "import shardviz as sv\nexplorer = sv.explore()\nexplorer"
START_S = 120
STARTS = 3
OPEN_MS = 120_000
RUN_MS = 300_000
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"
# The defaults of a fresh JupyterLab, less what asks questions or the network.
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    # Every output is attached, so that a test finds what a person would scroll to.
    "@jupyterlab/notebook-extension:tracker": {
        "windowingMode": "none",
        "autoStartDefaultKernel": True,
    },
    "@jupyterlab/apputils-extension:sessionDialogs": {"skipKernelRestartDialog": True},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}


class LabServer:
    """A JupyterLab server process under `folder`, at a free port, with a token.

    Attributes:
        pages: JupyterLab in the browser, by device pixels in a CSS pixel. A page is kept, since to
            load it costs more than most tests; its notebooks are closed.
        kernel: the id of the kernel that tests share; "" before it is started.

    Raises:
        RuntimeError: if it does not come up, with the end of its log.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "notebooks"
        self.token = secrets.token_hex(16)
        self.pages: dict[float, Page] = {}
        self.kernel = ""
        self._settings = folder / "app" / "settings"
        self._lines: collections.deque[str] = collections.deque(maxlen=200)
        self.root.mkdir(parents=True)
        self._settings.mkdir(parents=True)
        (self._settings / "overrides.json").write_text(json.dumps(SETTINGS))
        # Another process may take the port before this server does; then it exits, and tries again.
        for _ in range(STARTS):
            self._start(folder)
            if self._serves.is_set():
                return
        raise RuntimeError("JupyterLab did not start:\n" + self.said())

    def _start(self, folder: Path) -> None:
        """Starts the process at a free port, and waits until it serves or has ended."""
        self.port = free_port()
        self._serves = threading.Event()
        self._checked = threading.Event()
        self._process = subprocess.Popen(
            self._command(),
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._checked.wait(START_S)
        if not self._serves.is_set():
            self.stop()

    @property
    def url(self) -> str:
        """Where it answers, without a closing slash."""
        return f"http://127.0.0.1:{self.port}"

    def said(self, lines: int = 30) -> str:
        """The last lines of its log."""
        return "\n".join(list(self._lines)[-lines:])

    def stop(self) -> None:
        """Ends the server, which ends its kernels; waits until it is gone."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)
        self._reader.join(20)
        if self._process.stdout:
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip())
            if "is running at" in line:
                self._serves.set()
                self._checked.set()
        self._checked.set()  # the process has ended

    def _command(self) -> list[str]:
        options = {
            "ServerApp.port": self.port,
            "ServerApp.port_retries": 0,
            "ServerApp.ip": "127.0.0.1",
            "ServerApp.open_browser": False,
            "ServerApp.allow_root": True,
            "ServerApp.disable_check_xsrf": True,
            "ServerApp.root_dir": self.root,
            "IdentityProvider.token": self.token,
            "LabApp.app_settings_dir": self._settings,
            "LabApp.expose_app_in_browser": True,
            "LabApp.extension_manager": "readonly",
            "LabApp.news_url": "None",
            "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        }
        arguments = [f"--{name}={value}" for name, value in options.items()]
        return [sys.executable, "-m", "jupyterlab", *arguments]


class Lab:
    """Notebooks of one test in a running server; `complaints` fills with what its pages say."""

    def __init__(self, server: LabServer, browser: Browser, complaints: Complaints) -> None:
        self.server = server
        self.complaints = complaints
        self._browser = browser
        self._numbers = itertools.count(1)
        self._watched = ExitStack()
        self._pages: list[Page] = []

    def open(
        self,
        cells: Sequence[str],
        *,
        theme: str = LIGHT,
        shared: bool = False,
        width: int = WIDTH,
        height: int = HEIGHT,
        scale: float = 1,
    ) -> Page:
        """A page on a new notebook of these code cells, every one of them run.

        Args:
            cells: the code, one string a cell.
            theme: `LIGHT` or `DARK`.
            shared: in a kernel where earlier tests ran, without their names, widgets and cached
                programs; otherwise in one of its own.
            width, height: of the window, in CSS pixels.
            scale: device pixels a CSS pixel.

        Raises:
            AssertionError: if a cell ends in a traceback.
        """
        name = f"{secrets.token_hex(4)}-{next(self._numbers)}.ipynb"
        (self.server.root / name).write_text(json.dumps(notebook(cells)))
        page = self._page(scale)
        page.set_viewport_size({"width": width, "height": height})
        page.evaluate(OPEN_NOTEBOOK, [name, self.server.kernel if shared else ""])
        page.wait_for_function(READY, timeout=OPEN_MS)
        if shared:
            self.server.kernel = page.evaluate(f"() => {_KERNEL}.id")
        set_theme(page, theme)
        run_all(page)
        return page

    def close(self) -> None:
        """Ends the kernels of the notebooks, empties the shared one, and closes the notebooks."""
        before = list(self.complaints)
        for page in self._pages:
            if page.is_closed():
                continue
            page.evaluate(_CLOSE, [self.server.kernel, _EMPTY])
        self._pages.clear()
        self._watched.close()
        # JupyterLab logs the requests that a kernel's end cut off; they say nothing of the test.
        self.complaints[:] = before

    def _page(self, scale: float) -> Page:
        """The page of that scale, loaded if it is not yet."""
        pages, server = self.server.pages, self.server
        new = scale not in pages or pages[scale].is_closed()
        page = new_context(self._browser, scale=scale).new_page() if new else pages[scale]
        if page not in self._pages:
            self._watched.enter_context(self.complaints.watching(page))
        if new:
            page.goto(f"{server.url}/doc?reset&token={server.token}")
            page.wait_for_function(LOADED, timeout=OPEN_MS)
            pages[scale] = page
        if page not in self._pages:
            self._pages.append(page)
        return page


def run_all(page: Page) -> None:
    """Runs every cell and waits until the kernel is idle.

    Raises:
        AssertionError: if a cell ends in a traceback.
    """
    page.set_default_timeout(RUN_MS)
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_function(_IDLE)
    page.set_default_timeout(30_000)
    errors = tracebacks(page)
    if errors:
        raise AssertionError("A cell failed:\n" + "\n".join(errors))


def reload_notebook(page: Page, path: str) -> None:
    """Reloads JupyterLab with a notebook open, and shows that notebook again.

    Lab may open it itself, from its address, or show the launcher, and either may come late: so
    the notebook is asked for until it is what stands in front.
    """
    page.reload()
    page.wait_for_function(LOADED, timeout=OPEN_MS)
    page.wait_for_function(SHOW_NOTEBOOK, arg=path, polling=1000, timeout=OPEN_MS)


def tracebacks(page: Page) -> list[str]:
    """The text of every traceback and warning that stands in the notebook.

    Without what ipykernel 7 itself says, at random, where JupyterLab ends a subshell that waits.
    """
    said = page.locator('[data-mime-type="application/vnd.jupyter.stderr"]').all_inner_texts()
    return [text for text in said if "Kernel.shell_main" not in text or "Traceback" in text]


def set_theme(page: Page, theme: str) -> None:
    """Switches JupyterLab to `LIGHT` or `DARK` and waits until it is so."""
    page.evaluate(
        "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme
    )
    page.wait_for_selector(f'body[data-jp-theme-name="{theme}"]', state="attached")


def notebook(cells: Sequence[str]) -> dict[str, object]:
    """A notebook document of these code cells."""
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        "cells": [
            {
                "cell_type": "code",
                "id": f"cell-{number}",
                "metadata": {},
                "execution_count": None,
                "outputs": [],
                "source": source,
            }
            for number, source in enumerate(cells)
        ],
    }


@contextmanager
def lab_server(folder: Path) -> Iterator[LabServer]:
    """A server that is stopped at the end."""
    server = LabServer(folder)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def lab_in_chromium(path: str) -> Iterator[Lab]:
    """A JupyterLab of its own in the Chromium at `path`, for scripts.

    Raises:
        AssertionError: at the end, if a page logged an error.
    """
    complaints = Complaints()
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium(path) as browser,
        lab_server(Path(folder)) as server,
    ):
        lab = Lab(server, browser, complaints)
        try:
            yield lab
        finally:
            lab.close()
    complaints.check()


def environment(folder: Path) -> dict[str, str]:
    """The caller's environment, with no folder in it that holds a person's own settings."""
    places = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "lab-settings",
        "JUPYTERLAB_WORKSPACES_DIR": "lab-workspaces",
        "IPYTHONDIR": "ipython",
    }
    own = {name: str(folder / place) for name, place in places.items()}
    repo = str(Path(__file__).parents[2])
    paths = [repo, *filter(None, [os.environ.get("PYTHONPATH")])]
    own["PYTHONPATH"] = os.pathsep.join(paths)
    return {"JAX_PLATFORMS": "cpu", **os.environ, **own}


LOADED = "() => window.jupyterapp?.commands.hasCommand('docmanager:open')"
OPEN_NOTEBOOK = """async ([path, id]) => {
  const kernel = id ? { kernel: { id } } : {};
  await window.jupyterapp.restored;
  await window.jupyterapp.commands.execute(
    'docmanager:open', { path, factory: 'Notebook', ...kernel });
}"""
# Whether the notebook has stood in front since the last look; it is fetched where it does not.
SHOW_NOTEBOOK = """async (path) => {
  const app = window.jupyterapp;
  await app.restored;
  const shown = app.shell.currentWidget;
  const ours = [...app.shell.widgets('main')].filter((one) => one.context?.path === path);
  for (const second of ours.splice(1)) second.dispose();
  const stood = shown && shown === ours[0] && shown.isVisible && window.stood === shown;
  window.stood = shown;
  if (!ours.length) await app.commands.execute('docmanager:open', { path, factory: 'Notebook' });
  else if (shown !== ours[0]) app.shell.activateById(ours[0].id);
  return stood;
}"""
_CLOSE = """async ([shared, empty]) => {
  for (const widget of [...window.jupyterapp.shell.widgets('main')]) {
    const { sessionContext } = widget;
    const kernel = sessionContext?.session?.kernel;
    if (kernel?.id === shared) await kernel.requestExecute({ code: empty }).done;
    else await sessionContext?.shutdown();
    widget.dispose();
  }
}"""
_EMPTY = """
import ipywidgets, shardviz
ipywidgets.Widget.close_all()
shardviz.cache.clear()
%reset -f
"""
_KERNEL = "window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel"
READY = f"() => {_KERNEL}?.connectionStatus === 'connected' && {_KERNEL}?.status === 'idle'"
_IDLE = f"() => {_KERNEL}?.status === 'idle'"
