"""Parses and checks answers in many forms, without evaluating text as code."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

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

# Users may pass any object: text, or a value of shardviz, jax or numpy.
Answer: TypeAlias = Any
# Maximum number of entries read from an answer.
MOST = 10_000
_EXPLORER = "shardviz.explorer.explorer"


class Wrong(Exception):
    """A wrong answer; the message is a hint about this answer."""


def require(holds: object, hint: str) -> None:
    """Raises Wrong with a hint unless a condition holds.

    Used instead of `assert`, because `python -O` skips assertions and pytest extends
    their messages.

    Raises:
        Wrong: if the condition does not hold.

    >>> from shardviz import exercises
    >>> exercises.require(1 + 1 == 2, "The sum is 2.")
    """
    if not holds:
        raise Wrong(hint)


def opened(answer: Answer) -> Answer:
    """Returns the program of an Explorer or its session; any other answer unchanged."""
    # Don't import the Explorer, because grading must not need ipywidgets. If the answer
    # is an Explorer, the module is already imported.
    explorers = sys.modules.get(_EXPLORER)
    if explorers is None:
        return answer
    if isinstance(answer, explorers.Explorer):
        return answer.session.program
    if isinstance(answer, explorers.Session):
        return answer.program
    return answer


def check_mesh(mesh: MeshSpec, exercise_mesh: MeshSpec) -> None:
    """Raises Wrong if an answer's mesh has other axes, sizes or axis order."""
    if tuple(mesh.shape.items()) != tuple(exercise_mesh.shape.items()):
        raise Wrong(
            f"Your answer is on the mesh {mesh}; this exercise is about {exercise_mesh}."
        )


def read_mesh(answer: Answer) -> MeshSpec:
    """Returns the mesh of an answer.

    The answer can be anything that `sv.mesh` accepts, or a value with a mesh.

    Raises:
        ShardvizError: if the answer has no mesh.
    """
    answer = opened(answer)
    if isinstance(answer, (Program, Layout)):
        return answer.mesh
    if _is_named(answer):
        answer = answer.mesh
    return as_mesh(answer)


def _is_named(answer: Answer) -> bool:
    """Returns whether an answer is a NamedSharding."""
    return is_jax(answer) and hasattr(answer, "spec") and hasattr(answer, "mesh")


def read_spec(answer: Answer, array: ArraySpec, mesh: MeshSpec) -> Spec:
    """Returns the spec of an array in an answer.

    The answer can be a spec, or a value with a spec for this array.

    Raises:
        Wrong: if the answer is on another mesh, or is a program without the array.
        ShardvizError: if the answer has no spec.
    """
    answer = opened(answer)
    if isinstance(answer, Program):
        return _spec_in(answer, array.name, mesh)
    # jax arrays and ShapeDtypeStructs have a `sharding`.
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


def read_layout(answer: Answer, array: ArraySpec, mesh: MeshSpec) -> Layout:
    """Lays out an array on a mesh with the spec of an answer.

    Raises:
        Wrong: as for `read_spec`, and for a Layout with another shape.
        ShardvizError: if the answer has no spec, or the array cannot be laid out.
    """
    if isinstance(answer, Layout) and answer.shape != array.shape:
        raise Wrong(
            f"Your layout has shape {answer.shape}, but {array.name} has shape"
            f" {array.shape}."
        )
    return lay_out(array.shape, read_spec(answer, array, mesh), mesh, array.dtype)


def read_pair(
    answer: Answer, arrays: tuple[ArraySpec, ArraySpec], mesh: MeshSpec
) -> list[Layout]:
    """Returns the layouts of two arrays in an answer.

    The answer can be two specs, a dict of specs, a program, or text such as
    `A[I_U, J] · B[J, K_V]`, optionally followed by an arrow and the result.

    Raises:
        Wrong: for an answer in another form.
        ShardvizError: if a spec is invalid, or an array cannot be laid out.
    """
    answer = opened(answer)
    names = [array.name for array in arrays]
    if isinstance(answer, Program):
        specs: list[Answer] = [answer, answer]
    elif isinstance(answer, str):
        specs = list(_bracketed(answer, names, mesh))
    elif isinstance(answer, Mapping):
        specs = [answer.get(name) for name in names]
    else:
        specs = limited(answer, MOST, "Two specs", ShardvizError)
    if len(specs) != 2:
        raise Wrong(
            f"The answer must be two specs, of {joined(names)}; got {len(specs)}."
        )
    pairs = zip(specs, arrays, strict=True)
    return [read_layout(spec, array, mesh) for spec, array in pairs]


