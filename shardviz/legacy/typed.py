"""Parses the text of a ShardingSpec, without evaluating it."""

from __future__ import annotations

import ast
import re
from typing import Any

from shardviz.base.errors import SpecError
from shardviz.base.format import shown
from shardviz.legacy.sharding_spec import (
    Chunked,
    NoSharding,
    Replicated,
    ShardedAxis,
    ShardingSpec,
    Unstacked,
)

_KINDS: dict[str, Any] = {
    "ShardingSpec": ShardingSpec,
    "NoSharding": NoSharding,
    "Chunked": Chunked,
    "Unstacked": Unstacked,
    "ShardedAxis": ShardedAxis,
    "Replicated": Replicated,
}


def is_sharding_spec(text: str) -> bool:
    """Whether a text starts like a ShardingSpec rather than a PartitionSpec.

    >>> is_sharding_spec(" legacy.ShardingSpec("), is_sharding_spec("P('x')")
    (True, False)
    """
    return re.match(r"\s*(\w{1,40}\.){0,8}ShardingSpec\s*\(", text) is not None


def parse_sharding_spec(text: str) -> ShardingSpec:
    """Parses a ShardingSpec from its `repr`, or from the code that created it in JAX.

    Names may have a module prefix; None means `NoSharding()`.

    Raises:
        SpecError: for any other text.

    >>> text = "ShardingSpec((Chunked([2]), None), (ShardedAxis(0), Replicated(4)))"
    >>> parse_sharding_spec(text).mesh_shape
    (2, 4)
    """
    problem = ""
    try:
        spec = _value(ast.parse(str(text).strip(), mode="eval").body)
        if isinstance(spec, ShardingSpec):
            return spec
    except SpecError:
        raise
    # Thousands of nested parentheses exhaust the parser's memory or stack.
    except (SyntaxError, TypeError, ValueError, MemoryError, RecursionError) as error:
        problem = f": {error}"
    raise SpecError(
        f"{shown(text)} cannot be read as a ShardingSpec{problem}. One is typed as"
        " ShardingSpec((Chunked([2]),), (ShardedAxis(0),))."
    )


def _value(node: ast.AST) -> Any:
    """Evaluates an expression made of numbers, tuples and dimensions."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(map(_value, node.elts))
    if not isinstance(node, ast.Call):
        raise ValueError(ast.unparse(node))
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name not in _KINDS:
        raise ValueError(name)
    numbers = list(map(_value, node.args))
    named = {}
    for keyword in node.keywords:
        named[str(keyword.arg)] = _value(keyword.value)
    if name == "Chunked" and "chunks" in named:
        numbers.append(named.pop("chunks"))
    return _KINDS[name](*numbers, **named)
