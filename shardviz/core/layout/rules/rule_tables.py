"""read_rules(): the tables that people have, in files, text and objects, without
evaluating any.

A MaxText YAML, JSON, the literal of a table in Python source with `P(...)` in it, lines
that people type, a `LayoutMap` of Keras, and pairs. Nothing of a file runs: Python
source is parsed and its literals are read, YAML is loaded safely.
"""

from __future__ import annotations

import ast
import json
import os
import re
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shardviz.core.errors import RuleError, ShardvizError, import_optional
from shardviz.core.format import joined, listed, nearest, plural, shown
from shardviz.core.layout.libraries import (
    attribute,
    is_partition_spec,
    library_of,
    mesh_of,
)
from shardviz.core.layout.parse import read_text_file
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.path_matching import compiled
from shardviz.core.layout.rules.rules import MAX_RULES, Dialect, PathRules, Rules

MAX_BYTES = 1 << 20  # of a file; MaxText's base.yml has 60 kB
# Letters of Python source, which takes a thousand times its size to parse.
MAX_SOURCE = 1 << 19
MAX_DEPTH = 32
# MaxText's configurations, and records of its shardings.
KEYS = ("logical_axis_rules", "rules")
_SUFFIXES = (".yaml", ".yml", ".json", ".py", ".txt")
_CALL = re.compile(r"\b(?:P|PS|PartitionSpec)\(")
_SOURCE = re.compile(
    r"\s*(?:[^\W\d]\w*\s*(?::[^=\n]*)?=\s*(?:[\w.]+\(\s*)?[\[({]\s*[\[({'\"*]"
    r"|(?:class|def|from|import|@\w)\b)"
)
_YAML = re.compile(rf"^(?:{'|'.join(KEYS)})\s*:", re.MULTILINE)


class Pairs(list):
    """The pairs of a mapping in a file, repeats and all."""


def read_rules(value: Any, dialect: Dialect | None = None) -> Rules | PathRules:
    """The table that a value is, or that a file or a text holds.

    Args:
        value: pairs, a `LayoutMap`, the path to a file (`.yaml`, `.yml`, `.json`,
            `.py`, `.txt`), or text.
        dialect: who is to read it; by default the table says whether it is one of
            paths: its right sides are PartitionSpecs.

    Raises:
        RuleError: for what is no table, with the file and the line of it.

    >>> read_rules("transformer/wte/embedding -> P('model', 'fsdp')")
    PathRules(1 pattern: "transformer/wte/embedding → P('model', 'fsdp')")
    >>> read_rules('{"logical_axis_rules": [["embed", ["fsdp"]]]}')
    Rules(1 rule: 'embed → fsdp')
    """
    found = value if isinstance(value, (Rules, PathRules)) else _read(value, dialect)
    if dialect is not None:
        _check_kind(found, dialect)
        if isinstance(found, PathRules):
            _check_patterns(found, dialect)
    return found


def _read(value: Any, dialect: Dialect | None) -> Rules | PathRules:
    if isinstance(value, os.PathLike) or _is_file_name(value):
        return _from_file(Path(value), dialect)
    if library_of(type(value)) == "keras" and isinstance(value, Mapping):
        return _layout_map(value)
    paths = dialect.by_path if dialect is not None else None
    return _from_text(value, paths) if isinstance(value, str) else _table(value, paths)


def _check_kind(table: Rules | PathRules, dialect: Dialect) -> None:
    """Refuses a table that the dialect does not read."""
    if dialect.by_path:
        PathRules.of(table)
    elif isinstance(table, PathRules):
        raise RuleError(
            f"This is a table of paths ({table!r}), and {dialect.value} reads logical names. Write"
            " dialect='regex' or dialect='keras'."
        )


def _check_patterns(rules: PathRules, dialect: Dialect) -> None:
    """Refuses a table that the library of the dialect could not use for some path.

    Raises:
        RuleError: for a pattern that is no regular expression (regex), or a repeated
            key (keras).
    """
    seen: dict[str, int] = {}
    for index, rule in enumerate(rules):
        if dialect is Dialect.REGEX:
            try:
                compiled(rule.pattern)
            except RuleError as error:
                raise RuleError(f"Rule {index + 1}: {error}") from None
        first = seen.setdefault(rule.pattern, index)
        if dialect is Dialect.KERAS and first != index:
            raise RuleError(
                f"The key {shown(rule.pattern)} is there twice, in rules {first + 1} and"
                f" {index + 1}; a LayoutMap has each key once. Take one of them out."
            )


