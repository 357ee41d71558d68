"""Reads answers, in any form in which people have such a thing. Nothing is evaluated."""

from __future__ import annotations

import datetime
import math
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shardviz.api.adopt import as_mesh, as_spec, is_jax, layout_of
from shardviz.api.layouts import rules as make_rules
from shardviz.core.errors import ShardvizError
from shardviz.core.format import shown, suggestion
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.layout import Layout, lay_out
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import flat_numbers, limited, parse_bytes
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.resolution import Resolution
from shardviz.core.layout.rules.rules import Rules
from shardviz.core.program.program import Program
from shardviz.exercises.registry import EXERCISES, Wrong

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
    """A mesh: text, a mapping, pairs, a mesh of ours or jax's, or what is on one.

    Raises:
        ShardvizError: for anything else.
    """
    answer = opened(answer)
    if isinstance(answer, (Program, Layout)):
        return answer.mesh
    if is_jax(answer) and hasattr(answer, "spec") and hasattr(answer, "mesh"):
        answer = answer.mesh
    return as_mesh(answer)


def read_spec(answer: Any, array: ArraySpec, mesh: MeshSpec) -> Spec:
    """The spec of an array: text, a tuple, a spec of ours or jax's, or what has one.

    Raises:
        Wrong: for an answer on another mesh, and for a program without that array.
        ShardvizError: for what is no spec.
    """
    answer = opened(answer)
    if isinstance(answer, Program):
        return _spec_in(answer, array.name, mesh)
    if isinstance(answer, ArraySpec) and answer.spec is not None:
        return answer.spec
    if isinstance(answer, (Layout, Resolution)) and answer.spec is not None:
        if answer.mesh is not None:
            check_mesh(answer.mesh, mesh)
        return answer.spec
    if is_jax(answer):
        # An array or a ShapeDtypeStruct has a sharding; a NamedSharding is one.
        answer = getattr(answer, "sharding", answer)
        if hasattr(answer, "spec") and hasattr(answer, "mesh"):
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
    if isinstance(answer, Layout):
        if answer.shape != array.shape:
            raise Wrong(
                f"Your layout is of shape {answer.shape}; {array.name} has"
                f" {array.shape}."
            )
        # Without a spec, what each device holds is what counts.
        if answer.spec is None and answer.mesh.size == mesh.size:
            return answer
    if is_jax(answer) and hasattr(answer, "devices_indices_map"):
        if not hasattr(answer, "spec"):  # another kind of sharding than a NamedSharding
            return layout_of(array, answer, mesh, None, None, "linen")
    return lay_out(array.shape, read_spec(answer, array, mesh), mesh, array.dtype)


def read_table(answer: Any, mesh: MeshSpec | None = None) -> Rules:
    """A table of rules in any form that `sv.rules` reads, or what has one.

    Raises:
        Wrong: for a table of paths, and an Explorer on another mesh.
        ShardvizError: for what is no table.
    """
    answer = opened(answer)
    if isinstance(answer, Program) and mesh is not None:
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


def real_number(answer: Any) -> float | None:
    """A number of any kind as a float; None for what is no number."""
    # float() takes some of these, and none is meant as a number.
    if isinstance(answer, (bool, np.bool_, complex, str, bytes)) or answer is None:
        return None
    if isinstance(answer, datetime.timedelta):
        return answer.total_seconds()
    if is_jax(answer) or isinstance(answer, (np.ndarray, np.generic)):
        array = np.asarray(answer)
        if array.shape != () or array.dtype.kind not in "iuf":
            return None
        answer = array.item()
    try:
        value = float(answer)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
_TIME = re.compile(
    r"(\d{1,20}(?:\.\d{1,20})?(?:e-?\d{1,2})?)\s*([mnuµμ]?s)(?:ec(?:onds?)?)?"
)
_NUMBER = re.compile(r"\d{1,20}(\.\d{1,20})?(e[-+]?\d{1,2})?")


