"""A ShardingSpec from what a person typed. Python parses it; nothing is evaluated."""

from __future__ import annotations

import ast
import re
from typing import Any

from shardviz.core.errors import SpecError
from shardviz.core.format import shown
from shardviz.legacy.sharding_spec import (
    Chunked,
    NoSharding,
    Replicated,
    ShardedAxis,
    ShardingSpec,
    Unstacked,
)

_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (ShardingSpec, NoSharding, Chunked, Unstacked, ShardedAxis, Replicated)
}


def is_sharding_spec(text: str) -> bool:
    """Whether text begins as a ShardingSpec does, and not as a P(…).

    >>> is_sharding_spec(" legacy.ShardingSpec("), is_sharding_spec("P('x')")
    (True, False)
    """
    return re.match(r"\s*(\w{1,40}\.){0,8}ShardingSpec\s*\(", text) is not None


def parse_sharding_spec(text: str) -> ShardingSpec:
    """A ShardingSpec from its `repr`, or from the code that made it in jax.

    The names may have a module before them; None is `NoSharding()`.

    Raises:
        SpecError: for anything else.

    >>> text = "ShardingSpec((Chunked([2]), None), (ShardedAxis(0), Replicated(4)))"
    >>> parse_sharding_spec(text).mesh_shape
    (2, 4)
    """
    try:
        spec = _value(ast.parse(str(text).strip(), mode="eval").body)
    except SpecError:
        raise
    # The parser runs out of memory or stack on text that nests thousands deep.
    except (SyntaxError, TypeError, ValueError, MemoryError, RecursionError) as error:
        raise _unreadable(text, str(error)) from None
    if not isinstance(spec, ShardingSpec):
        raise _unreadable(text, "it is no ShardingSpec")
    return spec


def _value(node: ast.AST) -> Any:
    """What an expression of numbers, tuples and parts says."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(_value(entry) for entry in node.elts)
    if not isinstance(node, ast.Call):
        raise ValueError(f"{ast.unparse(node)} is no number, tuple or part")
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name not in _KINDS:
        raise ValueError(f"there is no part {shown(name)}")
    numbers = [_value(argument) for argument in node.args]
    named = {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}
    if name == "Chunked" and "chunks" in named:
        numbers.append(named.pop("chunks"))
    return _KINDS[name](*numbers, **named)


def _unreadable(text: str, problem: str) -> SpecError:
    return SpecError(
        f"{shown(text)} cannot be read as a ShardingSpec: {problem}. One is typed as"
        " ShardingSpec((Chunked([2]),), (ShardedAxis(0),))."
    )
