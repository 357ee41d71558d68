"""Writes the pages that come from other files: lessons, files at the project's root, the reference.

They are written at the start of a build, into folders that git ignores. Links to the original files
become links to these pages, so each link works both in the repository and on the site.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import json
import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from types import ModuleType
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
# Files at the root, and their pages on the site.
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
    "shardviz.base.typing",
    "shardviz.gallery",
    "shardviz.legacy",
    "shardviz.exercises",
)
# How names are written after `import shardviz as sv`, by their module.
PREFIXES = {
    "shardviz.": "sv.",
    "shardviz.types.": "types.",
    "shardviz.legacy.": "legacy.",
    "shardviz.gallery.": "gallery.",
    "shardviz.exercises.": "exercises.",
}
# Code that draws the picture of a public name.
_MESH = "mesh = sv.mesh(data=4, model=2)\n"
_RULES = _MESH + 'rules = [("batch", "data"), ("mlp", "model"), ("embed", "model")]\n'
PICTURES = {
    "shardviz.mesh": "sv.mesh(data=4, model=2)",
    "shardviz.array": 'sv.array("w", (512, 2048), "embed mlp")',
    "shardviz.layout": _MESH + 'sv.layout((512, 2048), "data, model", mesh)',
    "shardviz.plot": _MESH + 'sv.layout((512, 2048), "None, model", mesh)',
    "shardviz.rules": _RULES + "sv.rules(*rules)",
    "shardviz.resolve": _RULES + 'sv.resolve("embed mlp", rules, mesh=mesh, shape=(512, 2048))',
    "shardviz.audit": _MESH
    + 'model = gallery.arrays.get("7B model")\n'
    + 'sv.audit(model, gallery.rules.get("FSDP + tensor parallel"), mesh)',
    "shardviz.plan": 'sv.plan(programs.get("MLP"))',
    "shardviz.program": 'programs.get("MLP")',
    "shardviz.movement": 'sv.movement("all-gather", devices=4, size="8 MiB")',
    "shardviz.topology": 'sv.topology("tpu:v5e:4x4")',
    "shardviz.process_rows": 'sv.process_rows((64, 8), "data", sv.mesh(data=8, processes=4))',
    "shardviz.reshard": _MESH
    + 'w = sv.array("w", (512, 2048))\n'
    + 'sv.reshard(w, sv.layout((512, 2048), "data", mesh), sv.layout((512, 2048), "model", mesh))',
}
_SCREENSHOT = re.compile(r"(!\[[^\]]*\])\(([^)]*)-light\.png\)")
# The names in a cell that a lesson cannot have defined itself.
_GALLERY_NAMES = {"sv", "puzzles"}
_LINK = re.compile(r"(\]\(|src(?:set)?=\")(?!https?:|#|mailto:)([^)#\s\"]+)")


def page_of(path: str) -> str:
    """Converts a path from the project's root to the path of its page on the site.

    >>> page_of("notebooks/02_run_it.ipynb"), page_of("docs/stages.md"), page_of("LICENSE")
    ('lessons/02_run_it.ipynb', 'stages.md', '../LICENSE')
    """
    if path in FROM_ROOT:
        return FROM_ROOT[path]
    folder, _, rest = path.partition("/")
    return {"docs": rest, "notebooks": f"lessons/{rest}"}.get(folder) or f"../{path}"


def with_site_links(text: str, file: str, page: str | None = None) -> str:
    """Returns the text of a file with links that work on the site.

    Args:
        text: Markdown, or a notebook.
        file: its path from the project's root.
        page: the path of its page on the site, if it differs from the file's.

    >>> with_site_links("[a](../notebooks/02_run_it.ipynb#run)", "docs/index.md")
    '[a](lessons/02_run_it.ipynb#run)'
    >>> with_site_links("![a](docs/images/values-dark.png)", "CHANGELOG.md", "changelog.md")
    '![a](images/values-dark.png)'
    """
    here = PurePosixPath(page or page_of(file)).parent.as_posix()

    def link(match: re.Match[str]) -> str:
        path = normpath((PurePosixPath(file).parent / match[2]).as_posix())
        # Other matches are code that looks like a link, or broken links, which Sphinx reports.
        there = (ROOT / path).is_file()
        return match[1] + relpath(page_of(path), here) if there else match[0]

    return _LINK.sub(link, text)


def in_both_themes(text: str) -> str:
    """Adds the dark screenshot after each light one; the style sheet shows one of them.

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
    """Reads the number, the title and the time of a notebook.

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
    """Copies the notebooks into `lessons/`, and removes copies of deleted notebooks.

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
    """Adds links to the notebook below its title."""
    links = f"{{download}}`Download this notebook <../../notebooks/{file}>`"
    if colab:
        links += f" · [open it in Colab]({colab.rstrip('/')}/{file})"
    first = notebook["cells"][0]
    title, _, rest = "".join(first["source"]).partition("\n")
    keywords = KEYWORDS.get(f"lessons/{file.removesuffix('.ipynb')}", ())
    text = with_keywords(f"{title}\n\n{links}\n{rest}", keywords)
    first["source"] = text.splitlines(keepends=True)


