"""Reads what every file of a package imports, without importing any of it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "shardviz"
IMPORTERS = ("import_module", "__import__")
COMPUTED = "<a name made at run time>"
IN_TEXT = "<a string>"
FOR_TYPES = "<TYPE_CHECKING>"


@dataclass(frozen=True)
class Import:
    """One import in one file.

    Attributes:
        file: the importing file, relative to the package, such as `base/mesh.py`.
        line: where it stands.
        module: the module it names; for `from a import b`, `a.b` where that is a module.
        inside: the qualified name of the function it stands in; IN_TEXT for a module that is
            named in a string; FOR_TYPES for one that only a type checker reads; empty for an
            import at module level.
    """

    file: str
    line: int
    module: str
    inside: str = ""

    @property
    def top(self) -> str:
        """The package the module belongs to."""
        return self.module.partition(".")[0]

    def __str__(self) -> str:
        place = f" in {self.inside}" if self.inside else ""
        return f"{PACKAGE}/{self.file}:{self.line}{place} imports {self.module}"


def python_files(root: Path) -> dict[str, ast.Module]:
    """The parsed files below `root`, by their path relative to it."""
    return {
        path.relative_to(root).as_posix(): parsed(path.read_text(encoding="utf-8"))
        for path in sorted(root.rglob("*.py"))
    }


@functools.cache
def parsed(source: str) -> ast.Module:
    """The tree of a source, which nobody may change: to parse all of them takes a second."""
    return ast.parse(source)


def module_name(file: str) -> str:
    """`base/mesh.py` -> `shardviz.base.mesh`; an `__init__.py` is its folder."""
    parts = [PACKAGE, *file.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(files: Mapping[str, ast.Module]) -> list[Import]:
    """Every import of every file. For type checkers only those of the package itself count."""
    modules = {module_name(file) for file in files}
    found: list[Import] = []
    for file, tree in files.items():
        for node, inside in _nodes(tree.body, ""):
            place = inside or (IN_TEXT if isinstance(node, ast.Constant) else "")
            for module in _modules(node, file, modules):
                if place == FOR_TYPES and module.partition(".")[0] != PACKAGE:
                    continue  # it is loaded by no one
                found.append(Import(file, node.lineno, module, place))
    return found


def file_cycles(imports: list[Import]) -> list[list[str]]:
    """The modules that import each other, each ring once, sorted.

    Imports inside a call and those for type checkers count as well: they hide a ring, and do not
    untie it.
    """
    return _rings(_graph(_edges(imports)))


def _edges(imports: Iterable[Import]) -> list[tuple[str, str]]:
    """Importer and imported; without the public names, which are above everything."""
    edges = [(module_name(i.file), i.module) for i in imports if i.top == PACKAGE]
    above = (PACKAGE, f"{PACKAGE}._version")
    return [(a, b) for a, b in edges if a != PACKAGE and b not in above]


def _graph(edges: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for start, end in edges:
        if start and end and start != end:
            graph.setdefault(start, set()).add(end)
    return graph


def _rings(graph: Mapping[str, set[str]]) -> list[list[str]]:
    reach = {node: _reachable(graph, node) for node in graph}
    rings = {
        tuple(sorted(n for n in reach[node] if node in reach.get(n, ())))
        for node in graph
        if node in reach[node]
    }
    return sorted(list(ring) for ring in rings)


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    queue = list(graph.get(start, ()))
    while queue:
        module = queue.pop()
        if module not in seen:
            seen.add(module)
            queue.extend(graph.get(module, ()))
    return seen


def _nodes(body: list[ast.stmt], inside: str) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """Every statement and expression with the function it stands in."""
    for node in body:
        yield from _walk(node, inside, "")


def _walk(node: ast.AST, inside: str, owner: str) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    if isinstance(node, ast.If) and _is_type_checking(node.test):
        for child in node.body:
            yield from _walk(child, FOR_TYPES, owner)
        for child in node.orelse:
            yield from _walk(child, inside, owner)
        return
    if isinstance(node, (ast.stmt, ast.expr)):
        yield node, inside
    if isinstance(node, ast.ClassDef):
        owner = f"{owner}{node.name}."
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        inside = f"{owner}{node.name}" if not inside else f"{inside}.{node.name}"
    elif isinstance(node, ast.Lambda):
        inside = inside or f"{owner}<lambda>"
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, inside, owner)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _modules(node: ast.AST, file: str, known: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(node, file)
        for alias in node.names:
            whole = f"{base}.{alias.name}"
            yield whole if whole in known else base
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in IMPORTERS:
            argument = node.args[0] if node.args else None
            yield _text(argument) or COMPUTED
    elif _text(node) in known and "." in _text(node):
        yield _text(node)  # a module named in a string is on its way to be imported


def _text(node: ast.AST | None) -> str:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else ""


def _absolute(node: ast.ImportFrom, file: str) -> str:
    if not node.level:
        return node.module or ""
    package = [PACKAGE, *file.split("/")[:-1]]
    above = package[: len(package) - node.level + 1]
    return ".".join([*above, *filter(None, [node.module])])
