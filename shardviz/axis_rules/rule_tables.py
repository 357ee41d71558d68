"""read_rules(): reads rule tables from files, text and objects.

Supported forms are MaxText YAML, JSON, Python literals with `P(...)`, typed lines, a
Keras `LayoutMap`, and pairs. No code is evaluated: Python and JSON are parsed for
literals, and YAML is loaded with the safe loader.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardviz.axis_rules.dialects import DIALECTS, Dialect, PathDialect
from shardviz.axis_rules.libraries import (
    attribute,
    is_partition_spec,
    library_of,
    mesh_of,
)
from shardviz.axis_rules.path_matching import MAX_PATTERN, compiled
from shardviz.axis_rules.python_source import table_in_source
from shardviz.axis_rules.rules import MAX_RULES, PathRules, Rules
from shardviz.base.errors import RuleError, ShardvizError, needed_by
from shardviz.base.format import clause, joined, listed, nearest, shown, suggestion
from shardviz.base.parse import (
    MAX_TEXT,
    QUOTED,
    Call,
    Pairs,
    limited,
    name_in,
    read_text_file,
    typed_value,
)
from shardviz.base.partition_spec import Spec

# The keys in MaxText's configurations and in its records of shardings.
KEYS = ("logical_axis_rules", "rules")
_SUFFIXES = (".yaml", ".yml", ".json", ".txt", ".py")
_CALL = re.compile(r"\b(?:P|PS|PartitionSpec)\(")
#: The start of a value in brackets, optionally after `name =`.
_LITERAL = re.compile(r"\s*(?:[^\W\d]\w*\s*=\s*)?(?=[\[({])")
_YAML = re.compile(rf"^(?:{'|'.join(KEYS)})\s*:", re.MULTILINE)


def read_rules(value: Any, dialect: Dialect | None = None) -> Rules | PathRules:
    """Reads a table from a value, a file or text.

    Args:
        value: pairs, a `LayoutMap`, the path of a file (`.yaml`, `.yml`, `.json`,
            `.txt`, `.py`), or text.
        dialect: the library that reads the table. If None, a table whose right sides
            are PartitionSpecs is read as PathRules, any other table as Rules.

    Raises:
        RuleError: if `value` is not a table; the message has the file and the line.

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
    if isinstance(dialect, PathDialect):
        table = PathRules.of(table)
        _check_patterns(table, dialect)
    elif isinstance(table, PathRules):
        choices = [f"dialect={d.name!r}" for d in DIALECTS if d.by_path]
        raise RuleError(
            f"This is a table of paths ({table!r}), and {dialect.name} reads logical"
            f" names. Write {joined(choices, 'or')}."
        )
    if table.dialect is dialect:
        return table
    return replace(table, dialect=dialect)


def dialect_of(
    rules: object, dialect: object, default: Dialect = Dialect.LINEN
) -> Dialect:
    """Returns the dialect that reads a table.

    It is Keras for a `LayoutMap`. Otherwise it is the user's choice or, without one,
    the dialect that the table was made for.

    Args:
        rules: the table, in any form that `read_rules` accepts.
        dialect: the user's choice, or None.
        default: the dialect if neither the user nor the table names one.

    Raises:
        RuleError: if the dialect is unknown.
    """
    reader: Dialect | None = None
    if dialect is not None:
        reader = Dialect.of(dialect)
    # PathRules with a mesh come from a LayoutMap.
    mesh = rules.mesh if isinstance(rules, PathRules) else None
    if mesh is not None or _is_layout_map(rules):
        if reader is None or not reader.by_path:
            return Dialect.KERAS
    elif reader is None and isinstance(rules, (Rules, PathRules)):
        reader = rules.dialect
    return reader or default


def _is_layout_map(value: object) -> bool:
    return library_of(type(value)) == "keras" and isinstance(value, Mapping)