_BRACKETED = re.compile(r"(\w{1,20})\s*\[([^\[\]]{0,200})\]")
_DIMENSION = re.compile(r"\s*[A-Za-z]+\s*(?:_\s*\{?\s*([A-Za-z]{1,20})\s*\}?)?\s*")


def _bracketed(text: str, names: list[str], mesh: MeshSpec) -> list[Spec]:
    """Parses the specs in `A[I_U, J] B[J, K_UV]` or in `x[I_U, J] → x[I, J_U]`.

    With two arrays, ignores a result after an arrow; see `read_result`.
    """
    before, _, after = text[:1000].replace("->", "→").partition("→")
    written = _BRACKETED.findall(before)
    if len(written) == 1:
        # The answer reshards one array; its name may stand on both sides of the arrow.
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
    """Parses the spec of dimensions such as `I_U, J`; mesh axes are single letters."""
    entries = []
    for text in dims.split(","):
        dim = _DIMENSION.fullmatch(text)
        # `K_UV` means K is split over U and V.
        axes = tuple(dim[1] or ()) if dim else ("",)
        if not mesh.shape.keys() >= set(axes):
            raise Wrong(
                f"Cannot read {shown(text)}, a dimension of {name}; the mesh axes"
                f" are {joined(mesh.axis_names)}."
            )
        entries.append(axes)
    return Spec.of(*entries)


def read_result(answer: Answer, mesh: MeshSpec) -> Spec | None:
    """Parses the spec of C in `A[I_U, J] · B[J, K] → C[I_U, K]`; None without an arrow.

    Raises:
        Wrong: if the result is not a single array in this form.
    """
    if not isinstance(answer, str):
        return None
    _, arrow, after = answer[:1000].replace("->", "→").partition("→")
    if not arrow:
        return None
    results = _BRACKETED.findall(after)
    if len(results) != 1:
        raise Wrong(
            f"After the arrow there is one result, as C[I, K]; got {shown(after)}."
        )
    name, dims = results[0]
    return _indexed(name, dims, mesh)


def read_table(answer: Answer, mesh: MeshSpec) -> Rules:
    """Returns the rules of an answer.

    The answer can be anything that `sv.rules` accepts, or a value with rules.

    Raises:
        Wrong: for path rules or an empty table, or for a program on another mesh.
        ShardvizError: if the answer is not a table of rules.
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


def read_number(answer: Answer, unit: str) -> float:
    """Parses a number that is at least 0; text may have a unit of bytes or seconds.

    Args:
        answer: the number, or text with a number and a unit.
        unit: `"bytes"`, `"seconds"`, or the plural of what is counted, such as
            `"tokens"`.

    Raises:
        Wrong, ShardvizError: if the answer is not such a number.

    >>> read_number("2 MiB", "bytes"), read_number("10 ms", "seconds")
    (2097152.0, 0.01)
    """
    if isinstance(answer, str):
        value = _typed_number(answer, unit)
    else:
        value = _number(answer)
    if value is None or not 0 <= value < math.inf:
        raise Wrong(
            f"The answer must be a number of {unit}, 0 or more; got {shown(answer)}."
        )
    return value


def _number(answer: Answer) -> float | None:
    # float() accepts these types, but they are not meant as numbers.
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


def rounding(answer: Answer, unit: str) -> float:
    """Returns the allowed rounding error of an answer: half a unit of its last digit.

    Only text with a unit and at least three digits counts as rounded.

    >>> rounding("16.8 MB", "bytes"), rounding("16 MB", "bytes"), rounding(16.8, "bytes")
    (50000.0, 0.0, 0.0)
    """
    if not isinstance(answer, str):
        return 0.0
    typed = re.fullmatch(r"([\d.]+)\s*([a-zµ]+)", _plain(answer, unit))
    if typed is None or len(typed[1].replace(".", "").lstrip("0")) < 3:
        return 0.0
    # One unit of the last digit: 00.1 MB for 16.8 MB.
    last = re.sub(r"\d", "0", typed[1])[:-1] + "1"
    return (_typed_number(f"{last} {typed[2]}", unit) or 0.0) / 2


def _plain(answer: str, unit: str) -> str:
    """Normalizes an amount to lower case, without thousands separators."""
    text = answer[:100].strip().lower().replace(",", "").replace("_", "")
    if unit == "bytes":
        text = text.removesuffix("ytes")
    return text


def _typed_number(answer: str, unit: str) -> float | None:
    text = _plain(answer, unit)
    if unit == "bytes":
        return float(parse_bytes(text, "This", ShardvizError))
    typed = _TYPED.fullmatch(text)
    # Only seconds may have a unit here; bytes are parsed above.
    if typed is None or (typed[2] and unit != "seconds"):
        return None
    return float(typed[1]) * _SECONDS[typed[2] or "s"]


def check_number(
    answer: Answer,
    right: float,
    unit: str,
    mistakes: Mapping[float, str] | None = None,
    tolerance: float = 1e-9,
) -> str:
    """Checks an answer that is a number.

    Args:
        answer: the answer.
        right: the right number.
        unit: `"bytes"`, `"seconds"`, or the plural of what is counted, such as
            `"tokens"`.
        mistakes: ratio of a wrong answer to the right one -> hint about this mistake.
        tolerance: the allowed relative error. Rounding to at least three digits is
            always allowed.

    Returns:
        The right answer with its unit, such as `2 KiB`.

    Raises:
        Wrong, ShardvizError: for a wrong answer.

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
    # Show the hint of the nearest common mistake, if the answer is one.
    near = []
    for times, hint in (mistakes or {}).items():
        off = abs(value / right / times - 1)
        if off <= max(tolerance, 1e-6):
            near.append((off, hint))
    if near:
        raise Wrong(f"{does}: {min(near)[1]}")
    # Perhaps a wrong unit, such as milliseconds instead of seconds.
    if not right / 500 < value < right * 500:
        raise Wrong(f"{does} is off by a factor of hundreds. Is its unit right?")
    # Perhaps rounded too much, or in MB instead of MiB (5 % difference).
    if unit == "bytes" and tolerance < abs(value / right - 1) < 0.08:
        # Quote the answer as typed: converted to our units, it could look right.
        raise Wrong(
            words.close(answer if isinstance(answer, str) else f"{value:,.0f} B")
        )
    if value > right * (1 + tolerance):
        raise Wrong(f"{does} is too much.")
    if value < right * (1 - tolerance):
        raise Wrong(f"{does} is too little.")
    return does


