"""parse_lock() and read_lock(): a lock from its file, and from MaxText's records of
shardings.

Nothing that a file says is trusted: what is no lock is refused in one sentence with its
entry.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardviz.core.errors import ProgramError, ShardvizError
from shardviz.core.format import listed, shown
from shardviz.core.layout.parse import read_text_file
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.lock import (
    READS,
    UNKNOWN_SPEC,
    Lock,
    LockedArray,
    LockedCollective,
    unique_arrays,
)

MOST_ARRAYS = 1_000_000
MOST_BYTES = 1 << 26  # of a file
_MOST_LETTERS = 100_000_000  # of the names that a line stands for
_MOST_NUMBER = 1 << 63
_ENTRY = re.compile(
    r"([^\[\]]*)\[([\d, ]*)\] (.+?)(?: in (\w+))?(, donated)?", re.DOTALL
)
_BRACES = re.compile(r"\{\{|\}\}|\{([\d.,]+)\}")


def read_lock(path: Any) -> Lock:
    """The lock in a file.

    Args:
        path: a file of `parse_lock`'s kinds.

    Raises:
        ProgramError: where there is no such file, or no lock in it.
    """
    try:
        file = Path(path)
        text = read_text_file(file, MOST_BYTES)
    except ValueError as error:
        raise ProgramError(f"Cannot read a lock: {shown(path)} {error}.") from None
    except Exception:  # noqa: BLE001  a foreign path may raise anything
        raise ProgramError(
            f"Cannot read a lock from {shown(path)}: it is no path."
        ) from None
    return parse_lock(text, file.name)


def parse_lock(text: str, name: str = "the lock") -> Lock:
    """A lock from its JSON, or from a record of MaxText's.

    MaxText's `named_shardings.json` gives the arrays of its train state, and
    `input_shardings.json` its activations.

    Args:
        text: the JSON.
        name: what to call the file in an error.

    Raises:
        ProgramError: for what is no lock, with the entry that could not be read.

    >>> lock = Lock("f", "data=2", {"layers_0/x": LockedArray("float32", (8,), "P('data')")})
    >>> parse_lock(lock.text).diff(lock).same
    True
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError, TypeError):
        raise ProgramError(
            f"{shown(name)} is no lock: it is no JSON. sv.lock(program).write(path) writes one."
        ) from None
    if isinstance(found, dict) and "shardviz_lock" in found:
        return _read_own(found, name)
    lock = _read_maxtext(found, name)
    if lock is None:
        raise ProgramError(
            f"{shown(name)} is no lock: it is JSON of another kind. sv.lock(program).write(path)"
            " writes one; of MaxText's records named_shardings.json and input_shardings.json are"
            " read."
        )
    return lock


def _read_own(found: dict[str, Any], name: str) -> Lock:
    version = found["shardviz_lock"]
    if not isinstance(version, int) or version not in READS:
        raise ProgramError(
            f"{shown(name)} is a lock of version {shown(version)}, and versions {listed(READS)}"
            " are read here. Write it again with this version of shardviz."
        )
    get = lambda key, kind, default: _part(found, key, kind, default, name)  # noqa: E731
    arrays: dict[str, LockedArray] = {}
    for pattern, text in get("arrays", dict, {}).items():
        entry = _entry(text, f"{name}, array {shown(pattern)}")
        if version > 1:
            entry = entry._replace(
                memory=entry.memory or "", donated=bool(entry.donated)
            )
        for each in unfolded(pattern, MOST_ARRAYS - len(arrays)):
            arrays[each] = entry
    some = get("collectives", (list, type(None)), None)
    made_with = {str(k): str(v) for k, v in get("made_with", dict, {}).items()}
    return Lock(
        get("name", str, ""),
        get("mesh", str, ""),
        arrays,
        None if some is None else tuple(_collective(c, name) for c in some),
        get("bytes_per_device", (int, type(None)), None),
        made_with,
        device_order=get("device_order", str, "") if version > 1 else None,
    )


def _part(
    found: Mapping[str, Any], key: str, kind: Any, default: Any, name: str
) -> Any:
    value = found.get(key, default)
    large = isinstance(value, int) and not -_MOST_NUMBER < value < _MOST_NUMBER
    if not isinstance(value, kind) or large:
        raise ProgramError(
            f"{name}: {key!r} cannot be {shown(value)}. Write the lock again."
        )
    return value


def _entry(text: Any, where: str) -> LockedArray:
    match = _ENTRY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ProgramError(
            f"{where}: a line is such as \"float32[8] P('data')\"; got {shown(text)}."
        )
    shape = tuple(int(size[:19]) for size in re.findall(r"\d+", match[2]))
    try:
        return LockedArray(
            match[1], shape, _normal(match[3]), match[4], bool(match[5]) or None
        )
    except ShardvizError as error:
        raise ProgramError(f"{where}: {error}") from None


@lru_cache(maxsize=4096)
def _normal(text: str) -> str:
    """A spec in the form of its text in which specs are compared."""
    return text if text == UNKNOWN_SPEC else str(Spec.parse(text).trimmed)


