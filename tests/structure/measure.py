"""How long files and functions are."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

FILE_LINES = {".py": 600, ".js": 600, ".css": 600}
MOST_FILES = 160
MEDIAN_FUNCTION = 12
FUNCTION_LINES = 60


def long_files(root: Path) -> list[str]:
    """The files below `root` that are longer than their kind may be."""
    found = []
    for suffix, limit in FILE_LINES.items():
        for path in sorted(root.rglob(f"*{suffix}")):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > limit:
                found.append(f"{path.relative_to(root).as_posix()} has {lines} lines of {limit}")
    return found


def long_functions(root: Path) -> list[str]:
    """The functions below `root` that are longer than a function may be."""
    found = []
    for path in sorted(root.rglob("*.py")):
        for name, lines in function_lines(ast.parse(path.read_text(encoding="utf-8"))):
            if lines > FUNCTION_LINES:
                place = path.relative_to(root).as_posix()
                found.append(f"{place}: {name} has {lines} lines of {FUNCTION_LINES}")
    return found


def function_lines(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The name and length of every function, its docstring left out."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, (node.end_lineno or 0) - node.lineno + 1 - _docstring_lines(node)


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    if ast.get_docstring(node) is None:
        return 0
    return (node.body[0].end_lineno or 0) - node.body[0].lineno + 1


def median_function(root: Path) -> float:
    """The median length of the functions below `root`, in lines without their docstrings."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in root.rglob("*.py")]
    return statistics.median(lines for tree in trees for _, lines in function_lines(tree))
