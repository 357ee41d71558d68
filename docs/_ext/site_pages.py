"""The pages that are made from other files: lessons, what stands at the project's root, reference.

They are written when a build begins, into places that git ignores. Links to the files that they
are made from lead to the pages: a page that is read in the repository is right there, too.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import json
import re
import shutil
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from types import ModuleType
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
# Files at the root, and the pages that are made from them.
FROM_ROOT = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
# Pages of the reference: public names by the start of the module that defines them.
GROUPS = {
    "layouts": (
        "Layouts",
        (
            "shardviz.base.public",
            "shardviz.hardware.public",
            "shardviz.axis_rules.public",
            "shardviz.move.public.arrays",
        ),
    ),
    "programs": (
        "Programs",
        (
            "shardviz.programs.public",
            "shardviz.plans.public",
            "shardviz.compiled.public",
            "shardviz.runs.public",
            "shardviz.advise.public",
            "shardviz.move.public.collectives",
        ),
    ),
    "pictures": ("Pictures", ("shardviz.draw.public", "shardviz.explorer.public")),
    "values": ("Values", ("shardviz",)),
}
# Modules with names of their own, each a page.
MODULES = (
    "shardviz.types",
    "shardviz.base.typing",
    "shardviz.gallery",
    "shardviz.legacy",
    "shardviz.exercises",
)
_SCREENSHOT = re.compile(r"(!\[[^\]]*\])\(([^)]*)-light\.png\)")
# The names in a cell that a lesson cannot have defined itself.
_GALLERY_NAMES = {"sv", "puzzles"}
_LINK = re.compile(r"(\]\(|src(?:set)?=\")(?!https?:|#|mailto:)([^)#\s\"]+)")


def page_of(path: str) -> str:
    """Where a path from the project's root is on the site, from the site's own root.

    >>> page_of("notebooks/02_run_it.ipynb"), page_of("docs/stages.md"), page_of("LICENSE")
    ('lessons/02_run_it.ipynb', 'stages.md', '../LICENSE')
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

    >>> with_site_links("[a](../notebooks/02_run_it.ipynb#run)", "docs/index.md")
    '[a](lessons/02_run_it.ipynb#run)'
    >>> with_site_links("![a](docs/images/values-dark.png)", "CHANGELOG.md", "changelog.md")
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


class Lesson(NamedTuple):
    """A notebook, as the lists of lessons name it."""

    name: str
    number: str
    title: str
    minutes: str

    @property
    def part(self) -> str:
        """Which page lists it: `"index"`, `"short"` or `"appendix"`.

        >>> [Lesson(name, "", "", "").part for name in ("14_debug", "20_shard_map", "a1_pod")]
        ['index', 'short', 'appendix']
        """
        if self.name[0] == "a":
            return "appendix"
        return "index" if int(self.name[:2]) <= COURSE else "short"


def read_lesson(name: str, notebook: dict[str, Any]) -> Lesson:
    """What a list says of a notebook: its number, its title and how long it takes.

    >>> cells = [{"source": ["# Run it\\n", "\\n", "*12 minutes: 4 to read.*"]}]
    >>> read_lesson("02_run_it", {"cells": cells})
    Lesson(name='02_run_it', number='2', title='Run it', minutes='12 minutes')
    """
    first = "".join(notebook["cells"][0]["source"])
    title = re.match(r"# (.*)", first)
    if title is None:
        raise ValueError(f"{name} does not begin with a title")
    minutes = re.search(r"^\*(\d+ minutes)", first, re.MULTILINE)
    number = name.partition("_")[0].lstrip("0").upper()
    return Lesson(name, number, title[1], minutes[1] if minutes else "")


def copy_lessons(colab: str = "") -> list[Lesson]:
    """Copies the notebooks into `lessons/`, and removes copies of what is gone.

    Args:
        colab: the address in Colab of the folder of the notebooks; "" for no links to it.
    """
    folder = DOCS / "lessons"
    folder.mkdir(exist_ok=True)
    found = sorted((ROOT / "notebooks").glob("*.ipynb"))
    for old in folder.glob("*.ipynb"):
        if old.name not in {path.name for path in found}:
            old.unlink()
    lessons = []
    for path in found:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        lessons.append(read_lesson(path.stem, notebook))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"] = _site_outputs("".join(cell["source"]), cell["outputs"])
                _describe_picture(cell)
        _add_links(notebook, path.name, colab)
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        _write(folder / path.name, with_site_links(text, f"notebooks/{path.name}"))
    return lessons


def _add_links(notebook: dict[str, Any], file: str, colab: str) -> None:
    """Puts links to the notebook itself below its title."""
    links = f"{{download}}`Download this notebook <../../notebooks/{file}>`"
    if colab:
        links += f" · [open it in Colab]({colab.rstrip('/')}/{file})"
    first = notebook["cells"][0]
    title, _, rest = "".join(first["source"]).partition("\n")
    first["source"] = f"{title}\n\n{links}\n{rest}".splitlines(keepends=True)


def _describe_picture(cell: dict[str, Any]) -> None:
    """Gives the picture of a cell its stored description, where myst-nb looks for one."""
    for output in cell["outputs"]:
        alt = output.get("metadata", {}).get("image/png", {}).get("alt")
        if alt:
            cell["metadata"]["mystnb"] = {"image": {"alt": alt}}