def _read(value: Any, paths: bool | None) -> Rules | PathRules:
    """Reads PathRules if `paths`, else Rules; if None, the content decides."""
    if isinstance(value, os.PathLike) or _is_file_name(value):
        return _from_file(Path(value), paths)
    if _is_layout_map(value):
        # Iterating with items() would look each key up as a path.
        layouts = attribute(value, "_layout_map") or value
        table = PathRules.of(layouts, mesh_of(attribute(value, "device_mesh")))
        return replace(table, dialect=Dialect.KERAS)
    if isinstance(value, str):
        return _from_text(value, paths)
    return _table(value, paths)


def _check_patterns(rules: PathRules, dialect: PathDialect) -> None:
    """Rejects tables that would fail for some path in the dialect's library."""
    first_index: dict[str, int] = {}
    for index, rule in enumerate(rules):
        # If the library looks paths up as keys, it may never match the pattern.
        if not dialect.key_first:
            try:
                compiled(rule.pattern, dialect.ignores_case)
            except RuleError as error:
                raise RuleError(f"Rule {index + 1}: {error}") from None
        first = first_index.setdefault(rule.pattern, index)
        if dialect.unique_patterns and first != index:
            raise RuleError(
                f"The key {shown(rule.pattern)} occurs twice, in rules {first + 1} and"
                f" {index + 1}; a LayoutMap has each key once. Take one of them out."
            )


def _table(value: Any, paths: bool | None) -> Rules | PathRules:
    """Reads the table in a file's content: the value of one of KEYS, or all content."""
    if isinstance(value, Pairs):
        mapping = dict(value)
        key = next((key for key in KEYS if key in mapping), None)
        if key is not None:
            value = mapping[key]
        elif not paths and not _has_specs(value) and not _has_axes(mapping):
            raise RuleError(
                f"There is no {listed(KEYS, 'or')} in it.{suggestion(KEYS[0], mapping)}"
            )
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        # The lines are read twice, so copy them if they come from an iterator.
        value = limited(value, MAX_RULES, "The rules of a table", RuleError)
    pairs = value
    if isinstance(value, dict):
        pairs = list(value.items())
    if paths or (paths is None and _has_specs(pairs)):
        return PathRules.of(value)
    return Rules.of(value)


def _has_axes(mapping: Mapping[Any, Any]) -> bool:
    """Whether a mapping looks like names with mesh axes, not like a configuration."""
    # A key such as `logical_axis_rule` is a misspelt key of a configuration.
    if not mapping or any(nearest(key, mapping) is not None for key in KEYS):
        return False
    return all(
        target is None
        or isinstance(target, str)
        or (
            isinstance(target, (tuple, list))
            and all(isinstance(a, str) for a in target)
        )
        for target in mapping.values()
    )


def _has_specs(value: object) -> bool:
    """Whether any right side is a spec, which only occurs in path tables."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        return False
    for pair in value:
        if isinstance(pair, (tuple, list)) and len(pair) == 2:
            target = pair[1]
            if isinstance(target, (Spec, Call)) or is_partition_spec(target):
                return True
            if library_of(type(target)) == "keras":
                return True
    return False


def _is_file_name(value: Any) -> bool:
    """Whether `value` is a file's name, or looks like one with a known suffix."""
    if not isinstance(value, str) or len(value) > 4096 or not value.isprintable():
        return False
    has_syntax = re.search(r"->|[=→\"'\[{(,]", value)
    if has_syntax:
        return False
    return value.lower().endswith(_SUFFIXES) or os.path.isfile(value)


def _from_file(path: Path, paths: bool | None) -> Rules | PathRules:
    name = str(path)
    if len(name) > 60:
        name = f"…{name[-56:]}"  # the end of a path identifies the file best
    name = shown(name)
    try:
        text = read_text_file(path, MAX_TEXT)
    except ValueError as error:
        raise RuleError(
            f"{name} {error}. Give the file that holds the table alone, as YAML, JSON or"
            " text."
        ) from None
    try:
        if path.suffix.lower() in (".yaml", ".yml"):
            return _table(read_yaml(text), paths)
        if path.suffix.lower() == ".py":
            return _table(table_in_source(text), paths)
        return _from_text(text, paths)
    except ShardvizError as error:
        hint = ""
        if path.suffix.lower() not in _SUFFIXES:
            hint = f" Rules are read from {joined(_SUFFIXES, 'or')} files."
        raise type(error)(f"{name}: {error}{hint}") from None


