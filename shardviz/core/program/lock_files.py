"""parse_lock() and read_lock(): a lock from its file, and MaxText's own records.

What is no lock is refused in one sentence, with the entry that could not be read.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardviz.core.errors import ProgramError, ShardvizError
from shardviz.core.format import shown
from shardviz.core.layout.parse import read_text_file
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.lock import (
    UNKNOWN_SPEC,
    VERSION,
    Lock,
    LockedArray,
    LockedCollective,
    unique_arrays,
)

MOST_BYTES = 1 << 26  # of a file
_ENTRY = re.compile(
    r"([^\[\]]*)\[([\d, ]*)\] (.+?)(?: in (\w+))?(, donated)?", re.DOTALL
)
_BRACES = re.compile(r"\{\{|\}\}|\{([\d.,]+)\}")


def read_lock(path: Any) -> Lock:
    """The lock in a file of `parse_lock`'s kinds.

    Raises:
        ProgramError: where there is no such file, or no lock in it.
    """
    try:
        text = read_text_file(Path(path), MOST_BYTES)
    except ValueError as error:
        raise ProgramError(f"Cannot read a lock: {shown(path)} {error}.") from None
    except TypeError:
        raise ProgramError(f"A lock is read from a path; got {shown(path)}.") from None
    return parse_lock(text, Path(path).name)


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
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise ProgramError(
            f"{shown(name)} is no lock: it is no JSON. sv.lock(program).write(path)"
            " writes one."
        ) from None
    lock = None
    if isinstance(content, dict):
        try:
            own = "shardviz_lock" in content
            lock = _read_own(content) if own else _read_maxtext(content, name)
        except KeyError as error:
            raise ProgramError(f"{shown(name)} is no lock: no {error}.") from None
        except (ShardvizError, TypeError, ValueError, AttributeError) as error:
            raise ProgramError(f"{shown(name)} cannot be read: {error}") from None
    if lock is None:
        raise ProgramError(
            f"{shown(name)} is no lock: it is JSON of another kind."
            " sv.lock(program).write(path) writes one; of MaxText's records"
            " named_shardings.json and input_shardings.json are read."
        )
    return lock


def _read_own(content: Mapping[str, Any]) -> Lock:
    version = content["shardviz_lock"]
    if version != VERSION:
        raise ProgramError(
            f"it is a lock of version {shown(version)}, and version {VERSION} is read"
            " here. Write it again with this version of shardviz."
        )
    arrays: dict[str, LockedArray] = {}
    for pattern, text in content["arrays"].items():
        array = _array(text)
        array = array._replace(memory=array.memory or "", donated=bool(array.donated))
        arrays.update(dict.fromkeys(unfolded(pattern), array))
    collectives = content.get("collectives")
    if collectives is not None:
        collectives = tuple(
            LockedCollective(**{**one, "over": tuple(one["over"])})
            for one in collectives
        )
    return Lock(
        content["name"],
        content["mesh"],
        arrays,
        collectives,
        content["bytes_per_device"],
        content["made_with"],
        device_order=content.get("device_order", ""),
    )


def _array(text: str) -> LockedArray:
    """From `float32[8, 4] P('data') in pinned_host, donated`."""
    match = _ENTRY.fullmatch(text)
    if match is None:
        raise ProgramError(
            f"a line is such as \"float32[8] P('data')\"; got {shown(text)}."
        )
    dtype, sizes, spec, memory, donated = match.groups()
    shape = tuple(int(size) for size in re.findall(r"\d+", sizes))
    return LockedArray(dtype, shape, _normal(spec), memory, bool(donated) or None)


@lru_cache(maxsize=4096)
def _normal(text: str) -> str:
    """A spec in the form of its text in which specs are compared."""
    return text if text == UNKNOWN_SPEC else str(Spec.parse(text).trimmed)


def _read_maxtext(content: Mapping[str, Any], name: str) -> Lock | None:
    """The lock of a record of MaxText's; None for anything else.

    The records are those of `tests/utils/sharding_info` in AI-Hypercomputer/maxtext.
    They have no types of parameters, so these are not compared.
    """
    if "Activation Sharding Dump" in content:
        rows = []
        for row in content["Activation Sharding Dump"]:
            # {"attentions/query: bfloat16[192,16]": {"PartitionSpec": "P('fsdp',)"}}
            ((title, facts),) = row.items()
            path, _, kind = title.rpartition(": ")
            spec = facts["PartitionSpec"].removeprefix("PartitionSpec")
            rows.append((path, _array(f"{kind} P{spec.removeprefix('P')}")))
        return Lock(name, "", unique_arrays(rows), foreign=True)
    if "params" in content and "mesh" in content:
        sizes = dict(content["mesh"])
        rows = [(row["path"], _parameter(row)) for row in content["params"]]
        return Lock(name, _mesh_line(sizes), unique_arrays(rows), foreign=True)
    rows = list(content.values())
    if not rows or not all(isinstance(r, dict) and "partition_spec" in r for r in rows):
        return None
    if "mesh" not in rows[0]:
        raise ProgramError(
            "it has logical names and no mesh axes, as MaxText's logical_shardings.json"
            " has. Give the named_shardings.json beside it."
        )
    arrays = {path: _parameter(row) for path, row in content.items()}
    return Lock(name, _mesh_line(rows[0]["mesh"]["shape"]), arrays, foreign=True)


def _mesh_line(sizes: Mapping[str, Any]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in sizes.items())


def _parameter(row: Mapping[str, Any]) -> LockedArray:
    dims = []
    for entry in row["partition_spec"]:
        dims.append(tuple(entry) if isinstance(entry, list) else entry)
    shape = tuple(int(size) for size in row["shape"])
    return LockedArray("", shape, str(Spec.of(*dims).trimmed))


def unfolded(pattern: str) -> list[str]:
    """The names that a line of a lock stands for.

    >>> unfolded("layers_{0..1,4}/w"), unfolded("a{{0}}b")
    (['layers_0/w', 'layers_1/w', 'layers_4/w'], ['a{0}b'])
    """
    parts: list[list[str]] = []
    at = 0
    for match in _BRACES.finditer(pattern):
        parts.append([pattern[at : match.start()]])
        at = match.end()
        if match[1] is None:
            parts.append([match[0][0]])  # a brace of the name itself
            continue
        numbers: list[str] = []
        for part in match[1].split(","):
            first, dots, last = part.partition("..")
            if dots:
                numbers += map(str, range(int(first), int(last) + 1))
            else:
                numbers.append(part)
        parts.append(numbers)
    return ["".join(one) for one in itertools.product(*parts, [pattern[at:]])]