def _site_outputs(code: str, outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The outputs of a cell as the site shows them.

    Tasks are Markdown, of which notebooks store the text. In the place of the picture of an
    Explorer that the gallery alone can make stands the Explorer.
    """
    for output in outputs:
        data = output.get("data", {})
        if "exercises.task(" in code and "text/plain" in data:
            data["text/markdown"] = data["text/plain"]
    if is_gallery_explorer(code):
        import site_figures  # which needs Sphinx

        name = hashlib.sha256(code.encode()).hexdigest()[:16]
        site_figures.save_explorer(code, name)
        frame = site_figures.explorer_frame(name, "../", LESSON_EXPLORER)
        return [{"output_type": "display_data", "metadata": {}, "data": {"text/html": frame}}]
    return outputs


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
    if module == "shardviz.base.typing":  # an alias, which may look like a class or a function
        return f".. autodata:: {name}\n   :no-value:\n"
    if isinstance(value, type):
        members = "" if issubclass(value, BaseException) else "   :members:\n"
        return f".. autoclass:: {name}\n{members}"
    if callable(value):
        return f".. autofunction:: {name}\n"
    if isinstance(value, ModuleType):
        return f".. automodule:: {value.__name__}\n"
    return f".. autodata:: {name}\n   :no-value:\n"  # autodoc adds what its type says


def _write(path: Path, text: str) -> None:
    """Writes a file that is not so already: Sphinx reads again what is newer than its page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def is_gallery_explorer(code: str) -> bool:
    """Whether a cell opens an Explorer, and needs only shardviz and its gallery.

    >>> is_gallery_explorer("sv.explore()"), is_gallery_explorer("sv.explore(my_step)")
    (True, False)
    >>> is_gallery_explorer('sv.explore(puzzles.get("fsdp, gradient"))')
    True
    >>> is_gallery_explorer('sv.explore([sv.array("x", (8, 8), spec="data")], mesh="data=4")')
    True
    """
    if not code.startswith("sv.explore("):
        return False
    nodes = list(ast.walk(ast.parse(code)))
    return {node.id for node in nodes if isinstance(node, ast.Name)} <= _GALLERY_NAMES


def write_lists(lessons: list[Lesson]) -> None:
    """Writes the pages that list the lessons, each with a table of contents."""
    for part, (title, about) in PARTS.items():
        path = DOCS / "lessons" / f"{part}.md"
        listed = [lesson for lesson in lessons if lesson.part == part]
        if listed:
            _write(path, _list_page(title, about.format(count=len(listed)), listed))
        else:
            path.unlink(missing_ok=True)


def _list_page(title: str, about: str, lessons: list[Lesson]) -> str:
    timed = any(lesson.minutes for lesson in lessons)
    table = "| | lesson | time |\n|---|---|---|\n" if timed else "| | lesson |\n|---|---|\n"
    entries = ""
    for lesson in lessons:
        table += f"| {lesson.number} | [{lesson.title}]({lesson.name}.ipynb) |"
        table += f" {lesson.minutes} |\n" if timed else "\n"
        entries += f"{lesson.number} {lesson.title} <{lesson.name}>\n"
    return f"# {title}\n\n{about}\n\n{table}\n```{{toctree}}\n:hidden:\n\n{entries}```\n"


def _begin(app: Any) -> None:
    copy_root_files()
    write_lists(copy_lessons(app.config.lessons_colab))
    write_reference()


COURSE = 17  # lessons; those after them are short ones
LESSON_EXPLORER = 680  # pixels
PARTS = {
    "index": (
        "Lessons",
        """\
The main course: {count} notebooks, shown with their stored outputs. Each lesson has one idea, makes
its claims with `assert`, and ends with exercises that check themselves. `make lab` opens the first
lesson in JupyterLab.
Lecturers find aims and times on [the page about the course](../course.md).""",
    ),
    "short": (
        "Short lessons",
        """\
{count} lessons for after the main course. Each has one idea, an experiment and at least two
exercises. Its first cell names the lessons that it needs.""",
    ),
    "appendix": (
        "Appendix",
        "{count} notebooks that answer questions of single readers, and suit self-study.",
    ),
}


def _links(app: Any, page: str, source: list[str]) -> None:
    file = f"docs/{page}.md"
    if page == "index":
        # A part of the lessons without any has no page.
        for part in PARTS:
            if not (DOCS / "lessons" / f"{part}.md").is_file():
                source[0] = source[0].replace(f"lessons/{part}\n", "")
    if (ROOT / file).is_file() and f"{page}.md" not in FROM_ROOT.values():
        source[0] = in_both_themes(with_site_links(source[0], file))


def _home_too(
    app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Reads home again where a part of the lessons got its first lesson, or lost its last."""
    parts = {f"lessons/{part}" for part in PARTS}
    return ["index"] if parts & (added | removed) else []


def mark_code(lines: list[str]) -> list[str]:
    """The lines of a docstring with `::` before each indented block that is not a doctest.

    Docstrings indent code, as Markdown does; reStructuredText would run its lines together.

    >>> mark_code(["Write:", "", "    a()", "    b()", "", "Then."])
    ['Write:', '', '::', '', '    a()', '    b()', '', 'Then.']
    """
    marked: list[str] = []
    for line in lines:
        begins = line.startswith("    ") and len(marked) > 1 and not marked[-1]
        if begins and not marked[-2].startswith("    ") and not marked[-2].endswith("::"):
            marked += ["::", ""]
        marked.append(line)
    return marked


def _docstring(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    if what == "module":
        lines[:] = mark_code(lines)


def setup(app: Any) -> dict[str, Any]:
    """What Sphinx calls."""
    app.add_config_value("lessons_colab", "", "env")
    app.connect("builder-inited", _begin)
    app.connect("source-read", _links)
    app.connect("env-get-outdated", _home_too)
    app.connect("autodoc-process-docstring", _docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