def _layout_map(found: Mapping[Any, Any]) -> PathRules:
    """The table and the mesh that a `keras.distribution.LayoutMap` holds."""
    mesh = mesh_of(attribute(found, "device_mesh"))
    # Its items() would look each key up as a path; iterating gives the keys as they
    # are.
    held = attribute(found, "_layout_map")
    pairs = list((held if isinstance(held, Mapping) else found).items())
    return PathRules.of(pairs, mesh)


def _table(value: Any, paths: bool | None) -> Rules | PathRules:
    """A table from pairs; where `paths` is None, its right sides say which."""
    if paths is None:
        paths = _has_specs(value)
    if paths:
        return PathRules.of(list(value) if isinstance(value, Pairs) else value)
    return Rules.of({} if isinstance(value, Pairs) else value)  # which refuses a dict


def _has_specs(value: Any) -> bool:
    """Whether any right side is a PartitionSpec, which only tables of paths have."""
    pairs = list(value.items()) if type(value) is dict else value
    if not isinstance(pairs, (tuple, list)):
        return False
    for pair in pairs[:MAX_RULES]:
        if isinstance(pair, (tuple, list)) and len(pair) == 2 and _is_spec(pair[1]):
            return True
    return False


def _is_spec(value: Any) -> bool:
    named = isinstance(value, Spec) or is_partition_spec(value)
    return named or (
        library_of(type(value)) == "keras" and attribute(value, "axes") is not None
    )


def _is_file_name(value: Any) -> bool:
    """Whether text names a file: one line, one word, with the ending of a table."""
    if not isinstance(value, str) or len(value) > 4096 or not value.isprintable():
        return False
    return value.lower().endswith(_SUFFIXES) and not re.search(
        r"->|[=→\"'\[{(,]", value
    )


def _from_file(path: Path, dialect: Dialect | None) -> Rules | PathRules:
    text = _content(path)
    paths = dialect.by_path if dialect is not None else None
    readers = {".json": _json, ".yaml": _yaml, ".yml": _yaml, ".py": _python}
    try:
        read = readers.get(path.suffix.lower())
        if read is None:
            return _from_text(text, paths)
        return _table(_found(read(text), paths), paths)
    except ShardvizError as error:
        raise type(error)(f"{_named(path)}: {error}") from None


def _named(path: Path) -> str:
    """A path for a message: its end says more than its beginning."""
    text = str(path)
    return shown(text if len(text) <= 60 else f"…{text[-56:]}")


def _content(path: Path) -> str:
    """The text of a file, if it is one and not too long.

    Raises:
        RuleError: where it is not there, no plain file, too long, or no text.
    """
    try:
        return read_text_file(path, MAX_BYTES)
    except ValueError as error:
        raise RuleError(
            f"{_named(path)} {error}. Give the file that holds the table alone, as YAML, JSON or"
            " Python source."
        ) from None


def _from_text(text: str, paths: bool | None) -> Rules | PathRules:
    """A table from text whose form has to be found out."""
    if len(text) > MAX_BYTES:
        raise RuleError(
            f"The text has {len(text):,} letters; at most {MAX_BYTES:,} are read."
        )
    start = text.lstrip()[:1]
    if _YAML.search(text):
        return _table(_found(_yaml(text), paths), paths)
    if start == "{" or (paths and start in "[(" and start) or _SOURCE.match(text):
        return _table(_found(_json_or_python(text), paths), paths)
    if paths or (paths is None and _CALL.search(text)):
        if start and start in "[(":
            return _table(_json_or_python(text), True)
        return PathRules.of(list(_lines(text)))
    return Rules.parse(text)


def _json_or_python(text: str) -> Any:
    try:
        return _json(text)
    except RuleError:
        return _python(text)


def _found(value: Any, paths: bool | None) -> Any:
    """The table in what a file holds: the value of one of KEYS, or the value itself."""
    if not isinstance(value, Pairs):
        return value
    held = {key: inner for key, inner in value if isinstance(key, str)}
    for key in KEYS:
        if key in held:
            return held[key]
    if paths:
        return value
    hint = ""
    for key in KEYS:
        if close := nearest(key, held):
            hint = f" Is {shown(close)} a typo?"
            break
    raise RuleError(
        f"There is no {listed(KEYS, 'or')} in it; it has {listed(held)}.{hint}"
    )