def read_names(answer: Answer, choices: Iterable[str], subject: str) -> set[str]:
    """Parses names, paths or ids in an answer: text with commas, or values with a name.

    Args:
        answer: the answer.
        choices: all existing names.
        subject: the things with these names, such as `"The arrays"`.

    Raises:
        Wrong: for a name that is not among the choices.
        ShardvizError: if the answer is not a list of names.
    """
    if isinstance(answer, str):
        answer = re.split(r"[,;\s{}()\[\]]+", answer.strip(" {}()[]")[:100_000])
    elif _name(answer) is not None:
        answer = [answer]
    choices, names = list(choices), set()
    values: list[object] = []
    for value in limited(answer, MOST, subject, ShardvizError):
        # For an Unmatched, take the arrays that have the unmatched name.
        values += value.arrays if isinstance(value, Unmatched) else [value]
    for value in values:
        name = _name(value)
        if name not in choices:
            raise Wrong(
                f"{shown(value)} is none of {subject.lower()}.{suggestion(name, choices)}"
            )
        names.add(name)
    return names


def _name(value: object) -> str | None:
    """Returns a value's path, name or id; for text or an integer, the value itself."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return str(value)
    for attribute in ("path", "name", "id"):
        if hasattr(value, attribute):
            return str(getattr(value, attribute))
    if isinstance(value, str):
        return value.strip(" '\"`")
    return None


def check_names(
    answer: Answer, choices: Iterable[str], right: Collection[str], subject: str
) -> str:
    """Checks an answer that consists of names, paths or ids.

    Args:
        answer, choices, subject: as for `read_names`.
        right: the right names.

    Returns:
        A sentence that confirms the answer.

    Raises:
        Wrong, ShardvizError: for a wrong answer.
    """
    return same_names(read_names(answer, choices, subject), right)


def same_names(names: set[str], right: Collection[str]) -> str:
    """Checks that names are exactly the right ones; returns a confirming sentence.

    Raises:
        Wrong: for the first wrong name, or if names are missing.
    """
    wrong = sorted(names.difference(right))
    if wrong:
        raise Wrong(f"{wrong[0]} does not belong in the answer; you name {len(names)}.")
    if len(names) < len(right):
        if not names:
            raise Wrong("Your answer has no names.")
        raise Wrong(
            f"The {len(names)} that you name are right, but others are missing."
        )
    return words.lists(names)
