"""XLA's own answer straight after SPMD partitioning, read from what it dumps while it compiles.

XLA writes the module before and after the passes whose names match a pattern. Nothing else about a
compile changes, and jax leaves these options out of the keys of its compilation cache.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from shardviz.core.program.compiling.partition_dump import (
    PARTITIONED,
    PROPAGATED,
    DumpFolder,
    dump_place,
    newest,
    partitioned_text,
    read_text,
    stamps,
)
from shardviz.core.program.hlo.collectives import read_collectives
from shardviz.core.program.report import Collective

__all__ = [
    "ONE_DEVICE",
    "PASSES",
    "Dumped",
    "asked_folder",
    "compile_with_dump",
    "dump_place",
    "partitioned_text",
    "read_partitioned",
]

PASSES = "spmd|shardy"
ONE_DEVICE = "The program is for one device, so there is nothing to partition."

_SAID = 300  # characters of a message of XLA
_TO, _PASSES = "xla_dump_to", "xla_dump_hlo_pass_re"


@dataclass(frozen=True, eq=False)
class Dumped:
    """A compiled program, and what XLA wrote down on the way.

    Attributes:
        compiled: jax's own `Compiled`.
        seconds: how long the whole compile took.
        partitioned_text: the module straight after SPMD partitioning, for one device; or None.
        propagated_text: the module straight before, with a sharding on every operation; or None.
        partition_s: seconds until the partitioner was done; None where it left no text.
        reason: why there is no text of the partitioner, in one sentence; `""` where there is one.

    >>> Dumped(None, 0.5, None, None, None, ONE_DEVICE).reason
    'The program is for one device, so there is nothing to partition.'
    """

    compiled: Any
    seconds: float
    partitioned_text: str | None
    propagated_text: str | None
    partition_s: float | None
    reason: str


def compile_with_dump(
    lowered: Any, options: Mapping[str, Any] | None = None, folder: str | None = None
) -> Dumped:
    """Compiles, and reads what XLA's partitioner made of the program.

    Args:
        lowered: jax's own `Lowered`.
        options: compiler options. Where they, or `XLA_FLAGS`, ask for a dump already, it goes where
            they say, and is read there.
        folder: where the dump goes, for who wants to read it meanwhile; its files are left there.
            Without it they go to a temporary folder, which is removed.

    Raises:
        Exception: whatever the compiler raises.

    >>> dumped = compile_with_dump(jax.jit(abs).lower(1.0))
    >>> dumped.partitioned_text, dumped.reason
    (None, 'The program is for one device, so there is nothing to partition.')
    """
    options = dict(options or {})
    name, partitions = _module(lowered)
    if partitions == 1:
        return _without(lowered, options, ONE_DEVICE)
    try:
        with _folder(options, folder) as place:
            return _compile(lowered, options, place, name)
    except _NoFolder as error:
        return _without(lowered, options, f"There is no place for XLA's dump: {error}")


def read_partitioned(
    text: str, axis_names: Sequence[str], axis_sizes: Sequence[int]
) -> tuple[Collective, ...]:
    """The collectives that the partitioner put in, in the order of the text.

    Args:
        text: `Dumped.partitioned_text`.
        axis_names, axis_sizes: the mesh it was compiled for, in its order.

    >>> line = "  %r = f32[16,32]{1,0} all-reduce(%p), replica_groups={{0,1},{2,3}}, to_apply=%add"
    >>> read_partitioned(line, ("data", "model"), (2, 2))[0].mesh_axes
    ('model',)
    """
    return read_collectives(text, axis_names, axis_sizes)


def asked_folder(options: Mapping[str, Any]) -> str | None:
    """The folder that a person's own options or `XLA_FLAGS` dump to; None where neither does.

    >>> asked_folder({"xla_dump_to": "/tmp/mine"})
    '/tmp/mine'
    """
    return str(options[_TO]) if options.get(_TO) else _flag(_TO)


class _NoFolder(Exception):
    """Nothing can be dumped; the text says why."""


@contextmanager
def _folder(options: Mapping[str, Any], folder: str | None) -> Iterator[Path]:
    given = asked_folder(options) or folder
    if given is not None:
        if "://" in given or given in ("-", "sponge"):
            raise _NoFolder(f"{given!r}, where it was asked to go, is no folder.")
        yield Path(given)
        return
    try:
        # XLA may still write to it while it is removed, when a compile is cut short.
        temporary = tempfile.TemporaryDirectory(
            prefix="shardviz-dump-", dir=dump_place(), ignore_cleanup_errors=True
        )
    except OSError as error:
        raise _NoFolder(f"{error}.") from error
    with temporary as made:
        yield Path(made)


def _compile(lowered: Any, options: Mapping[str, Any], place: Path, name: str | None) -> Dumped:
    asked = {}
    if asked_folder(options) is None:
        asked[_TO] = str(place)
    if not options.get(_PASSES) and _flag(_PASSES) is None:
        asked[_PASSES] = PASSES
    dump = DumpFolder(place, stamps(place), name)
    clock, begun = time.time(), time.perf_counter()
    try:
        compiled = lowered.compile(compiler_options={**options, **asked})
    except Exception as error:
        if not _is_of_the_dump(error, asked, place):
            raise
        words = str(error).strip().splitlines()[0]
        return _without(lowered, options, f"XLA cannot dump this program: {words[:_SAID]}")
    seconds = time.perf_counter() - begun
    files = list(dump.files())
    found = newest(files, PARTITIONED)
    text = read_text(found)
    if found is None or text is None:
        return Dumped(compiled, seconds, None, None, None, _why_none(dump, options))
    # The clock of the files may tick a little behind ours.
    partition_s = min(max(found.written - clock, 0.0), seconds)
    propagated = read_text(newest(files, PROPAGATED, found.number))
    return Dumped(compiled, seconds, text, propagated, partition_s, "")


def _without(lowered: Any, options: Mapping[str, Any], reason: str) -> Dumped:
    begun = time.perf_counter()
    compiled = lowered.compile(compiler_options=dict(options) or None)
    return Dumped(compiled, time.perf_counter() - begun, None, None, None, reason)


def _is_of_the_dump(error: Exception, asked: Mapping[str, Any], place: Path) -> bool:
    """Whether a compile failed for what we asked in addition: an option, or a file of the dump."""
    if _TO not in asked and _PASSES not in asked:
        return False
    text = str(error)
    return any(f"'{option}'" in text for option in asked) or (_TO in asked and str(place) in text)


def _why_none(dump: DumpFolder, options: Mapping[str, Any]) -> str:
    """Why a compile left no text of the partitioner."""
    passes = options.get(_PASSES) or _flag(_PASSES)
    if passes:
        return (
            f"XLA was asked to dump the passes {str(passes)!r} alone, and wrote none of"
            f" {PASSES!r}: add these to {_PASSES}."
        )
    if getattr(jax.config, "jax_compilation_cache_dir", None) and not dump.began():
        return (
            "The executable came out of jax's compilation cache on disk, so nothing was"
            " partitioned. Without jax_compilation_cache_dir it is compiled anew."
        )
    return f"XLA wrote no text of its partitioner to {dump.place}."


def _module(lowered: Any) -> tuple[str | None, int | None]:
    """The name of the lowered module and for how many devices it is; None where it does not say."""
    try:
        attributes = lowered.compiler_ir().operation.attributes
        name = str(attributes["sym_name"]).strip('"')
        # In the names of files every other byte is an underscore.
        name = re.sub(r"\\[0-9A-F]{2}|[^\w.\-]", "_", name, flags=re.ASCII)
        return name, int(str(attributes["mhlo.num_partitions"]).split(":")[0])
    except (AttributeError, KeyError, ValueError):
        return None, None


def _flag(name: str) -> str | None:
    """The value of an option in `XLA_FLAGS`, which may also name a file of flags."""
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if flags and not flags.startswith("-"):
        try:
            flags = Path(flags).read_text(encoding="utf-8")
        except OSError:
            return None
    try:
        words = shlex.split(flags)
    except ValueError:
        words = flags.split()
    values = [w.partition("=")[2] for w in words if w.partition("=")[0].lstrip("-") == name]
    return values[-1] or None if values else None