def read_number(answer: Any, unit: str) -> float:
    """A number that is not negative; text may have a unit of bytes or seconds.

    Args:
        answer: the number.
        unit: `"bytes"`, `"seconds"`, or what is counted.

    Raises:
        Wrong: for anything else.

    >>> read_number("2 MiB", "bytes"), read_number("10 ms", "seconds")
    (2097152.0, 0.01)
    """
    value = real_number(answer)
    if isinstance(answer, str) and len(answer) < 100:
        value = _typed_number(answer, unit)
    if value is None:
        raise Wrong(f"This takes a number of {unit}; got {shown(answer)}.")
    if value < 0:
        raise Wrong(f"A number of {unit} is not negative; got {shown(answer)}.")
    return value


def _typed_number(answer: str, unit: str) -> float | None:
    text = answer.strip().lower().replace(",", "").replace("_", "")
    if unit == "bytes":
        return float(parse_bytes(text.removesuffix("ytes"), "This", ShardvizError))
    if unit == "seconds" and (timed := _TIME.fullmatch(text)):
        return float(timed[1]) * _SECONDS[timed[2]]
    return float(text) if _NUMBER.fullmatch(text) else None


def compare(
    name: str,
    value: float,
    right: float,
    amount: str,
    slips: Sequence[float],
    tolerance: float,
) -> None:
    """Refuses a number that is not the right one.

    Args:
        name: of the exercise, whose words have a sentence for each slip.
        value, amount: the number in the answer, and its text.
        right: the right one.
        slips: the numbers to which usual mistakes lead.
        tolerance: how far it may be off, as a part of the right one.

    Raises:
        Wrong: where it is another number.
    """
    if math.isclose(value, right, rel_tol=tolerance):
        return
    for sentence, slip in zip(EXERCISES[name].words.slips, slips, strict=True):
        near = math.isclose(value, slip, rel_tol=max(tolerance, 1e-6))
        if near and slip != right:
            raise Wrong(f"{amount}: {sentence}")
    # Such as MiB for bytes, or milliseconds for seconds.
    if not right / 500 < value < right * 500:
        raise Wrong(f"{amount} is off by hundreds of times. Is its unit right?")
    if value > right:
        raise Wrong(f"{amount} is too much.")
    raise Wrong(f"{amount} is too little.")


def read_names(answer: Any, known: Iterable[str], what: str) -> set[str]:
    """Names or paths: text with commas between them, or values that have one.

    Raises:
        Wrong: for a name that there is not.
        ShardvizError: for what is no list of names.
    """
    if isinstance(answer, str):
        answer = re.split(r"[,;\s]+", answer.strip()[:100_000])
    elif _name(answer) is not None:
        answer = [answer]
    known = list(known)
    names = set()
    for value in limited(answer, MOST, what, ShardvizError):
        name = value if isinstance(value, str) else _name(value)
        name = None if name is None else name.strip(" '\"`{}[]()")
        if name not in known:
            raise Wrong(
                f"{shown(value)} is none of {what.lower()}.{suggestion(name, known)}"
            )
        names.add(name)
    return names


def _name(value: Any) -> str | None:
    name = getattr(value, "path", None) or getattr(value, "name", None)
    return name if isinstance(name, str) else None


def read_ids(answer: Any, what: str) -> set[int]:
    """Device ids: any collection of them, text such as `0, 2`, or jax's devices.

    Raises:
        Wrong: for text that holds anything but numbers.
        ShardvizError: for anything else.
    """
    if isinstance(answer, str):
        if not re.fullmatch(r"[\d\s,;{}\[\]()]*\d[\d\s,;{}\[\]()]*", answer[:1000]):
            raise Wrong(f"{what} are numbers, such as 0, 1; got {shown(answer)}.")
        answer = [int(n[:9]) for n in re.findall(r"\d+", answer)]
    elif real_number(answer) is not None:
        answer = [answer]
    elif isinstance(answer, (set, frozenset, list, tuple)):
        # A device of jax has its number in `id`.
        answer = [getattr(device, "id", device) for device in answer]
    numbers = np.asarray(flat_numbers(answer, MOST, what, ShardvizError))
    if numbers.size and numbers.dtype.kind not in "iu":
        raise Wrong(f"{what} are whole numbers; got {shown(answer)}.")
    return set(numbers.reshape(-1).tolist())