def _describe_picture(cell: dict[str, Any]) -> None:
    """Copies the stored alt text of a cell's picture to the metadata that myst-nb reads."""
    for output in cell["outputs"]:
        alt = output.get("metadata", {}).get("image/png", {}).get("alt")
        if alt:
            cell["metadata"]["mystnb"] = {"image": {"alt": alt}}


def _site_outputs(code: str, outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the outputs of a cell as the site shows them.

    Tasks become Markdown, because notebooks store only their text. An Explorer that needs only the
    gallery replaces its stored picture.
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


def groups() -> dict[str, tuple[str, list[str]]]:
    """The public names by the page that lists them: its title, and the names in order."""
    package = importlib.import_module("shardviz")
    module_of = getattr(package, "_MODULE_OF")  # noqa: B009  as `__init__.pyi` lists them
    listed: dict[str, tuple[str, list[str]]] = {}
    left = {name: module_of[name] for name in package.__all__ if name in module_of}
    for page, (title, starts) in GROUPS.items():
        names = [n for n, m in left.items() if m.startswith(starts)]
        left = {n: m for n, m in left.items() if n not in names}
        listed[page] = (title, [f"shardviz.{name}" for name in names])
    types = importlib.import_module("shardviz.types")
    rest = [name for name in _public(types) if name not in module_of]
    listed["types"] = ("Other types", [f"shardviz.types.{name}" for name in rest])
    return listed


def page_name(name: str) -> str:
    """The page of a public name. Functions and classes differ in more than capitals.

    >>> page_name("shardviz.layout"), page_name("shardviz.Layout")
    ('layout', 'class-layout')
    """
    short = name.rpartition(".")[2]
    return short if short.islower() else f"class-{short.lower()}"


def short_name(name: str) -> str:
    """A public name as users write it.

    >>> short_name("shardviz.layout"), short_name("shardviz.types.Verdict")
    ('sv.layout', 'types.Verdict')
    """
    module, _, short = name.rpartition(".")
    return PREFIXES[f"{module}."] + short


def reference() -> dict[str, tuple[str, list[str]]]:
    """The pages of the reference by file name: the title, and the full names on it in order."""
    pages: dict[str, tuple[str, list[str]]] = {}
    for _, names in groups().values():
        for name in names:
            pages[page_name(name)] = (short_name(name), [name])
    for name in MODULES:
        if importlib.util.find_spec(name) is not None:
            module = importlib.import_module(name)
            pages[name.rpartition(".")[2]] = (name, [f"{name}.{n}" for n in _public(module)])
    return {page: listed for page, listed in pages.items() if listed[1]}


def _public(module: ModuleType) -> list[str]:
    """The names that a module lists, or else the functions and classes that it defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = {n: v for n, v in vars(module).items() if n[0] != "_" and callable(v)}
    return [n for n, v in own.items() if getattr(v, "__module__", "").startswith(module.__name__)]


def write_reference() -> None:
    """Writes a page of reStructuredText for each entry of `reference`, and the lists of them."""
    folder = DOCS / "reference"
    pages = reference()
    texts = {page: _reference_page(title, names) for page, (title, names) in pages.items()}
    modules = [page for page, (title, _) in pages.items() if title in MODULES]
    for page, (title, names) in groups().items():
        texts[f"group-{page}"] = _group_page(title, names)
    lists = [f"group-{page}" for page in groups()] + modules
    entries = "".join(f"   {page}\n" for page in lists)
    words = "Each public name has a page with an example, which the tests run unchanged.\n"
    words += "The examples need only ``import shardviz as sv``.\n"
    table = f".. toctree::\n   :maxdepth: 2\n\n{entries}"
    texts["index"] = f"Reference\n=========\n\n{words}\n{table}"
    for page, text in texts.items():
        _write(folder / f"{page}.rst", text)
    for old in folder.glob("*.rst"):
        if old.stem not in texts:
            old.unlink()


def _group_page(title: str, names: list[str]) -> str:
    """A page that lists names, each with the first line of its docstring."""
    parts = [f"{title}\n{'=' * len(title)}\n"]
    for name in names:
        module, _, short = name.rpartition(".")
        value = getattr(importlib.import_module(module), short)
        owner = value if callable(value) else type(value)
        summary = (inspect.getdoc(owner) or "").partition("\n")[0]
        parts.append(f":doc:`{short_name(name)} <{page_name(name)}>`\n    {summary}\n")
    entries = "".join(f"   {page_name(name)}\n" for name in names)
    parts.append(f".. toctree::\n   :hidden:\n\n{entries}")
    return "\n".join(parts)


def _reference_page(title: str, names: list[str]) -> str:
    parts = [f"{title}\n{'=' * len(title)}\n"]
    if title in MODULES:
        parts.append(f".. automodule:: {title}\n   :no-members:\n")
    for name in names:
        if title in MODULES:
            short = name.rpartition(".")[2]
            parts.append(f"{short}\n{'-' * len(short)}\n")
        parts.append(f"{_directive(name)}\n")
        if name in PICTURES:
            code = "".join(f"   {line}\n" for line in PICTURES[name].splitlines())
            parts.append(f".. picture::\n\n{code}")
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
    return f".. autodata:: {name}\n   :no-value:\n"  # autodoc adds the docstring of its type


def _write(path: Path, text: str) -> None:
    """Writes a file unless it has this text, because Sphinx reads files newer than their pages."""
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


# Words that people search for, by the page that answers them.
KEYWORDS = {
    "howto/out-of-memory": ("OOM", "out of memory", "RESOURCE_EXHAUSTED"),
    "howto/will-it-fit": ("does it fit", "memory per device"),
    "howto/recompile": ("recompile", "recompiles", "recompilation", "cache miss"),
    "howto/optimizer-state": ("replicated", "replicated optimizer state"),
    "howto/no-rule-matched": ("replicated weight", "not sharded"),
    "howto/explicit-mode": ("out_sharding", "ShardingTypeError", "Explicit axes"),
    "howto/all-gather": ("unexpected all-gather", "all-gather"),
    "lessons/07_data_fsdp_tensor": ("FSDP", "fully sharded data parallel", "tensor parallelism"),
    "lessons/08_zero": ("ZeRO", "optimizer sharding"),
    "lessons/23_kv_cache": ("KV cache", "prefill", "decode"),
    "lessons/24_pipelines": ("pipeline parallelism", "bubble"),
    "lessons/29_experts": ("mixture of experts", "MoE"),
    "first-steps": ("install", "getting started", "simulated devices"),
}
COURSE = 17  # lessons; those after them are short ones
LESSON_EXPLORER = 680  # pixels
PARTS = {
    "index": (
        "Lessons",
        """\
The main course: {count} notebooks, shown with their stored outputs. Each lesson has one idea, tests
its claims with `assert`, and ends with exercises that check themselves. `make lab` opens the first
lesson in JupyterLab.
Lecturers find aims and times on [the page about the course](../course.md).""",
    ),
    "short": (
        "Short lessons",
        """\
{count} lessons to take after the main course. Each lesson has one idea, an experiment and at least
two exercises. The first cell of a lesson names the lessons that it needs.""",
    ),
    "appendix": (
        "Appendix",
        "{count} notebooks for self-study, each of which answers one question.",
    ),
}


def with_keywords(text: str, keywords: tuple[str, ...]) -> str:
    """Markdown with entries of the index, which search finds, below its title.

    >>> print(with_keywords("# A\\n\\nText.", ("OOM", "KV cache")))
    # A
    <BLANKLINE>
    ```{index} ! OOM, ! KV cache
    ```
    <BLANKLINE>
    Text.
    """
    title, _, rest = text.partition("\n")
    if not keywords or not title.startswith("# "):
        return text
    entries = ", ".join(f"! {keyword}" for keyword in keywords)
    return f"{title}\n\n```{{index}} {entries}\n```\n{rest}"


def _links(app: Any, page: str, source: list[str]) -> None:
    file = f"docs/{page}.md"
    source[0] = with_keywords(source[0], KEYWORDS.get(page, ()))
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
    """Reads home again if a part of the lessons got its first lesson or lost its last one."""
    parts = {f"lessons/{part}" for part in PARTS}
    return ["index"] if parts & (added | removed) else []


def mark_code(lines: list[str]) -> list[str]:
    """The lines of a docstring with `::` before each indented block that is not a doctest.

    Docstrings indent code, as in Markdown; without `::`, reStructuredText joins its lines.

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


def _prefixes(app: Any, doctree: Any) -> None:
    """Writes names as users do: `sv.plot` in place of `shardviz.plot`."""
    from sphinx import addnodes

    for node in doctree.findall(addnodes.desc_addname):
        if prefix := PREFIXES.get(node.astext()):
            node.clear()
            node += addnodes.desc_sig_name("", prefix)


def setup(app: Any) -> dict[str, Any]:
    """What Sphinx calls."""
    app.add_config_value("lessons_colab", "", "env")
    app.connect("doctree-read", _prefixes)
    app.connect("builder-inited", _begin)
    app.connect("source-read", _links)
    app.connect("env-get-outdated", _home_too)
    app.connect("autodoc-process-docstring", _docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
