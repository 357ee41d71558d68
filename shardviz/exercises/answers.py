"""Reads answers, in any form in which people have such a thing. Nothing is evaluated."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from shardviz.api.adopt import as_mesh, as_spec, is_jax
from shardviz.api.layouts import rules as make_rules
from shardviz.core.errors import ShardvizError
from shardviz.core.format import bytes_text, seconds_text, shown, suggestion
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.layout import Layout, lay_out
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import limited, parse_bytes
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.resolution import Resolution
from shardviz.core.layout.rules.rules import Rules
from shardviz.core.layout.trees.audit import Unmatched
from shardviz.core.program.program import Program
from shardviz.exercises.registry import Wrong

MOST = 10_000  # entries of an answer that are looked at
_EXPLORER = "shardviz.widgets.explorer"


def opened(answer: Any) -> Any:
    """The program in an Explorer or its session; every other answer as it is."""
    # Who has an Explorer has imported it; grading must not need ipywidgets.
    explorers = sys.modules.get(_EXPLORER)
    if explorers is None:
        return answer
    if isinstance(answer, explorers.Explorer):
        return answer.session.program
    if isinstance(answer, explorers.Session):
        return answer.program
    return answer


def check_mesh(mesh: MeshSpec, wanted: MeshSpec) -> None:
    """Refuses an answer that is on another mesh: other axes, sizes or order of axes."""
    if tuple(mesh.shape.items()) != tuple(wanted.shape.items()):
        raise Wrong(
            f"Your answer is on the mesh {mesh}; this exercise is about {wanted}."
        )


def read_mesh(answer: Any) -> MeshSpec:
    """A mesh: whatever `sv.mesh` takes, or what is on one.

    Raises:
        ShardvizError: for anything else.
    """
    answer = opened(answer)
    if isinstance(answer, (Program, Layout)):
        return answer.mesh
    if _is_named(answer):
        answer = answer.mesh
    return as_mesh(answer)


def _is_named(answer: Any) -> bool:
    """Whether it is a NamedSharding."""
    return is_jax(answer) and hasattr(answer, "spec") and hasattr(answer, "mesh")


def read_spec(answer: Any, array: ArraySpec, mesh: MeshSpec) -> Spec:
    """The spec of an array: whatever is a spec, or has one of that array.

    Raises:
        Wrong: for an answer on another mesh, and for a program without that array.
        ShardvizError: for what is no spec.
    """
    answer = opened(answer)
    if isinstance(answer, Program):
        return _spec_in(answer, array.name, mesh)
    # An array or a ShapeDtypeStruct of jax has a sharding; a NamedSharding is one.
    answer = getattr(answer, "sharding", answer)
    if isinstance(answer, ArraySpec):
        answer = answer.spec
    elif isinstance(answer, (Layout, Resolution)) or _is_named(answer):
        if answer.mesh is not None:
            check_mesh(as_mesh(answer.mesh), mesh)
        answer = answer.spec
    return as_spec(answer)


def _spec_in(program: Program, name: str, mesh: MeshSpec) -> Spec:
    check_mesh(program.mesh, mesh)
    rows = {row.array.name: row for row in program.requests}
    if name not in rows:
        raise Wrong(f"Your program has no array {shown(name)}.{suggestion(name, rows)}")
    if rows[name].problem:
        raise Wrong(f"{name}: {rows[name].problem}")
    return rows[name].spec or Spec()


def read_layout(answer: Any, array: ArraySpec, mesh: MeshSpec) -> Layout:
    """The layout of an array on a mesh as an answer splits it.

    Raises:
        Wrong: as `read_spec`, and for a layout of another array.
        ShardvizError: for what is no spec, and where it cannot be laid out.
    """
    if isinstance(answer, Layout) and answer.shape != array.shape:
        raise Wrong(
            f"Your layout is of shape {answer.shape}; {array.name} has {array.shape}."
        )
    return lay_out(array.shape, read_spec(answer, array, mesh), mesh, array.dtype)


def read_table(answer: Any, mesh: MeshSpec) -> Rules:
    """A table of rules in any form that `sv.rules` reads, or what has one.

    Raises:
        Wrong: for a table of paths or without rules, and an Explorer on another mesh.
        ShardvizError: for what is no table.
    """
    answer = opened(answer)
    if isinstance(answer, Program):
        check_mesh(answer.mesh, mesh)
    table = getattr(answer, "rules", None)
    if not isinstance(table, Rules):
        table = make_rules(answer)
    if not isinstance(table, Rules):
        raise Wrong(
            "That is a table of paths; write rules of logical names, as mlp -> model."
        )
    if not len(table):
        raise Wrong("Your table has no rules, so nothing is split.")
    return table


_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_TYPED = re.compile(r"(\d{1,20}(?:\.\d{1,20})?(?:e[-+]?\d{1,2})?)\s*([mnuµ]?s)?")


def read_number(answer: Any, unit: str) -> float:
    """A number that is not negative; text may have a unit of bytes or seconds.

    Args:
        answer: the number.
        unit: `"bytes"`, `"seconds"`, or what is counted.

    Raises:
        Wrong, ShardvizError: for anything else.

    >>> read_number("2 MiB", "bytes"), read_number("10 ms", "seconds")
    (2097152.0, 0.01)
    """
    if isinstance(answer, str):
        value = _typed_number(answer, unit)
    else:
        value = _number(answer)
    if value is None or not 0 <= value < math.inf:
        raise Wrong(f"This takes a number of {unit} from 0 on; got {shown(answer)}.")
    return value


def _number(answer: Any) -> float | None:
    # float() takes these as well, and they are not meant as numbers.
    if isinstance(answer, (bool, np.bool_, bytes, bytearray)):
        return None
    if (
        getattr(answer, "shape", ()) != ()
        or str(getattr(answer, "dtype", "")) == "bool"
    ):
        return None
    try:
        return float(answer)
    except (TypeError, ValueError, OverflowError):
        return None


def rounding(answer: Any, unit: str) -> float:
    """By how much an answer may be off because it was rounded: half of its last digit.

    Only text of three digits or more with a unit counts as rounded.

    >>> rounding("16.8 MB", "bytes"), rounding("16 MB", "bytes"), rounding(16.8, "bytes")
    (50000.0, 0.0, 0.0)
    """
    if not isinstance(answer, str):
        return 0.0
    typed = re.fullmatch(r"([\d.]+)\s*([a-zµ]+)", _plain(answer, unit))
    if typed is None or len(typed[1].replace(".", "").lstrip("0")) < 3:
        return 0.0
    # Of 16.8 MB that is half of 00.1 MB.
    last = re.sub(r"\d", "0", typed[1])[:-1] + "1"
    return (_typed_number(f"{last} {typed[2]}", unit) or 0.0) / 2


def _plain(answer: str, unit: str) -> str:
    """The text of an amount without capitals and separators of thousands."""
    text = answer[:100].strip().lower().replace(",", "").replace("_", "")
    if unit == "bytes":
        text = text.removesuffix("ytes")
    return text


def _typed_number(answer: str, unit: str) -> float | None:
    text = _plain(answer, unit)
    if unit == "bytes":
        return float(parse_bytes(text, "This", ShardvizError))
    typed = _TYPED.fullmatch(text)
    # Only seconds have a unit here.
    if typed is None or (typed[2] and unit != "seconds"):
        return None
    return float(typed[1]) * _SECONDS[typed[2] or "s"]


def amount_text(value: float, unit: str) -> str:
    """An amount as people write it.

    >>> amount_text(2048, "bytes"), amount_text(0.01, "seconds")
    ('2 KiB', '10 ms')
    """
    if unit == "bytes":
        return bytes_text(int(value))
    return seconds_text(value)


def read_names(answer: Any, known: Iterable[str], what: str) -> set[str]:
    """Names, paths or ids: text with commas between them, or values that have one.

    Raises:
        Wrong: for a name that there is not.
        ShardvizError: for what is no list of names.
    """
    if isinstance(answer, str):
        answer = re.split(r"[,;\s{}()\[\]]+", answer.strip(" {}()[]")[:100_000])
    elif _name(answer) is not None:
        answer = [answer]
    known, names, values = list(known), set(), []
    for value in limited(answer, MOST, what, ShardvizError):
        # A name that no rule knows lists the arrays that have it.
        values += value.arrays if isinstance(value, Unmatched) else [value]
    for value in values:
        name = _name(value)
        if name not in known:
            raise Wrong(
                f"{shown(value)} is none of {what.lower()}.{suggestion(name, known)}"
            )
        names.add(name)
    return names


def _name(value: Any) -> str | None:
    """The name of something: itself, its path, or the id of a device."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return str(value)
    for attribute in ("path", "name", "id"):
        if hasattr(value, attribute):
            return str(getattr(value, attribute))
    if isinstance(value, str):
        return value.strip(" '\"`")
    return None


def same_names(names: set[str], right: Collection[str]) -> None:
    """Refuses names that are not the right ones.

    Raises:
        Wrong: for the first one that is wrong, else for those that are missing.
    """
    wrong = sorted(names.difference(right))
    if wrong:
        raise Wrong(f"{wrong[0]} is not one of those; you name {len(names)}.")
    if len(names) < len(right):
        raise Wrong(f"You name {len(names)}, which are right; there are more.")