def _lines(text: str) -> Iterator[tuple[str, Any]]:
    """`pattern -> spec`, one per line; the pattern in quotes where it needs them."""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip().rstrip(",;")
        if not line or line.startswith("#"):
            continue
        left, arrow, right = max(
            (line.rpartition(a) for a in ("->", "→")), key=lambda parts: len(parts[0])
        )
        if not arrow:
            raise RuleError(
                f"Cannot read line {number}, {shown(line)}: expected a pattern, -> and a spec."
            )
        pattern = left.strip()
        if re.match(r"[rR]?['\"]", pattern):
            pattern = _python(pattern)
        yield pattern, Spec.parse(right.strip()) if right.strip() != "None" else None


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=Pairs)
    except (ValueError, RecursionError) as error:
        why = (
            error if isinstance(error, json.JSONDecodeError) else "it nests too deeply"
        )
        raise RuleError(f"The text is no JSON that can be read: {why}.") from None


def _python(text: str) -> Any:
    """The one table in Python source, or the literal that it is.

    Raises:
        RuleError: for what is no Python, holds no table or several, or computes one.
    """
    if len(text) > MAX_SOURCE:
        raise RuleError(
            f"The Python source has {len(text):,} letters; at most {MAX_SOURCE:,} are read."
            " Give the text of the table alone."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on "\d" in text that is not raw
            tree = ast.parse(text.strip())
    except SyntaxError as error:
        where = f" in line {error.lineno}" if error.lineno else ""
        raise RuleError(f"The text is no Python literal: {error.msg}{where}.") from None
    except (ValueError, RecursionError, MemoryError):
        raise RuleError("The text is no Python literal: it nests too deeply.") from None
    if len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr):
        return _literal(tree.body[0].value, 0)
    tables = list(_tables(tree))
    if len(tables) != 1:
        lines = joined([f"line {n.lineno}" for n in tables], limit=6)
        raise RuleError(
            f"The source holds {plural(len(tables), 'table')} of pairs{f' ({lines})' * bool(lines)}"
            "; one is read. Give the text of that table."
        )
    table = tables[0]
    count = len(
        table.keys if isinstance(table, ast.Dict) else getattr(table, "elts", ())
    )
    if count > MAX_RULES:
        raise RuleError(f"A table has at most {MAX_RULES:,} rules; got {count:,}.")
    if (change := _first_change(tree, table)) is not None:
        raise RuleError(
            f"The table in line {table.lineno} is not all: line {change.lineno} changes it or puts"
            " it into another one, and nothing is evaluated. Give the table itself, as in"
            " sv.rules(module.RULES), or the text of all of it."
        )
    return _literal(table, 0)


def _tables(node: ast.AST) -> Iterator[ast.expr]:
    """The outermost literals of pairs, or of a dict, whose left sides are text."""
    waiting = deque([node])
    while waiting:
        found = waiting.popleft()
        if isinstance(found, ast.expr) and _is_table(found):
            yield found
        else:
            waiting += ast.iter_child_nodes(found)


def _is_table(node: ast.expr) -> bool:
    """Whether a literal is a table, or one of which a part is computed."""
    if isinstance(node, ast.Dict):
        named = [_is_text(key) for key in node.keys if key is not None]
        return bool(named) and all(named)
    if not isinstance(node, (ast.Tuple, ast.List)):
        return False
    others = [e for e in node.elts if not _is_pair(e)]
    if len(others) == len(node.elts):
        return False
    return all(
        isinstance(e, (ast.Starred, ast.Name, ast.Attribute, ast.Call)) for e in others
    )


def _is_pair(node: ast.expr) -> bool:
    if not isinstance(node, (ast.Tuple, ast.List)):
        return False
    return len(node.elts) == 2 and _is_text(node.elts[0])


_CHANGES = (
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "reverse",
)
_CHANGES += ("setdefault", "sort", "update", "chain", "from_iterable")
_COPIES = ("list", "tuple", "dict", "FrozenDict", "Rules", "rules", "copy", "deepcopy")
_JOINS = (ast.Starred, ast.BinOp, ast.AugAssign, ast.comprehension, ast.Delete)


