"""The pages that are made from other files: lessons, what stands at the project's root, reference.

They are written when a build begins, into places that git ignores. Links to the files that they
are made from lead to the pages: a page that is read in the repository is right there, too.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from types import ModuleType
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
# Files at the root, and the pages that are made from them.
FROM_ROOT = {
    "README.md": "start.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
# Pages of the reference: public names by the start of the module that defines them.
GROUPS = {
    "layouts": ("Layouts", ("shardviz.api.meshes", "shardviz.api.layouts")),
    "programs": (
        "Programs",
        ("shardviz.api.programs", "shardviz.api.movements", "shardviz.core.program.cache"),
    ),
    "pictures": ("Pictures", ("shardviz.api.show",)),
    "values": ("Values", ("shardviz",)),
}
# Modules with names of their own, each a page.
MODULES = ("shardviz.types", "shardviz.gallery", "shardviz.legacy", "shardviz.exercises")
_SCREENSHOT = re.compile(r"(!\[[^\]]*\])\(([^)]*)-light\.png\)")
_LINK = re.compile(r"(\]\(|src(?:set)?=\")(?!https?:|#|mailto:)([^)#\s\"]+)")


def page_of(path: str) -> str:
    """Where a path from the project's root is on the site, from the site's own root.

    >>> page_of("notebooks/a1_run_it.ipynb"), page_of("docs/stages.md"), page_of("LICENSE")
    ('lessons/a1_run_it.ipynb', 'stages.md', '../LICENSE')
    """
    if path in FROM_ROOT:
        return FROM_ROOT[path]
    folder, _, rest = path.partition("/")
    return {"docs": rest, "notebooks": f"lessons/{rest}"}.get(folder) or f"../{path}"


def with_site_links(text: str, file: str, page: str | None = None) -> str:
    """The text of a file with the links that it has on the site.

    Args:
        text: Markdown, or a notebook.
        file: its path from the project's root.
        page: where it is on the site, where that is not where the file is.

    >>> with_site_links("[a](../notebooks/a1_run_it.ipynb#run)", "docs/index.md")
    '[a](lessons/a1_run_it.ipynb#run)'
    >>> with_site_links("![a](docs/images/values-dark.png)", "README.md", "start.md")
    '![a](images/values-dark.png)'
    """
    here = PurePosixPath(page or page_of(file)).parent.as_posix()

    def link(match: re.Match[str]) -> str:
        path = normpath((PurePosixPath(file).parent / match[2]).as_posix())
        # What leads to no file is code that looks like a link, or a link for Sphinx to refuse.
        there = (ROOT / path).is_file()
        return match[1] + relpath(page_of(path), here) if there else match[0]

    return _LINK.sub(link, text)


def in_both_themes(text: str) -> str:
    """The text with the dark screenshot beside each light one; the style sheet shows one.

    >>> print(in_both_themes("![a](images/x-light.png)"))
    ![a](images/x-light.png){.only-light .dark-light}
    ![a](images/x-dark.png){.only-dark .dark-light}
    """
    both = (rf"\1(\2-{theme}.png){{.only-{theme} .dark-light}}" for theme in ("light", "dark"))
    return _SCREENSHOT.sub("\n".join(both), text)


def copy_root_files() -> None:
    """Writes the pages of `FROM_ROOT`."""
    for name, page in FROM_ROOT.items():
        text = with_site_links((ROOT / name).read_text(encoding="utf-8"), name, page)
        _write(DOCS / page, in_both_themes(text))


def copy_lessons() -> list[str]:
    """Copies the notebooks into `lessons/`, and removes copies of what is gone; their names."""
    folder = DOCS / "lessons"
    folder.mkdir(exist_ok=True)
    found = sorted((ROOT / "notebooks").glob("*.ipynb"))
    for old in folder.glob("*.ipynb"):
        if old.name not in {path.name for path in found}:
            old.unlink()
    for path in found:
        text = with_site_links(path.read_text(encoding="utf-8"), f"notebooks/{path.name}")
        _write(folder / path.name, text)
    return [path.stem for path in found]


def reference() -> dict[str, tuple[str, list[str]]]:
    """The pages of the reference by file name: the title, and the full names on it in order."""
    package = importlib.import_module("shardviz")
    module_of = getattr(package, "_MODULE_OF")  # noqa: B009  what `__init__.pyi` says
    pages: dict[str, tuple[str, list[str]]] = {}
    left = {name: module_of[name] for name in package.__all__ if name in module_of}
    for page, (title, starts) in GROUPS.items():
        names = [n for n, m in left.items() if m.startswith(starts)]
        left = {n: m for n, m in left.items() if n not in names}
        pages[page] = (title, [f"shardviz.{n}" for n in names])
    for name in MODULES:
        if importlib.util.find_spec(name) is not None:
            module = importlib.import_module(name)
            own = _public(module)
            if name == "shardviz.types":  # some of which are public names themselves
                own = [n for n in own if n not in module_of]
            pages[name.rpartition(".")[2]] = (name, [f"{name}.{n}" for n in own])
    return {page: found for page, found in pages.items() if found[1]}


def _public(module: ModuleType) -> list[str]:
    """The names that a module lists, or else the functions and classes that it defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = {n: v for n, v in vars(module).items() if n[0] != "_" and callable(v)}
    return [n for n, v in own.items() if getattr(v, "__module__", "").startswith(module.__name__)]


