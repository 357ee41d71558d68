"""A Markdown copy of each page beside its HTML, and `llms.txt`, which lists the copies.

`stages.html` has `stages.md`. Lessons are copied with their text outputs, and pages of the
reference are written from signatures and docstrings.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
SUMMARY = (
    "See how JAX lays out an array, a model and a program over the devices of a mesh, and why."
)
_FENCE = re.compile(r"^```\{(\w+)\} ?([^\n]*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"!\[([^\]]*)\]\([^)]*\)(?:\{[^}]*\})?")
_CAPTION = re.compile(r":caption: (.*)\n\n((?:.+\n)+)")
_ENTRY = re.compile(r"^(?:.* <(.+)>|(\S+))$")
_OUTPUT_LINES = 40


def plain(text: str) -> str:
    """Markdown without directives, pictures and HTML.

    >>> plain("# A\\n\\n```{picture}\\nx\\n```\\n![of x](x.png)\\n[b](b.ipynb){.button}")
    '# A\\n\\n*Picture: of x*\\n[b](b.md)'
    """
    text = re.sub(r"\A---\n.*?\n---\n+", "", text, flags=re.DOTALL)
    text = _FENCE.sub(_directive, text)
    text = _PICTURE.sub(r"*Picture: \1*", text)
    text = re.sub(r"</?div[^>]*>\n*", "", text)
    text = re.sub(r"(\]\([^)]*\))\{[^}]*\}", r"\1", text)
    text = re.sub(r"\{doc\}`([^<`]*) <([^>]*)>`", r"[\1](\2.md)", text)
    text = re.sub(r"\{\w+\}`([^`<]*?) ?(?:<[^>]*>)?`", r"\1", text)
    return re.sub(r"\]\(([^):]*)\.ipynb", r"](\1.md", text)


def _directive(match: re.Match[str]) -> str:
    kind, argument, content = match[1], match[2], match[3]
    if kind == "examples":
        return _examples(argument)
    if kind == "literalinclude":
        return f"```\n{(DOCS / argument).read_text(encoding='utf-8')}```\n"
    return content if kind in ("note", "warning", "tip") else ""


def _examples(kind: str) -> str:
    """The examples of a gallery: name, sentence and source."""
    from shardviz import gallery

    registry = getattr(gallery, kind, None) or importlib.import_module(f"shardviz.gallery.{kind}")
    parts = []
    for name in registry.names():
        parts.append(f"## {name}\n\n{registry.describe(name)}\n")
        if sources := "\n\n".join(registry.sources(name)):
            parts.append(f"```python\n{sources.rstrip()}\n```\n")
    return "\n".join(parts)


def of_notebook(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown: text, code, and the outputs that are text."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            parts.append(plain(source + "\n").rstrip())
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            shown = output.get("text") or output.get("data", {}).get("text/plain", "")
            lines = "".join(shown).rstrip().split("\n")
            if len(lines) > _OUTPUT_LINES:
                lines = [*lines[:_OUTPUT_LINES], "..."]
            if lines != [""]:
                parts.append("```text\n" + "\n".join(lines) + "\n```")
    return "\n\n".join(parts) + "\n"


def of_reference(title: str, names: list[str]) -> str:
    """The signatures and docstrings of names as Markdown."""
    from sphinx.util.inspect import stringify_signature

    parts = [f"# {title}"]
    for name in names:
        module, _, short = name.rpartition(".")
        value = getattr(importlib.import_module(module), short)
        signature = ""
        if inspect.isfunction(value):
            signature = stringify_signature(inspect.signature(value))
        doc = inspect.getdoc(value) or ""
        parts.append(f"## {short}\n\n```python\n{short}{signature}\n```\n\n```text\n{doc}\n```")
    return "\n\n".join(parts) + "\n"


def contents(index: str) -> dict[str, list[str]]:
    """The pages in the tables of contents of home, by caption.

    >>> contents(":caption: Start\\n\\nfirst-steps\\nLessons <lessons/index>\\n")
    {'Start': ['first-steps', 'lessons/index']}
    """
    tables = {}
    for caption, entries in _CAPTION.findall(index):
        found = [_ENTRY.fullmatch(line) for line in entries.strip().split("\n")]
        tables[caption] = [match[1] or match[2] for match in found if match]
    return tables


def write_llms(site: Path, titles: dict[str, str], children: dict[str, list[str]]) -> None:
    """Writes `llms.txt`: each page of the site with its Markdown copy, by part."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    lines = ["# shardviz", "", f"> {SUMMARY}", ""]
    for caption, pages in contents(index).items():
        lines += [f"## {caption}", ""]
        for page in pages:
            for name in (page, *children.get(page, [])):
                if (site / f"{name}.md").is_file():
                    lines.append(f"- [{titles[name]}]({name}.md)")
        lines.append("")
    (site / "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def _copy(name: str, reference: dict[str, tuple[str, list[str]]], lists: dict[str, Any]) -> str:
    """The Markdown of a page by its name."""
    folder, _, page = name.partition("/")
    if folder == "reference" and page in reference:
        return of_reference(*reference[page])
    if folder == "reference":
        title, names = lists.get(page.removeprefix("group-"), ("Reference", []))
        pages = [f"- [{t}]({p}.md)" for p, (t, _) in reference.items() if not names]
        pages += [f"- [{reference[p][0]}]({p}.md)" for p in map(lists["page_name"], names)]
        return f"# {title}\n\n" + "\n".join(pages) + "\n"
    if (path := DOCS / f"{name}.ipynb").is_file():
        return of_notebook(json.loads(path.read_text(encoding="utf-8")))
    import site_pages

    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    return plain(site_pages.with_site_links(text, f"docs/{name}.md"))


def _finished(app: Any, error: Exception | None) -> None:
    if error is not None or app.builder.name != "html":
        return
    import site_pages

    site = Path(app.outdir)
    reference = site_pages.reference()
    lists = {**site_pages.groups(), "page_name": site_pages.page_name}
    for name in app.env.found_docs:
        path = site / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_copy(name, reference, lists), encoding="utf-8")
    titles = {name: title.astext() for name, title in app.env.titles.items()}
    write_llms(site, titles, app.env.toctree_includes)


def _link(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if doctree is not None:
        name = page.rpartition("/")[2]
        link = f'<link rel="alternate" type="text/markdown" href="{name}.md" />'
        context["metatags"] = context.get("metatags", "") + link


def setup(app: Any) -> dict[str, Any]:
    """What Sphinx calls."""
    app.connect("html-page-context", _link)
    app.connect("build-finished", _finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
