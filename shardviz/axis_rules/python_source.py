"""table_in_source(): reads a rule table from Python source.

In EasyLM, a function returns the table; T5X and big_vision assign it to a variable. The
source is parsed and never run. A variable in a table is replaced by its value if
the file assigns it exactly one literal.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from shardviz.base.errors import RuleError
from shardviz.base.format import listed, shown
from shardviz.base.parse import literal_value, without_unknown_escapes

# The name given to a list that is part of a larger expression.
_PART = "in an expression"
_SPEC_NAMES = ("P", "PS", "PartitionSpec")


def table_in_source(text: str) -> Any:
    """Returns the pairs of the only rule table in Python source.

    Tables of PartitionSpecs are preferred. Next come tables with "rules" or "sharding"
    in their names, then other pairs of text.

    Raises:
        RuleError: if the text is not Python, or has no table, or has several different
            tables.

    >>> table_in_source('''def get_partition_rules():
    ...     return (("wte/embedding", PS("mp", "fsdp")), (".*", PS(None)))''')[1][0]
    '.*'
    """
    try:
        python, _ = without_unknown_escapes(text)
        module = ast.parse(python)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = "" if line is None else f" in line {line}"
        raise RuleError(f"The text is not Python{where}: {error.args[0]}.") from None
    source = _Source(module)
    named = list(source.tables())
    best = max((rank for rank, _, _ in named), default=0)
    tables, places = [], []
    for rank, name, node in named:
        if rank == best:
            if name in source.changed:
                raise RuleError(
                    f"The table {name} in line {node.lineno} is computed by the source,"
                    " and nothing is evaluated. Give the whole table."
                )
            table = literal_value(source.resolved(node), RuleError)
            if table not in tables:
                tables.append(table)
                places.append(f"{name} in line {node.lineno}")
    if not tables:
        raise RuleError("There is no table of pairs in it.")
    if len(tables) > 1:
        raise RuleError(
            f"It holds {len(tables)} tables: {listed(places, limit=6)}. Give the text of"
            " one of them."
        )
    return tables[0]


class _Source:
    """A module's tables, variables with one literal, and aliases of PartitionSpec."""

    def __init__(self, module: ast.Module) -> None:
        self.module = module
        self.spec_names: set[str] = set(_SPEC_NAMES)
        self.literals: dict[str, ast.expr] = {}
        # Source text of lists that are extended or used in a sum or another list.
        self.changed = {_PART}
        assigned: dict[str, list[ast.expr]] = {}
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if alias.name in ("PartitionSpec", "P"):
                        self.spec_names.add(alias.asname or alias.name)
            for part in _parts(node):
                self.changed.add(ast.unparse(part))
            targets, value = _assignment(node)
            for target in targets:
                if value is not None and isinstance(target, ast.Name):
                    assigned.setdefault(target.id, []).append(value)
                    if getattr(value, "attr", "") == "PartitionSpec":
                        self.spec_names.add(target.id)
        for name, values in assigned.items():
            if len(values) == 1:
                self.literals[name] = values[0]

    def tables(self) -> Iterator[tuple[int, str, ast.expr]]:
        """Yields possible tables: (rank, name, expression); high ranks are likelier."""
        for name, node in _named_values(self.module, ""):
            rank = self._rank(node)
            if rank:
                word = name.lower()
                if rank == 1 and ("rules" in word or "sharding" in word):
                    rank = 2
                yield rank, name or "a table", node

    def _rank(self, node: ast.expr) -> int:
        """Returns 3 for pairs with a PartitionSpec, 1 for pairs of names, else 0."""
        rights = []
        if isinstance(node, ast.Dict):
            if not all(_is_text(key) for key in node.keys):
                return 0
            rights = node.values
        elif isinstance(node, (ast.List, ast.Tuple)):
            for entry in node.elts:
                if not isinstance(entry, (ast.List, ast.Tuple)) or len(entry.elts) != 2:
                    return 0
                if not _is_text(entry.elts[0]):
                    return 0
                rights.append(entry.elts[1])
        if any(self._is_spec(right) for right in rights):
            return 3
        # A dict from strings to strings could be anything, so don't treat it as a table.
        by_names = isinstance(node, (ast.List, ast.Tuple)) and rights
        return int(bool(by_names) and all(map(self._is_target, rights)))

    def _is_spec(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call):
            return False
        name = getattr(node.func, "id", "") or getattr(node.func, "attr", "")
        return name in self.spec_names

    def _is_target(self, node: ast.expr) -> bool:
        """Whether `node` can be a rule's right side: None, text or a sequence."""
        if isinstance(node, (ast.List, ast.Tuple)):
            return all(map(self._is_target, node.elts))
        if isinstance(node, ast.Constant):
            return node.value is None or isinstance(node.value, str)
        return isinstance(node, (ast.Name, ast.JoinedStr))

    def resolved(self, node: ast.expr) -> ast.expr:
        """Returns the expression, with variables replaced by their literals."""
        return _Resolver(self).visit(node)


class _Resolver(ast.NodeTransformer):
    """Replaces variables with literals, and PartitionSpec's aliases with its name."""

    def __init__(self, source: _Source, around: tuple[str, ...] = ()) -> None:
        self.source, self.around = source, around

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not self.source._is_spec(node):
            return node
        args = [self.visit(argument) for argument in node.args]
        keywords = []
        for keyword in node.keywords:
            keywords.append(ast.keyword(keyword.arg, self.visit(keyword.value)))
        func = ast.Name("PartitionSpec", ast.Load())
        return ast.copy_location(ast.Call(func, args, keywords), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        value = self.source.literals.get(node.id)
        if value is None or node.id in self.around:
            if node.id == "UNCONSTRAINED":
                return node
            raise RuleError(
                f"Line {node.lineno} names {shown(node.id)}, and nothing is evaluated."
                " Write the name of a mesh axis in its place."
            )
        return _Resolver(self.source, (*self.around, node.id)).visit(value)


def _named_values(node: ast.AST, name: str) -> Iterator[tuple[str, ast.expr]]:
    """Yields a module's lists, tuples and dicts, with their function or variable name.

    Lists inside other lists are included.
    """
    for child in ast.iter_child_nodes(node):
        inner = name
        targets, value = _assignment(child)
        if value is not None and targets:
            inner = ast.unparse(targets[0])
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = child.name
        elif isinstance(child, ast.keyword):
            inner = child.arg or name
        elif isinstance(child, (ast.BinOp, ast.Starred)):
            inner = _PART
        elif isinstance(child, ast.AugAssign):
            inner = ast.unparse(child.target)
        if isinstance(child, (ast.List, ast.Tuple, ast.Dict)):
            yield inner, child
        yield from _named_values(child, inner)


def _assignment(node: ast.AST) -> tuple[list[ast.expr], ast.expr | None]:
    if isinstance(node, ast.Assign):
        return node.targets, node.value
    if isinstance(node, ast.AnnAssign):
        return [node.target], node.value
    return [], None


def _parts(node: ast.AST) -> list[ast.expr]:
    """Returns expressions that `node` modifies or combines into a larger value."""
    if isinstance(node, ast.AugAssign):
        return [node.target]
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Starred):
        return [node.value]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("append", "extend", "insert", "update"):
            return [node.func.value]
    return []


def _is_text(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