def _from_text(text: str, paths: bool | None) -> Rules | PathRules:
    """Reads a table from text in any supported form."""
    if _YAML.search(text):
        return _table(read_yaml(text), paths)
    has_specs = paths or (paths is None and _CALL.search(text) is not None)
    value = _LITERAL.match(text)
    # Rules.parse also reads pairs of names without a bracket around all of them.
    if value is not None and (
        has_specs or text[value.end()] == "{" or value[0].strip()
    ):
        return _table(typed_value(text[value.end() :], RuleError), paths)
    if has_specs:
        return PathRules.of(list(_lines(text)))
    return Rules.parse(text)


def _lines(text: str) -> Iterator[tuple[str, Any]]:
    """Parses lines `pattern -> spec`; the pattern can be in quotes."""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip().rstrip(",;")
        if not line or line.startswith("#"):
            continue
        arrow = max(("->", "→"), key=line.rfind)  # the pattern can contain an arrow too
        pattern, between, right = map(str.strip, line.rpartition(arrow))
        if not between:
            raise RuleError(
                f"Cannot read line {number}, {shown(line)}: expected a pattern, -> and"
                " a spec."
            )
        if re.fullmatch(QUOTED, pattern):
            pattern = name_in(pattern)
        spec = None
        if right not in ("", "None"):
            spec = Spec.parse(right)
        yield pattern, spec


def read_yaml(text: str) -> Any:
    """Loads the first document in YAML text.

    Raises:
        RuleError: if the text is not YAML, or has tags that would create objects.
    """
    with needed_by("A table in YAML"):
        import yaml
    try:
        value = _first_document(yaml, text)
    except (
        yaml.YAMLError,
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:  # PyYAML's constructors raise all of these
        mark, why = attribute(error, "problem_mark"), attribute(error, "problem")
        where = clause(" in line {}", mark and mark.line + 1)
        why = why or "it holds or nests what cannot be read"
        raise RuleError(f"The text is not YAML: {why}{where}.") from None
    if value is None:
        raise RuleError("The YAML is empty.")
    if isinstance(value, dict):
        return Pairs(value.items())
    return value


def _first_document(yaml: Any, text: str) -> Any:
    """Loads the first YAML document; some configurations have a second one at the end.

    Raises:
        ValueError: if the text would need unbounded time or memory.
    """
    # PyYAML reads 1:30:00 as a base-60 number, in quadratic time.
    if max(map(len, re.findall("[0-9:_]+", text)), default=0) > MAX_PATTERN:
        raise ValueError("a number that is too long")
    # Prefer the C loader, which is 5 times faster.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        if not loader.check_node():
            return None
        document = loader.get_node()
        if "*" in text and _size(document, {}) > MAX_TEXT:
            raise ValueError("aliases that expand to too much text")
        return loader.construct_document(document)
    finally:
        loader.dispose()


def _size(node: Any, sizes: dict[int, float]) -> float:
    """Counts the values in a YAML node, with all aliases expanded.

    Args:
        node: a PyYAML node.
        sizes: id of a node -> its size, for nodes that were counted before; updated.
    """
    if isinstance(node.value, str):
        return 1
    if id(node) not in sizes:
        sizes[id(node)] = math.inf  # used if the node contains an alias of itself
        size = 1.0
        for entry in node.value:
            for child in entry if isinstance(entry, tuple) else (entry,):
                size += _size(child, sizes)
        sizes[id(node)] = size
    return sizes[id(node)]
