"""Reads answers, in any form in which people have such a thing. Nothing is evaluated."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from shardviz.axis_rules.audit import Unmatched
from shardviz.axis_rules.public import rules as make_rules
from shardviz.axis_rules.resolution import Resolution
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import ShardvizError
from shardviz.base.format import bytes_text, joined, seconds_text, shown, suggestion
from shardviz.base.layout import Layout, lay_out
from shardviz.base.mesh import MeshSpec
from shardviz.base.parse import limited, parse_bytes
from shardviz.base.partition_spec import Spec
from shardviz.base.public.adopt import as_mesh, as_spec, is_jax
from shardviz.exercises import words as words
from shardviz.programs.program import Program

MOST = 10_000  # entries of an answer that are looked at
_EXPLORER = "shardviz.explorer.explorer"


class Wrong(Exception):
    """An answer that is not right; its text is a hint about this very answer."""


def require(holds: Any, hint: str) -> None:
    """Refuses an answer with a hint, unless a condition holds.

    An assertion would be skipped by `python -O`, and pytest would extend its message.

    Raises:
        Wrong: if it does not hold.

    >>> require(1 + 1 == 2, "The sum is 2.")
    """
    if not holds:
        raise Wrong(hint)


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


def read_pair(
    answer: Any, arrays: tuple[ArraySpec, ArraySpec], mesh: MeshSpec
) -> list[Layout]:
    """The layouts of two arrays: two specs, a dict of them, a program, or text such as
    `A[I_U, J] · B[J, K_V]`, after which there may be an arrow and the result.

    Raises:
        Wrong: for anything else.
        ShardvizError: for what is no spec, and where it cannot be laid out.
    """
    answer = opened(answer)
    names = [array.name for array in arrays]
    if isinstance(answer, Program):
        two: Any = [answer, answer]
    elif isinstance(answer, str):
        two = _bracketed(answer, names, mesh)
    elif isinstance(answer, Mapping):
        two = [answer.get(name) for name in names]
    else:
        two = limited(answer, MOST, "Two specs", ShardvizError)
    if len(two) != 2:
        raise Wrong(f"This takes two specs, of {joined(names)}; got {len(two)}.")
    return [read_layout(a, array, mesh) for a, array in zip(two, arrays, strict=True)]


_BRACKETED = re.compile(r"(\w{1,20})\s*\[([^\[\]]{0,200})\]")
_DIMENSION = re.compile(r"\s*[A-Za-z]+\s*(?:_\s*\{?\s*([A-Za-z]{1,20})\s*\}?)?\s*")


def _bracketed(text: str, names: list[str], mesh: MeshSpec) -> list[Spec]:
    """The specs of `A[I_U, J] B[J, K_UV]`, or of one array as in `x[I_U, J] → x[I, J_U]`.

    A result after an arrow is not one of them; see `read_result`.
    """
    before, _, after = text[:1000].replace("->", "→").partition("→")
    written = _BRACKETED.findall(before)
    if len(written) == 1:
        # One array, whose spec changes: it may have its own name on both sides.
        written += _BRACKETED.findall(after)
        if len(written) == 2 and written[0][0] == written[1][0]:
            written = [(names[0], written[0][1]), (names[1], written[1][1])]
    if sorted(name for name, _ in written) != sorted(names):
        raise Wrong(
            f"Write both arrays with their dimensions, as {names[0]}[I, J_U]"
            f" {names[1]}[…]; got {shown(text)}."
        )
    specs = {name: _indexed(name, dims, mesh) for name, dims in written}
    return [specs[name] for name in names]


def _indexed(name: str, dims: str, mesh: MeshSpec) -> Spec:
    """The spec of an array of dimensions such as `I_U, J`: axes have one letter here."""
    entries = []
    for part in dims.split(","):
        dim = _DIMENSION.fullmatch(part)
        # `K_UV` is split over U and V.
        axes = tuple(dim[1] or ()) if dim else ("",)
        if not mesh.shape.keys() >= set(axes):
            raise Wrong(
                f"Cannot read {shown(part)}, a dimension of {name}; the mesh axes"
                f" are {joined(mesh.axis_names)}."
            )
        entries.append(axes)
    return Spec.of(*entries)


def read_result(answer: Any, mesh: MeshSpec) -> Spec | None:
    """The spec of C in `A[I_U, J] · B[J, K] → C[I_U, K]`; None where nothing is said of it.

    Raises:
        Wrong: where it cannot be read.
    """
    if not isinstance(answer, str):
        return None
    _, arrow, after = answer[:1000].replace("->", "→").partition("→")
    if not arrow:
        return None
    found = _BRACKETED.findall(after)
    if len(found) != 1:
        raise Wrong(
            f"After the arrow there is one result, as C[I, K]; got {shown(after)}."
        )
    name, dims = found[0]
    return _indexed(name, dims, mesh)


def read_table(answer: Any, mesh: MeshSpec) -> Rules:
    """A table of rules in any form that `sv.rules` reads, or what has one.

    Raises:
        Wrong: for a table of paths or without rules, and an Explorer on another mesh.
        ShardvizError: for what is no table.
    """
    answer = opened(answer)
    if isinstance(answer, Program):
        check_mesh(answer.mesh, mesh)
    table: Any = getattr(answer, "rules", None)
    if not isinstance(table, Rules):
        pairs: Any = answer
        table = make_rules(pairs)
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


def check_number(
    answer: Any,
    right: float,
    unit: str,
    mistakes: Mapping[float, str] | None = None,
    tolerance: float = 1e-9,
) -> str:
    """A sentence on a right answer that is a number.

    Args:
        answer: the answer.
        right: the right number.
        unit: `"bytes"`, `"seconds"`, or what is counted.
        mistakes: a hint by how many times the right number a usual mistake makes.
        tolerance: how far the answer may be off, relative to the right one. The error
            of rounding to three digits or more is always allowed.

    Raises:
        Wrong, ShardvizError: for any other answer.

    >>> check_number("2 KiB", 2048, "bytes"), check_number(3, 3, "tokens")
    ('2 KiB', '3 tokens')
    """
    value = read_number(answer, unit)
    does = f"{value:,g} {unit}"
    if unit == "bytes":
        does = bytes_text(int(value))
    elif unit == "seconds":
        does = seconds_text(value)
    tolerance = max(tolerance, rounding(answer, unit) / right)
    # The nearest mistake, if the answer is one.
    near = []
    for times, hint in (mistakes or {}).items():
        off = abs(value / right / times - 1)
        if off <= max(tolerance, 1e-6):
            near.append((off, hint))
    if near:
        raise Wrong(f"{does}: {min(near)[1]}")
    # Such as MiB for bytes, or milliseconds for seconds.
    if not right / 500 < value < right * 500:
        raise Wrong(f"{does} is off by a factor of hundreds. Is its unit right?")
    # Bytes that are rounded to one or two digits, or MB for MiB, which is 5 percent.
    if unit == "bytes" and tolerance < abs(value / right - 1) < 0.08:
        # As it was written: in our units and rounded it could look like the right one.
        raise Wrong(
            words.close(answer if isinstance(answer, str) else f"{value:,.0f} B")
        )
    if value > right * (1 + tolerance):
        raise Wrong(f"{does} is too much.")
    if value < right * (1 - tolerance):
        raise Wrong(f"{does} is too little.")
    return does


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


def check_names(
    answer: Any, known: Iterable[str], right: Collection[str], what: str
) -> str:
    """A sentence on a right answer that is names, paths or ids out of those known.

    Raises:
        Wrong, ShardvizError: for any other answer.
    """
    return same_names(read_names(answer, known, what), right)


def same_names(names: set[str], right: Collection[str]) -> str:
    """A sentence on names that are the right ones.

    Raises:
        Wrong: for the first one that is wrong, else for those that are missing.
    """
    wrong = sorted(names.difference(right))
    if wrong:
        raise Wrong(f"{wrong[0]} is not one of those; you name {len(names)}.")
    if len(names) < len(right):
        raise Wrong(f"You name {len(names)}, which are right; there are more.")
    return words.lists(names)