def _first_change(tree: ast.Module, table: ast.expr) -> Any:
    """The first use of a table that changes it or puts it into another one, or None.

    The table is known by the last part of the names that it is given: `RULES` is
    `self.RULES`, too. What is passed to functions is not followed.
    """
    names: dict[str, ast.AST] = {}

    def is_table(node: ast.AST) -> bool:
        return any(v is table or _last_name(v) in names for v in _values(node))

    again = None
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            known = [_last_name(target) for target in targets]
            if any(name in names for name in known):
                again = again or node
            elif is_table(node.value):
                names.update(dict.fromkeys(filter(None, known), node))
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if is_table(child) and _changes(node, child):
                return child
    return again


def _values(node: ast.AST) -> Iterator[ast.AST]:
    """What an expression may be, through choices and copies such as `tuple(RULES)`."""
    yield node
    inner: list[ast.expr] = []
    if isinstance(node, ast.IfExp):
        inner = [node.body, node.orelse]
    elif isinstance(node, ast.BoolOp):
        inner = node.values
    elif isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        if _last_name(node.func) in _COPIES:
            inner = node.args
    for part in inner:
        yield from _values(part)


def _last_name(node: ast.AST) -> str:
    return getattr(node, "id", "") or getattr(node, "attr", "")


def _changes(node: ast.AST, table: ast.AST) -> bool:
    """Whether a table is changed, or becomes a part of another one, in a node."""
    if isinstance(node, _JOINS):
        return True
    if isinstance(node, ast.Attribute):
        return node.attr in _CHANGES
    if isinstance(node, ast.Subscript) and node.value is table:
        return isinstance(node.slice, ast.Slice) or not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Dict):  # {**table, "mlp": "model"}
        pairs = zip(node.keys, node.values, strict=True)
        return any(key is None and value is table for key, value in pairs)
    if isinstance(node, ast.Call) and table in node.args:
        # `tuple(RULES)` is a copy; `chain(RULES, MORE)` and `dict(RULES, mlp=…)` are
        # more.
        name, alone = _last_name(node.func), len(node.args) + len(node.keywords) == 1
        return name in _CHANGES or (name in _COPIES and not alone)
    return False


def _is_text(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _literal(node: ast.expr, depth: int) -> Any:
    """The value of a literal; a PartitionSpec is a call of `P`, `PS` or
    `PartitionSpec`.
    """
    if depth > MAX_DEPTH:
        raise RuleError(f"Line {node.lineno} nests deeper than {MAX_DEPTH} levels.")
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Tuple, ast.List)):
        values = [_literal(e, depth + 1) for e in node.elts]
        return values if isinstance(node, ast.List) else tuple(values)
    if isinstance(node, ast.Dict) and None not in node.keys:
        keys = [_literal(k, depth + 1) for k in node.keys if k is not None]
        return Pairs(
            zip(keys, [_literal(v, depth + 1) for v in node.values], strict=True)
        )
    if isinstance(node, ast.Name) and node.id == "null":
        return None
    try:
        code = ast.unparse(node)
    except RecursionError:
        raise RuleError(f"Line {node.lineno} nests too deeply.") from None
    if isinstance(node, ast.Call) and _CALL.match(
        code.partition("(")[0].rpartition(".")[2] + "("
    ):
        return Spec.parse(code)
    raise RuleError(
        f"Line {node.lineno} computes {shown(code)}; nothing is evaluated. Write text, None, tuples"
        " and P(...) in its place."
    )


def _yaml(text: str) -> Any:
    """The first document of a YAML text, with Pairs for mappings.

    Raises:
        RuleError: for what is no YAML, and for tags that would make objects.
    """
    yaml: Any = import_optional("yaml", "A table in YAML", "PyYAML")
    try:
        # Only the first document: some configurations end with another.
        value = next(yaml.safe_load_all(text), None)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark, why = attribute(error, "problem_mark"), attribute(error, "problem")
        where = f" in line {mark.line + 1}" if mark is not None else ""
        why = why or str(error).partition("\n")[0] or "it nests too deeply"
        raise RuleError(
            f"The text is no YAML that can be read: {why}{where}."
        ) from None
    if value is None:
        raise RuleError("The YAML is empty.")
    return Pairs(value.items()) if isinstance(value, dict) else value