def write_reference() -> None:
    """Writes a page of reStructuredText for each entry of `reference`, and their table."""
    folder = DOCS / "reference"
    shutil.rmtree(folder, ignore_errors=True)
    pages = reference()
    for page, (title, names) in pages.items():
        _write(folder / f"{page}.rst", _reference_page(title, names))
    entries = "".join(f"   {page}\n" for page in pages)
    words = "Every public name, with an example that the tests run.\n"
    table = f".. toctree::\n   :maxdepth: 2\n\n{entries}"
    _write(folder / "index.rst", f"Reference\n=========\n\n{words}\n{table}")


def _reference_page(title: str, names: list[str]) -> str:
    parts = [f"{title}\n{'=' * len(title)}\n"]
    if title.startswith("shardviz."):
        parts.append(f".. automodule:: {title}\n   :no-members:\n")
    for name in names:
        short = name.rpartition(".")[2]
        parts.append(f"{short}\n{'-' * len(short)}\n\n{_directive(name)}\n")
    return "\n".join(parts)


def _directive(name: str) -> str:
    module, _, short = name.rpartition(".")
    value: Any = getattr(importlib.import_module(module), short)
    if isinstance(value, type):
        members = "" if issubclass(value, BaseException) else "   :members:\n"
        return f".. autoclass:: {name}\n{members}"
    if callable(value):
        return f".. autofunction:: {name}\n"
    if isinstance(value, ModuleType):
        return f".. automodule:: {value.__name__}\n"
    return f".. autodata:: {name}\n   :no-value:\n\n   {type(value).__doc__.splitlines()[0]}\n"


def _write(path: Path, text: str) -> None:
    """Writes a file that is not so already: Sphinx reads again what is newer than its page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _begin(app: Any) -> None:
    copy_root_files()
    lessons = copy_lessons()
    entries = "\n".join(lessons)
    page = f"# Lessons\n\n{LESSONS}\n\n```{{toctree}}\n:maxdepth: 1\n\n{entries}\n```\n"
    _write(DOCS / "lessons" / "index.md", page)
    write_reference()


LESSONS = """\
Notebooks of ten to fifteen minutes each, with the outputs that are stored in them. Each makes its
claims with `assert`, asks three questions of its own, and ends in the Explorer. `make lab` opens
the first one in JupyterLab."""


def _links(app: Any, page: str, source: list[str]) -> None:
    file = f"docs/{page}.md"
    if (ROOT / file).is_file() and f"{page}.md" not in FROM_ROOT.values():
        source[0] = in_both_themes(with_site_links(source[0], file))


def setup(app: Any) -> dict[str, Any]:
    """What Sphinx calls."""
    app.connect("builder-inited", _begin)
    app.connect("source-read", _links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
