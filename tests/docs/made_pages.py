"""The modules in docs/_ext, which make pages when the site is built, and what was built."""

from __future__ import annotations

import importlib.util
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from tests.docs.pages import ROOT

SITE = ROOT / "docs" / "_build" / "html"
HOW = "the site is not built: run `make docs`"
# What a browser loads by itself, in place of what a reader may follow.
_LOADED = {"script", "img", "iframe", "source", "video", "audio", "embed", "object"}


def extension(name: str) -> ModuleType:
    """A module of docs/_ext, which needs no Sphinx to be imported."""
    path = ROOT / "docs" / "_ext" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Reference(NamedTuple):
    """What one element of a page refers to."""

    target: str
    loaded: bool


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.references: list[Reference] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {v for k in ("id", "name") if (v := found.get(k))}
        loaded = tag in _LOADED or (tag == "link" and "stylesheet" in (found.get("rel") or ""))
        for attribute in ("href", "src", "data"):
            target = found.get(attribute)
            if target and (attribute != "data" or tag == "object"):
                self.references.append(Reference(target, loaded))


def read_page(text: str) -> tuple[list[Reference], set[str]]:
    """What a page refers to, and its anchors."""
    reader = _Reader()
    reader.feed(text)
    return reader.references, reader.ids


def broken(site: Path) -> list[str]:
    """Each reference of a site that leads to no file or anchor, or that loads from elsewhere."""
    files = [p for p in site.rglob("*.html") if "_static" not in p.parts]  # the theme's templates
    pages = {path: read_page(path.read_text(encoding="utf-8")) for path in files}
    found = []
    for path, (references, _) in pages.items():
        for target, loaded in references:
            if problem := _problem(path, target, loaded, pages):
                found.append(f"{path.relative_to(site)}: {target}: {problem}")
    return sorted(set(found))


def _problem(page: Path, target: str, loaded: bool, pages: dict) -> str:
    parts = urlsplit(target)
    if parts.scheme == "data":
        return ""
    if parts.scheme or parts.netloc:
        return "loaded from elsewhere" if loaded else ""
    to = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not to.is_file():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and to in pages and anchor not in pages[to][1]:
        return "no such anchor"
    return ""
