"""compile_with_dump(): compiles, and reads what XLA's partitioner made of the program.

XLA gives that module out in no other way than by dumping its passes to a folder. The
same is true of the final module with its buffers, which it dumps whenever it dumps.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardviz.compiled.module import Module
from shardviz.programs.backend.bridge import check_lowered_names
from shardviz.programs.backend.failures import lacks_memory
from shardviz.programs.backend.worker.folders import (
    dump_root,
    make_folder,
    remove_folder,
)
from shardviz.programs.backend.worker.xla_flags import xla_flags
from shardviz.programs.notes import (
    DumpRefused,
    NoDump,
    NoDumpFolder,
    NotPartitioned,
    OneDevice,
    OwnDump,
)

# CPU and GPU write `after_spmd-partitioning`, TPU `after_tpu-spmd-partitioning`.
_PARTITIONED = re.compile(
    r"module_(\d+)\..*\.after_(?:tpu-)?spmd-partition(?:ing|er)\b.*\.hlo\.pb$"
)

# CPU and GPU write their name before it, and the kind of GPU.
_FINAL = re.compile(r"module_(\d+)\..*[._]after_optimizations\.hlo\.pb$")

#: The passes that are dumped, as a regular expression of XLA's.
PASSES = "spmd|shardy"
ONE_DEVICE = OneDevice()

_MAX_MESSAGE = 300  # characters
_LEAST_FREE = 2**25  # bytes: of 64 devices a dump is about 1 MiB
_TO, _AS_PROTO = "xla_dump_to", "xla_dump_hlo_as_proto"


def partitioned_module(folder: str | os.PathLike[str]) -> Module | None:
    """The module after partitioning, as soon as XLA has written it; None until then.

    Call it repeatedly while another thread or process compiles with a dump to `folder`.

    >>> with tempfile.TemporaryDirectory() as empty:
    ...     print(partitioned_module(empty))
    None
    """
    return _last_module(_dumped(Path(folder), _PARTITIONED))[0]


def _dumped(folder: Path, names: re.Pattern[str]) -> set[tuple[int, float, Path]]:
    """The modules of some name in a folder: number, time and file of each."""
    found = set()
    for path in folder.rglob("*.pb"):
        number = names.search(path.name)
        if number is not None:
            with contextlib.suppress(OSError):  # another compile removed its own
                found.add((int(number[1]), path.stat().st_mtime, path))
    return found


def _last_module(
    dumped: set[tuple[int, float, Path]],
) -> tuple[Module | None, float]:
    """The last of some modules, and when it was written."""
    if not dumped:
        return None, 0.0
    _, written, path = max(dumped)
    try:
        return Module(path.read_bytes()), written
    except (OSError, ValueError):  # not all of it is written yet
        return None, 0.0


@dataclass(frozen=True, eq=False)
class Dumped:
    """A compiled program, and what XLA dumped meanwhile.

    Attributes:
        compiled: jax's own `Compiled`.
        seconds: how long the whole compile took.
        partitioned: the module straight after SPMD partitioning, for one device; or
            None.
        partition_s: seconds until the partitioner was done; None where it left nothing.
        reason: why there is no module of the partitioner; None where there is one.
        final: the final module with its buffers, as XLA serializes both; None where it
            left none.
    """

    compiled: Any
    seconds: float
    partitioned: Module | None = None
    partition_s: float | None = None
    reason: NotPartitioned | None = None
    final: bytes | None = None


class TooLargeToCompile(Exception):
    """The compiler found that a program needs more memory than a device has.

    Attributes:
        error: what the compiler raised.
        final: the module that it refused, with its buffers, as XLA serializes both.
    """

    def __init__(self, error: Exception, final: bytes) -> None:
        super().__init__(str(error))
        self.error, self.final = error, final


def compile_with_dump(
    lowered: Any, options: Mapping[str, Any] | None = None, folder: str | None = None
) -> Dumped:
    """Compiles, and reads what XLA's partitioner made of the program.

    Args:
        lowered: jax's own `Lowered`.
        options: compiler options. The folder for dumps that they name is used. Where
            `XLA_FLAGS` name one, that dump is left alone, and what the partitioner
            made is unknown.
        folder: else the folder for the dump, whose files stay; by default a temporary
            one.

    Raises:
        TooLargeToCompile: if the compiler says so and dumped the buffers it had in mind.

    >>> import jax
    >>> dumped = compile_with_dump(jax.jit(abs).lower(1.0))
    >>> dumped.partitioned, dumped.reason
    (None, OneDevice())
    """
    check_lowered_names(lowered)
    options = dict(options or {})
    flags = xla_flags(os.environ)
    if any(flag.startswith(f"--{_TO}=") for flag in flags) and _TO not in options:
        return _without(lowered, options, OwnDump())
    made, folder = None, options.get(_TO) or folder
    path = Path(folder or dump_root())
    try:
        if folder is None:
            path = made = make_folder("dump", str(path))
        _try_to_write(path)
    except OSError as error:
        # XLA must not be asked to dump there: it refuses the program, or ends the
        # process.
        why = error.strerror or str(error)
        if made is not None:
            remove_folder(made)
        options.pop(_TO, None)
        return _without(lowered, options, NoDumpFolder(str(path), why))
    try:
        return _compile(lowered, options, path)
    finally:
        if made is not None:
            remove_folder(made)


def _try_to_write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"0")
    if shutil.disk_usage(folder).free < _LEAST_FREE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _compile(lowered: Any, options: Mapping[str, Any], path: Path) -> Dumped:
    added = {_TO: str(path), _AS_PROTO: True, "xla_dump_hlo_pass_re": PASSES}
    if _TO in options and _AS_PROTO not in options:
        # The user's own dump is text, which XLA writes where no format is asked for.
        added["xla_dump_hlo_as_text"] = True
    before = _dumped(path, _PARTITIONED), _dumped(path, _FINAL)
    clock, begun = time.time(), time.perf_counter()
    try:
        compiled = lowered.compile(compiler_options={**added, **options})
    except Exception as error:
        # Of an option that was added, or of a file of the dump?
        text = str(error)
        ours = any(f"'{option}'" in text for option in added)
        if not ours and str(path) not in text:
            # Compilers assign buffers before they add up whether these fit.
            final = _final_module(path, before[1])
            if final is not None and lacks_memory(error):
                raise TooLargeToCompile(error, final) from error
            raise
        message = text.strip().splitlines()[0][:_MAX_MESSAGE]
        refused = DumpRefused(message)
        return _without(lowered, options, refused)
    seconds = time.perf_counter() - begun
    final = _final_module(path, before[1])
    module, written = _last_module(_dumped(path, _PARTITIONED) - before[0])
    if module is None:
        reason = ONE_DEVICE if _partitions(lowered) == 1 else NoDump()
        return Dumped(compiled, seconds, reason=reason, final=final)
    # The clock of the files may tick a little behind ours.
    partition_s = min(max(written - clock, 0.0), seconds)
    return Dumped(compiled, seconds, module, partition_s, final=final)


def _final_module(path: Path, before: set[tuple[int, float, Path]]) -> bytes | None:
    """The final module that a compile has dumped, with its buffers; None for none."""
    # A host's part of a program that offloads has no name of the module's own.
    files = sorted(_dumped(path, _FINAL) - before)
    return files[-1][2].read_bytes() if files else None


def _without(
    lowered: Any, options: Mapping[str, Any], reason: NotPartitioned
) -> Dumped:
    begun = time.perf_counter()
    compiled = lowered.compile(compiler_options=dict(options) or None)
    return Dumped(compiled, time.perf_counter() - begun, reason=reason)


def _partitions(lowered: Any) -> int | None:
    """For how many devices a module is lowered; None where that is not known."""
    try:
        attributes = lowered.compiler_ir().operation.attributes
        return int(str(attributes["mhlo.num_partitions"]).split(":")[0])
    except (AttributeError, KeyError, ValueError):
        return None
