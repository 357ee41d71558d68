"""Reading what people type as a ShardingSpec; nothing is evaluated."""

from __future__ import annotations

import re
from typing import Any

from shardviz.core.errors import SpecError, shown, suggestion
from shardviz.core.layout.reading import Cursor
from shardviz.core.layout.sharding_parts import (
    Chunked,
    NoSharding,
    Replicated,
    ShardedAxis,
    Unstacked,
)
from shardviz.core.layout.sharding_spec import ShardingSpec

_KINDS = {
    "NoSharding": NoSharding,
    "Chunked": Chunked,
    "Unstacked": Unstacked,
    "ShardedAxis": ShardedAxis,
    "Replicated": Replicated,
}
_KEYWORDS = {"chunks": Chunked, "size": Unstacked, "axis": ShardedAxis, "replicas": Replicated}
_FIELDS = ("sharding", "mesh_mapping")


def parse_sharding_spec(text: str) -> ShardingSpec:
    """A ShardingSpec from what a person typed; nothing is evaluated.

    Takes `ShardingSpec((Chunked([2]), NoSharding()), (ShardedAxis(0), Replicated(4)))`, with
    `sv.` before the names, with `sharding=` and `mesh_mapping=`, with None for `NoSharding()`, and
    what a ShardingSpec shows of itself.

    Raises:
        SpecError: with the position that could not be read.

    >>> text = "ShardingSpec((Chunked([2]), NoSharding()), (ShardedAxis(0), Replicated(4)))"
    >>> parse_sharding_spec(text)
    ShardingSpec((Chunked(2), NoSharding()), (ShardedAxis(axis=0), Replicated(replicas=4)))
    """
    if not isinstance(text, str):
        raise SpecError(
            "A ShardingSpec is typed as text such as ShardingSpec((Chunked([2]),),"
            f" (ShardedAxis(0),)); got {shown(text)}."
        )
    cursor = Cursor(text, SpecError)
    if not is_sharding_spec(text):
        raise cursor.complain("expected ShardingSpec(")
    cursor.take()
    cursor.take()
    found: dict[str, tuple[Any, ...]] = {}
    for field in _FIELDS:
        name = _keyword(cursor, _FIELDS) or field
        if name in found:
            raise cursor.complain(f"{name} is given twice")
        found[name] = _entries(cursor)
        if field == _FIELDS[0] and not cursor.skip(","):
            raise cursor.complain("expected a comma and mesh_mapping")
    cursor.skip(",")
    _expect(cursor, ")")
    if not cursor.done:
        raise cursor.complain("expected nothing more")
    return ShardingSpec(**found)


def is_sharding_spec(text: str) -> bool:
    """Whether text begins as a ShardingSpec does, so that a field can tell it from a P(…).

    >>> is_sharding_spec(" sv.ShardingSpec("), is_sharding_spec("P('x')")
    (True, False)
    """
    return re.match(r"\s*(\w{1,40}\.){0,8}ShardingSpec\s*\(", text) is not None


def _keyword(cursor: Cursor, known: tuple[str, ...]) -> str:
    """Steps over `name =` where it stands here, and says which; `""` where it does not."""
    if cursor.here.kind != "word" or cursor.peek().value != "=":
        return ""
    name = cursor.here.value
    if name not in known:
        raise cursor.complain(f"expected {' or '.join(known)}")
    cursor.take()
    cursor.take()
    return name


def _entries(cursor: Cursor) -> tuple[Any, ...]:
    closing = {"(": ")", "[": "]"}.get(cursor.here.value) if cursor.at("(", "[") else None
    if closing is None:
        raise cursor.complain("expected a tuple, such as (NoSharding(),)")
    cursor.take()
    entries: list[Any] = []
    while not cursor.skip(closing):
        entries.append(_part(cursor))
        if not cursor.skip(",") and not cursor.at(closing):
            raise cursor.complain(f"expected a comma or {closing}")
    return tuple(entries)


def _part(cursor: Cursor) -> Any:
    if cursor.here.kind != "word":
        raise cursor.complain("expected a part such as Chunked([2])")
    if cursor.at("None"):
        cursor.take()
        return NoSharding()
    name = cursor.here.value.split(".")[-1]
    if name not in _KINDS:
        problem = f"{shown(name)} is no part of a ShardingSpec.{suggestion(name, _KINDS)} Stopped"
        raise cursor.complain(problem)
    cursor.take()
    _expect(cursor, "(")
    kind = _KINDS[name]
    _keyword(cursor, tuple(k for k, owner in _KEYWORDS.items() if owner is kind))
    numbers = _numbers(cursor)
    if kind is NoSharding and numbers:
        raise cursor.complain("NoSharding() takes nothing")
    if kind not in (NoSharding, Chunked) and len(numbers) != 1:
        raise cursor.complain(f"{name} takes one number")
    _expect(cursor, ")")
    return kind(*numbers)


def _numbers(cursor: Cursor) -> list[int]:
    """Numbers with commas between them, in brackets or bare, up to the closing `)`."""
    closing = ""
    if cursor.at("[", "("):
        closing = "]" if cursor.take().value == "[" else ")"
    numbers: list[int] = []
    while not cursor.at(closing or ")"):
        if not re.fullmatch(r"[0-9]{1,18}", cursor.here.value) or cursor.here.kind != "word":
            raise cursor.complain("expected a whole number")
        numbers.append(int(cursor.take().value))
        if not cursor.skip(",") and not cursor.at(closing or ")"):
            raise cursor.complain("expected a comma or a closing bracket")
    if closing:
        cursor.take()
    return numbers


def _expect(cursor: Cursor, value: str) -> None:
    if not cursor.skip(value):
        raise cursor.complain(f"expected {value}")
