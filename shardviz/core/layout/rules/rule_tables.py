"""read_rules(): the tables that people have, in files, text and objects.

A MaxText YAML, JSON, the literal of a table in Python source with `P(...)` in it, lines
that people type, a `LayoutMap` of Keras, and pairs. Nothing of a file runs: Python
source is parsed and its literals are read, YAML is loaded safely.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shardviz.core.errors import RuleError, ShardvizError, import_optional
from shardviz.core.format import listed, shown, suggestion
from shardviz.core.layout.libraries import (
    attribute,
    is_partition_spec,
    library_of,
    mesh_of,
)
from shardviz.core.layout.parse import Call, Pairs, literal, parsed, read_text_file
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.path_matching import compiled
from shardviz.core.layout.rules.rules import Dialect, PathRules, Rules

MAX_BYTES = 1 << 19  # of a file; MaxText's base.yml has 60 kB
# MaxText's configurations, and records of its shardings.
KEYS = ("logical_axis_rules", "rules")
_SUFFIXES = (".yaml", ".yml", ".json", ".py", ".txt")
_CALL = re.compile(r"\b(?:P|PS|PartitionSpec)\(")
_SOURCE = re.compile(
    r"\s*(?:[^\W\d]\w*\s*(?::[^=\n]*)?=\s*(?:[\w.]+\(\s*)?[\[({]\s*[\[({'\"*]"
    r"|(?:class|def|from|import|@\w)\b)"
)
_YAML = re.compile(rf"^(?:{'|'.join(KEYS)})\s*:", re.MULTILINE)


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
    table = value
    if not isinstance(value, (Rules, PathRules)):
        table = _read(value, dialect and dialect.by_path)
    if dialect is None:
        return table
    if dialect.by_path:
        _check_patterns(PathRules.of(table), dialect)
    elif isinstance(table, PathRules):
        raise RuleError(
            f"This is a table of paths ({table!r}), and {dialect.value} reads logical"
            " names. Write dialect='regex' or dialect='keras'."
        )
    return table


def _read(value: Any, paths: bool | None) -> Rules | PathRules:
    """A table of paths or of names; where `paths` is None, the table says which."""
    if isinstance(value, os.PathLike) or _is_file_name(value):
        return _from_file(Path(value), paths)
    if library_of(type(value)) == "keras" and isinstance(value, Mapping):
        # Its items() would look each key up as a path.
        layouts = attribute(value, "_layout_map")
        if not isinstance(layouts, Mapping):
            layouts = value
        mesh = mesh_of(attribute(value, "device_mesh"))
        return PathRules.of(list(layouts.items()), mesh)
    if isinstance(value, str):
        return _from_text(value, paths)
    return _table(value, paths)


def _check_patterns(rules: PathRules, dialect: Dialect) -> None:
    """Refuses a table that the library of the dialect could not use for some path."""
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


def _table(value: Any, paths: bool | None) -> Rules | PathRules:
    if paths is None:
        paths = _has_specs(value)
    if paths:
        return PathRules.of(list(value) if isinstance(value, Pairs) else value)
    if isinstance(value, Pairs):
        value = {}  # which Rules.of refuses: a dict loses repeats
    return Rules.of(value)


def _has_specs(value: Any) -> bool:
    """Whether any right side is a PartitionSpec, which only tables of paths have."""
    pairs = value
    if isinstance(value, dict):
        pairs = list(value.items())
    if not isinstance(pairs, (tuple, list)):
        return False
    for pair in pairs:
        if isinstance(pair, (tuple, list)) and len(pair) == 2:
            target = pair[1]
            if isinstance(target, (Spec, Call)) or is_partition_spec(target):
                return True
            if library_of(type(target)) == "keras":
                return True
    return False


def _is_file_name(value: Any) -> bool:
    """Whether text names a file: one line, one word, with the ending of a table."""
    if not isinstance(value, str) or len(value) > 4096 or not value.isprintable():
        return False
    other = re.search(r"->|[=→\"'\[{(,]", value)
    return value.lower().endswith(_SUFFIXES) and not other


def _from_file(path: Path, paths: bool | None) -> Rules | PathRules:
    name = str(path)
    if len(name) > 60:
        name = f"…{name[-56:]}"  # the end says more than the beginning
    name = shown(name)
    try:
        text = read_text_file(path, MAX_BYTES)
    except ValueError as error:
        raise RuleError(
            f"{name} {error}. Give the file that holds the table alone, as YAML, JSON or"
            " Python source."
        ) from None
    readers = {".json": _json, ".yaml": _yaml, ".yml": _yaml, ".py": _python}
    read = readers.get(path.suffix.lower())
    try:
        if read is None:
            return _from_text(text, paths)
        return _table(_held(read(text), paths), paths)
    except ShardvizError as error:
        raise type(error)(f"{name}: {error}") from None


def _from_text(text: str, paths: bool | None) -> Rules | PathRules:
    """A table from text whose form has to be found out."""
    if len(text) > MAX_BYTES:
        raise RuleError(
            f"The text has {len(text):,} letters; at most {MAX_BYTES:,} are read."
        )
    start = text.lstrip()[:1]
    if _YAML.search(text):
        return _table(_held(_yaml(text), paths), paths)
    calls = paths is None and _CALL.search(text) is not None
    bracket = start in ("[", "(")
    if start == "{" or (bracket and (paths or calls)) or _SOURCE.match(text):
        # JSON first: its null and true are no Python.
        try:
            value = _json(text)
        except RuleError:
            value = _python(text)
        value = _held(value, paths)
        if bracket and calls:
            paths = True
        return _table(value, paths)
    if paths or calls:
        return PathRules.of(list(_lines(text)))
    return Rules.parse(text)


def _held(value: Any, paths: bool | None) -> Any:
    """The table in what a file holds: the value of one of KEYS, or the value itself."""
    if not isinstance(value, Pairs):
        return value
    held = {key: inner for key, inner in value if isinstance(key, str)}
    for key in KEYS:
        if key in held:
            return held[key]
    if paths:
        return value
    raise RuleError(
        f"There is no {listed(KEYS, 'or')} in it.{suggestion(KEYS[0], held)}"
    )


def _lines(text: str) -> Iterator[tuple[str, Any]]:
    """`pattern -> spec`, one per line; the pattern in quotes where it needs them."""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip().rstrip(",;")
        if not line or line.startswith("#"):
            continue
        arrow = max(("->", "→"), key=line.rfind)  # a pattern may hold one, too
        pattern, between, right = map(str.strip, line.rpartition(arrow))
        if not between:
            raise RuleError(
                f"Cannot read line {number}, {shown(line)}: expected a pattern, -> and"
                " a spec."
            )
        if re.match(r"[rR]?['\"]", pattern):
            pattern = _python(pattern)
        spec = None
        if right not in ("", "None"):
            spec = Spec.parse(right)
        yield pattern, spec


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=Pairs)
    except json.JSONDecodeError as error:
        raise RuleError(f"The text is no JSON that can be read: {error}.") from None
    except (ValueError, RecursionError):
        raise RuleError("The text is no JSON: it nests too deeply.") from None


def _python(text: str) -> Any:
    """The literal that a text is, or that it gives a name to; imports do not matter.

    Raises:
        RuleError: for what is no Python, is more than one table, or computes one.
    """
    try:
        tree = parsed(text, "exec")
        # What they import is known by its name: P is PartitionSpec.
        imports = (ast.Import, ast.ImportFrom)
        rest = [node for node in tree.body if not isinstance(node, imports)]
        if len(rest) > 1 and isinstance(rest[0], ast.Expr):
            del rest[0]  # what the module says of itself
        if len(rest) == 1:
            value = getattr(rest[0], "value", None)
            if isinstance(rest[0], (ast.Assign, ast.AnnAssign, ast.Expr)) and value:
                return literal(value, RuleError, words=False)
    except SyntaxError as error:
        where = f" in line {error.lineno}" if error.lineno else ""
        raise RuleError(f"The text is no Python literal: {error.msg}{where}.") from None
    except (RecursionError, MemoryError):
        raise RuleError("The text is no Python literal: it nests too deeply.") from None
    # What follows a table may change it, and nothing is evaluated.
    line = 1
    if len(rest) > 1:
        line = rest[1].lineno
    raise RuleError(
        f"The Python source holds more than one table, or none: see line {line}. Give"
        " the table itself, as in sv.rules(module.RULES), or its text alone."
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
    if isinstance(value, dict):
        return Pairs(value.items())
    return value
