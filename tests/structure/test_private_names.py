"""Private names of jax are used in one file alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import shardviz
from tests.structure.imports import python_files

ROOT = Path(shardviz.__file__).parent
COMPAT = ("base/backend/jax_compat.py", "base/backend/jax_compat_checks.py")
WORDS = "commands/words/doctor.py"
# Of Python itself and of named tuples.
PUBLIC = {
    "_DummyThread",
    "_asdict",
    "_current_frames",
    "_exit",
    "_fields",
    "_getframe",
    "_parser",
    "_replace",
}


def private_uses(files: dict[str, ast.Module]) -> list[str]:
    """The uses of private names that no file of the package defines, and of `_src`."""
    own = PUBLIC | {name for tree in files.values() for name in _defined(tree)}
    found = []
    for file, tree in files.items():
        docs = _docstrings(tree)
        for node in ast.walk(tree):
            name = _private_name(node)
            if name == "_src" or (name and name not in own and not name.startswith("__")):
                found.append(f"{file}:{node.lineno}: {name}")
            elif _names_src(node) and id(node) not in docs:
                found.append(f"{file}:{node.lineno}: _src")
    return found


def _private_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
        return node.attr
    return ""


def _names_src(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return "jax._src" in node.value
    if isinstance(node, ast.ImportFrom):
        return "_src" in f"{node.module}." + ".".join(a.name for a in node.names)
    return isinstance(node, ast.Import) and any("._src" in a.name for a in node.names)


def _defined(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            # What it sets on itself; what it sets on a foreign value is not its own.
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # in __slots__, or set by object.__setattr__
    return {name for name in names if name.startswith("_")}


def _docstrings(tree: ast.Module) -> set[int]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.add(id(node.value))
    return found


def test_private_names_of_jax_are_used_in_one_place():
    files = python_files(ROOT)
    for file in (*COMPAT, WORDS, "explorer/ipykernel_compat.py"):
        del files[file]
    assert private_uses(files) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import jax\njax._src.mesh", 1),
        ("from jax._src import mesh", 1),
        ("import jax._src.mesh", 1),
        ("name = 'jax._src.mesh'", 1),
        ("lowered._lowering.compile_args", 1),
        ("lowered._lowering = 3", 1),
        ("class A:\n    def f(self):\n        self._own = 1\ndef g(a): return a._own", 0),
        ('"""Follows jax._src.mesh."""', 0),
        ("row._replace(a=1)", 0),
    ],
)
def test_a_planted_use_is_found(source, count):
    assert len(private_uses({"a.py": ast.parse(source)})) == count
