"""A ShardingSpec from what a person typed. Python parses it, and nothing is evaluated."""

from __future__ import annotations

import ast
import re
from typing import Any

from shardviz.core.errors import SpecError
from shardviz.core.format import joined, shown, suggestion
from shardviz.legacy.sharding_spec import (
    Chunked,
    NoSharding,
    Replicated,
    ShardedAxis,
    ShardingSpec,
    Unstacked,
)

# Far more than the longest spec that is legal; it bounds the work of the parser.
_MOST_LETTERS = 10_000
_FIELDS = ("sharding", "mesh_mapping")
#: Name of a part to its class and the name of its argument.
_PARTS: dict[str, tuple[type, str]] = {
    "NoSharding": (NoSharding, ""),
    "Chunked": (Chunked, "chunks"),
    "Unstacked": (Unstacked, "size"),
    "ShardedAxis": (ShardedAxis, "axis"),
    "Replicated": (Replicated, "replicas"),
}


def is_sharding_spec(text: str) -> bool:
    """Whether text begins as a ShardingSpec does, and not as a P(…).

    >>> is_sharding_spec(" legacy.ShardingSpec("), is_sharding_spec("P('x')")
    (True, False)
    """
    return re.match(r"\s*(\w{1,40}\.){0,8}ShardingSpec\s*\(", text) is not None


def parse_sharding_spec(text: str) -> ShardingSpec:
    """A ShardingSpec from what a person typed; nothing is evaluated.

    Takes the `repr` of a ShardingSpec and what made it in jax, with or without a module
    before the names and `sharding=` and `mesh_mapping=`; None is `NoSharding()`.

    Raises:
        SpecError: with the position that could not be read.

    >>> text = "ShardingSpec((Chunked([2]), None), (ShardedAxis(0), Replicated(4)))"
    >>> parse_sharding_spec(text).mesh_shape
    (2, 4)
    """
    if not isinstance(text, str) or not is_sharding_spec(text):
        raise SpecError(
            "A ShardingSpec is typed as ShardingSpec((Chunked([2]),),"
            f" (ShardedAxis(0),)); got {shown(text)}."
        )
    if len(text) > _MOST_LETTERS:
        raise SpecError(
            f"A ShardingSpec has at most {_MOST_LETTERS:,} letters; got {len(text):,}."
        )
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise _complaint(text, error.offset or 1, error.msg) from None
    except (MemoryError, RecursionError, ValueError):
        raise _complaint(text, 1, "it is nested too deep, or no text") from None
    if not isinstance(call, ast.Call) or len(call.args) > len(_FIELDS):
        raise _complaint(text, 1, "expected ShardingSpec(sharding, mesh_mapping)")
    fields = dict(zip(_FIELDS, call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg not in _FIELDS or keyword.arg in fields:
            raise _complaint(text, keyword, f"expected {joined(_FIELDS, 'or')} once")
        fields[keyword.arg] = keyword.value
    if len(fields) < len(_FIELDS):
        raise _complaint(text, len(text), f"expected {joined(_FIELDS)}")
    return ShardingSpec(**{name: _entries(text, n) for name, n in fields.items()})


def _entries(text: str, node: ast.expr) -> tuple[Any, ...]:
    if not isinstance(node, (ast.Tuple, ast.List)):
        raise _complaint(text, node, "expected a tuple, such as (NoSharding(),)")
    return tuple(_part(text, entry) for entry in node.elts)


def _part(text: str, node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and node.value is None:
        return NoSharding()
    name = ""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if not isinstance(node, ast.Call) or name not in _PARTS:
        raise _complaint(text, node, f"no such part.{suggestion(name, _PARTS)}")
    kind, field = _PARTS[name]
    numbers = list(node.args)
    for keyword in node.keywords:
        if keyword.arg != field:
            raise _complaint(text, keyword, f"expected {field or 'no argument'}")
        numbers.append(keyword.value)
    if len(numbers) == 1 and isinstance(numbers[0], (ast.List, ast.Tuple)):
        numbers = numbers[0].elts
    if kind is NoSharding and numbers:
        raise _complaint(text, node, "NoSharding() takes nothing")
    if kind not in (NoSharding, Chunked) and len(numbers) != 1:
        raise _complaint(text, node, f"{name} takes one number")
    return kind(*[_number(text, number) for number in numbers])


def _number(text: str, node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise _complaint(text, node, "expected a whole number")


def _complaint(text: str, where: Any, problem: str) -> SpecError:
    """An error that says at which letter, counted from 1, and shows what stands there."""
    text = text.strip()
    position = where
    if not isinstance(where, int):
        position = where.col_offset + 1
    rest = shown(text[position - 1 : position + 20])
    return SpecError(
        f"The ShardingSpec cannot be read at letter {position}, {rest}: {problem}."
    )
