"""Finds sentences in the code: strings of four or more English words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

# Words with one blank between them, as in prose. Code, flags and formats hardly have four.
_WORDS = re.compile(r"(?:[A-Za-z][A-Za-z'’-]*[,;:]? ){3,}[A-Za-z]+")
_BODIES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_COMPARING = (
    "startswith",
    "endswith",
    "removeprefix",
    "removesuffix",
    "partition",
    "split",
    "find",
)


def is_sentence(text: str) -> bool:
    """Whether a string has four words in a row, at least three of them of several letters."""
    for run in _WORDS.findall(text):
        if len(re.findall(r"[A-Za-z]{2,}", run)) >= 3:
            return True
    return False


def sentences(tree: ast.Module) -> list[tuple[int, str]]:
    """Line and text of every sentence that is no docstring and no text of an error."""
    skipped = set(_documentation(tree))
    found = []
    for node in _outside_errors(tree):
        text = _text(node)
        if id(node) not in skipped and is_sentence(text):
            found.append((node.lineno, text))
    return found


def compared_sentences(tree: ast.Module) -> list[tuple[int, str]]:
    """Line and text of every sentence that something is compared with or searched for."""
    found = []
    for node in ast.walk(tree):
        for operand in _compared(node):
            if is_sentence(_text(operand)):
                found.append((operand.lineno, _text(operand)))
    return found


def _compared(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _COMPARING:
        return node.args
    return []


def _documentation(tree: ast.Module) -> Iterator[int]:
    """The ids of docstrings, and of strings that stand alone after an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield id(node.value)


def _outside_errors(node: ast.AST) -> Iterator[ast.expr]:
    """Every expression except those that make an error or a warning, and parts of f-strings."""
    if isinstance(node, ast.Raise) or _makes_error(node):
        return
    if isinstance(node, ast.expr):
        yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant):
            continue
        yield from _outside_errors(child)


def _makes_error(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    # A note is printed with its error.
    return name.endswith("Error") or name in ("warn", "needed_by", "add_note")


def _text(node: ast.AST) -> str:
    """The text of a string; each value that is put into it counts as one word."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "x" for part in node.values]
        return "".join(map(str, parts))
    return ""