def _collective(found: Any, name: str) -> LockedCollective:
    keys = ("kind", "over", "bytes", "executions", "count", "where")
    kinds = (str, list, int, (int, type(None)), int, str)
    if not isinstance(found, dict):
        raise ProgramError(
            f"{name}: a collective cannot be {shown(found)}. Write the lock again."
        )
    values = [
        _part(found, k, kind, None, name) for k, kind in zip(keys, kinds, strict=True)
    ]
    return LockedCollective(values[0], tuple(map(str, values[1])), *values[2:])


def _read_maxtext(found: Any, name: str) -> Lock | None:
    """The lock of a record of MaxText's; None for anything else.

    The records are those of `tests/utils/sharding_info` in AI-Hypercomputer/maxtext.
    They have no types of parameters, so these are not compared.
    """
    if not isinstance(found, dict):
        return None
    if isinstance(dump := found.get("Activation Sharding Dump"), list):
        rows = [_activation(row, name) for row in dump]
        return Lock(name, "", unique_arrays(rows), foreign=True)
    if isinstance(found.get("params"), list) and isinstance(found.get("mesh"), list):
        try:
            sizes = {str(axis): size for axis, size in found["mesh"]}
            rows = [(str(r["path"]), _parameter(r, name)) for r in found["params"]]
        except (TypeError, ValueError, KeyError) as error:
            if isinstance(error, ShardvizError):
                raise
            raise ProgramError(
                f"{name}: cannot read its mesh or its parameters."
            ) from None
        return Lock(name, _mesh_line(sizes), unique_arrays(rows), foreign=True)
    rows = [
        row
        for row in found.values()
        if isinstance(row, dict) and "partition_spec" in row
    ]
    if not rows or len(rows) < len(found):
        return None
    meshes = [row["mesh"] for row in rows if isinstance(row.get("mesh"), dict)]
    if not meshes:
        raise ProgramError(
            f"{shown(name)} has logical names and no mesh axes: it is MaxText's"
            " logical_shardings.json. Give the named_shardings.json beside it."
        )
    sizes = _part(meshes[0], "shape", dict, {}, name)
    arrays = {path: _parameter(row, name) for path, row in found.items()}
    return Lock(name, _mesh_line(sizes), arrays, foreign=True)


def _mesh_line(sizes: Mapping[str, Any]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in sizes.items())


def _parameter(row: Any, name: str) -> LockedArray:
    spec, shape = (
        _part(row, key, list, [], name) for key in ("partition_spec", "shape")
    )
    try:
        return LockedArray(
            "", tuple(map(int, shape)), str(Spec.of(*map(_axes, spec)).trimmed)
        )
    except (ShardvizError, TypeError, ValueError, OverflowError):
        raise ProgramError(f"{name}: cannot read the sharding {shown(row)}.") from None


def _axes(entry: Any) -> Any:
    return tuple(entry) if isinstance(entry, list) else entry


def _activation(row: Any, name: str) -> tuple[str, LockedArray]:
    """From `{"attentions/query: bfloat16[192,16]": {"PartitionSpec": "P('fsdp',
    None)"}}`.
    """
    title, facts = (
        next(iter(row.items())) if isinstance(row, dict) and row else ("", None)
    )
    path, colon, kind = title.rpartition(": ")
    if not colon or not isinstance(facts, dict):
        raise ProgramError(f"{name}: cannot read the activation {shown(row)}.")
    text = (
        str(facts.get("PartitionSpec", ""))
        .removeprefix("PartitionSpec")
        .removeprefix("P")
    )
    return path, _entry(f"{kind} P{text}", f"{name}, {path}")


def unfolded(pattern: str, most: int = MOST_ARRAYS) -> list[str]:
    """The names that a line of a lock stands for.

    Args:
        pattern: a name in which braces hold numbers.
        most: how many names are too many.

    Raises:
        ProgramError: for braces that hold something else, and for too many names.

    >>> unfolded("layers_{0..1,4}/w")
    ['layers_0/w', 'layers_1/w', 'layers_4/w']
    """
    parts: list[Iterable[str]] = []
    count, at = 1, 0
    for found in _BRACES.finditer(pattern):
        parts.append([pattern[at : found.start()]])
        at = found.end()
        numbers = _numbers(found[1], pattern, most) if found[1] else [found[0][0]]
        count *= len(numbers)
        parts.append(numbers)
        if count > most or count * len(pattern) > _MOST_LETTERS:
            raise ProgramError(
                f"The line {shown(pattern)} stands for more than {most:,} arrays."
            )
    return ["".join(one) for one in itertools.product(*parts, [pattern[at:]])]


def _numbers(text: str, pattern: str, most: int) -> list[str]:
    """The numbers of `0..3,7`; what is no range stays as it is written."""
    found: list[str] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        if not dots:
            found.append(part)
        elif first.isdigit() and last.isdigit() and len(first + last) < 30:
            if int(last) - int(first) >= most:
                raise ProgramError(
                    f"The line {shown(pattern)} has more than {most:,} layers."
                )
            found += map(str, range(int(first), int(last) + 1))
        else:
            raise ProgramError(
                f"The line {shown(pattern)} has no numbers in its braces."
            )
    return found
