"""translated(): the source of a function that stands by itself, with jax's own constraints.

Read with `ast` and written back; nothing is evaluated.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from shardviz.core.errors import SpecError
from shardviz.core.layout.parts import Parts
from shardviz.core.program.sharded_jit.parts_tree import Cut

_OURS = "shardviz"
# Names that the code around the function has.
_TAKEN = {"jax", "np", "P", "NamedSharding", "AxisType", "Mesh", "mesh", "devices"}
_SAME = {"jax": "jax", "np": "numpy"}


@dataclass(frozen=True)
class Source:
    """A function as code.

    Attributes:
        code: the definition.
        imports: the lines it needs before it.
    """

    code: str
    imports: str


def translated(fun: Callable[..., Any], sharding: Callable[[Cut], str]) -> Source | None:
    """The source of a plain function, its constraints written as `jax.lax`'s.

    Args:
        fun: the function.
        sharding: the code of the sharding that cuts so.

    Returns:
        None where the source is not to be had, or needs more around it than imports.

    >>> translated(len, repr) is None
    True
    """
    tree = _definition(fun)
    if tree is None or getattr(fun, "__closure__", None):
        return None
    around = getattr(fun, "__globals__", {})
    try:
        tree = ast.fix_missing_locations(_Constraints(around, sharding).visit(tree))
    except _Unreadable:
        return None
    imports = _imports(tree, around)
    return None if imports is None else Source(ast.unparse(tree), imports)


class _Unreadable(Exception):
    """A constraint whose parts are no literal."""


def _definition(fun: Callable[..., Any]) -> ast.FunctionDef | None:
    if not inspect.isfunction(fun):
        return None
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(fun))).body
    except (OSError, TypeError, SyntaxError):  # typed into a shell, or an expression's part
        return None
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
        return None
    definition = body[0]
    if any("sharded_jit" not in ast.unparse(d) for d in definition.decorator_list):
        return None
    definition.decorator_list = []
    return definition if definition.name == fun.__name__ else None


class _Constraints(ast.NodeTransformer):
    """Our constraints as jax's."""

    def __init__(self, around: dict[str, Any], sharding: Callable[[Cut], str]) -> None:
        self.around, self.sharding = around, sharding

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not self._is_ours(node.func, "with_sharding_constraint"):
            return node
        arguments = [*node.args, *(k.value for k in node.keywords if k.arg == "parts")]
        if len(arguments) != 2 or len(node.keywords) > 1:
            raise _Unreadable
        written = ast.parse(self.sharding(self._parts(arguments[1])), mode="eval").body
        target = ast.parse("jax.lax.with_sharding_constraint", mode="eval").body
        return ast.Call(target, [arguments[0], written], [])

    def _parts(self, node: ast.expr) -> Cut:
        if isinstance(node, ast.Constant) and node.value is None:
            return None
        if isinstance(node, ast.Call) and self._is_ours(node.func, "Parts") and not node.keywords:
            numbers = [a.value for a in node.args if isinstance(a, ast.Constant)]
            if len(numbers) == len(node.args):
                try:
                    return Parts(*numbers)  # type: ignore[arg-type]
                except SpecError:
                    raise _Unreadable from None
        raise _Unreadable

    def _is_ours(self, node: ast.expr, name: str) -> bool:
        if isinstance(node, ast.Attribute):
            module = self.around.get(getattr(node.value, "id", ""))
            return node.attr == name and getattr(module, "__name__", "") == _OURS
        found = self.around.get(getattr(node, "id", ""))
        home = str(getattr(found, "__module__", ""))
        return getattr(found, "__name__", "") == name and home.partition(".")[0] == _OURS


def _imports(tree: ast.FunctionDef, around: dict[str, Any]) -> str | None:
    """The imports that a definition needs; None where it needs something else."""
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    bound = {n.id for n in names if not isinstance(n.ctx, ast.Load)}
    bound |= {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    bound |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    if bound & _TAKEN:
        return None
    lines = []
    for name in sorted({n.id for n in names} - bound - {"mesh", "NamedSharding", "P"}):
        value = around.get(name)
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] != _OURS:
            if _SAME.get(name) != value.__name__:
                lines.append(f"import {value.__name__} as {name}")
        elif name != "jax" and (name in around or not hasattr(builtins, name)):
            return None
    return "\n".join(lines)
