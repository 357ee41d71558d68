"""compile_with_dump(): compiles, and reads the HLO module after XLA's SPMD partitioner.

XLA provides this module only if it dumps its passes to a folder. The dump also contains
the final module with its buffer assignment, which XLA provides in no other way.
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
from typing import Any, TypeAlias

from jax.stages import Compiled, Lowered

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

# CPU and GPU compilers put the platform and GPU model before `_after_optimizations`.
_FINAL = re.compile(r"module_(\d+)\..*[._]after_optimizations\.hlo\.pb$")

#: A regular expression of the XLA passes to dump.
PASSES = "spmd|shardy"
ONE_DEVICE = OneDevice()

# Number of characters to keep of an error message.
_MAX_MESSAGE = 300
# Free bytes of disk that a dump needs. A dump for 64 devices is about 1 MiB.
_LEAST_FREE = 2**25
_TO, _AS_PROTO = "xla_dump_to", "xla_dump_hlo_as_proto"
# The number, time and path of each dumped module.
_DumpedFiles: TypeAlias = set[tuple[int, float, Path]]


def partitioned_module(folder: str | os.PathLike[str]) -> Module | None:
    """Reads the module after partitioning; None until XLA has written it.

    Can be called repeatedly while another thread or process compiles with a dump to
    `folder`.

    >>> with tempfile.TemporaryDirectory() as empty:
    ...     print(partitioned_module(empty))
    None
    """
    return _last_module(_dumped(Path(folder), _PARTITIONED))[0]


def _dumped(folder: Path, names: re.Pattern[str]) -> _DumpedFiles:
    """Finds a folder's dumped modules with matching file names."""
    files: _DumpedFiles = set()
    for path in folder.rglob("*.pb"):
        number = names.search(path.name)
        if number is not None:
            with contextlib.suppress(OSError):  # another compile may remove its files
                files.add((int(number[1]), path.stat().st_mtime, path))
    return files


def _last_module(dumped: _DumpedFiles) -> tuple[Module | None, float]:
    """Returns the newest module, and the time it was written."""
    if not dumped:
        return None, 0.0
    _, written, path = max(dumped)
    try:
        return Module(path.read_bytes()), written
    except (OSError, ValueError):  # XLA is still writing the file
        return None, 0.0


@dataclass(frozen=True, eq=False)
class Dumped:
    """A compiled program with the modules that XLA dumped.

    Attributes:
        compiled: jax's own `Compiled`.
        seconds: duration of the compile.
        partitioned: the per-device module right after SPMD partitioning; None if XLA
            did not dump it.
        partition_s: seconds until the partitioner was done; None if `partitioned` is
            None.
        reason: why `partitioned` is None; else None.
        final: the final module and its buffer assignment, serialized by XLA; None if
            XLA did not dump it.
    """

    compiled: Compiled
    seconds: float
    partitioned: Module | None = None
    partition_s: float | None = None
    reason: NotPartitioned | None = None
    final: bytes | None = None


class TooLargeToCompile(Exception):
    """The compiler found that a program needs more memory than a device has.

    Attributes:
        error: the compiler's exception.
        final: the rejected module and its buffer assignment, serialized by XLA.
    """

    def __init__(self, error: Exception, final: bytes) -> None:
        super().__init__(str(error))
        self.error, self.final = error, final


def compile_with_dump(
    lowered: Lowered,
    options: Mapping[str, Any] | None = None,
    folder: str | None = None,
) -> Dumped:
    """Compiles with a dump, and reads the partitioned and the final module.

    Args:
        lowered: jax's own `Lowered`.
        options: compiler options. A dump folder among them is used. If only
            `XLA_FLAGS` sets a dump folder, we don't change it, and the partitioned
            module stays unknown.
        folder: a dump folder to use if the options name none; its files are kept. By
            default a temporary folder.

    Raises:
        TooLargeToCompile: if the program needs more memory than a device has, and the
            compiler dumped its buffer assignment.

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
    if _TO in options:
        folder = str(options[_TO])
    path, temporary = Path(folder or dump_root()), None
    try:
        if not folder:
            path = temporary = make_folder("dump", str(path))
        _try_to_write(path)
    except OSError as error:
        # XLA rejects the program or aborts the process if it can't write its dump.
        reason = error.strerror or str(error)
        if temporary is not None:
            remove_folder(temporary)
        options.pop(_TO, None)
        return _without(lowered, options, NoDumpFolder(str(path), reason))
    try:
        return _compile(lowered, options, path)
    finally:
        if temporary is not None:
            remove_folder(temporary)


def _try_to_write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"0")
    if shutil.disk_usage(folder).free < _LEAST_FREE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _compile(lowered: Lowered, options: Mapping[str, Any], path: Path) -> Dumped:
    added = {_TO: str(path), _AS_PROTO: True, "xla_dump_hlo_pass_re": PASSES}
    if _TO in options and _AS_PROTO not in options:
        # The user set no dump format, and so expects text, XLA's default.
        added["xla_dump_hlo_as_text"] = True
    old_partitioned, old_final = _dumped(path, _PARTITIONED), _dumped(path, _FINAL)
    clock, begun = time.time(), time.perf_counter()
    try:
        compiled = lowered.compile(compiler_options={**added, **options})
    except Exception as error:
        # The dump caused the error if the message names its options or its folder.
        text = str(error)
        names_option = any(f"'{option}'" in text for option in added)
        if not names_option and str(path) not in text:
            # The compiler dumps its buffers before it checks whether they fit.
            final = _final_module(path, old_final)
            if final is not None and lacks_memory(error):
                raise TooLargeToCompile(error, final) from error
            raise
        message = text.strip().splitlines()[0][:_MAX_MESSAGE]
        refused = DumpRefused(message)
        return _without(lowered, options, refused)
    seconds = time.perf_counter() - begun
    final = _final_module(path, old_final)
    module, written = _last_module(_dumped(path, _PARTITIONED) - old_partitioned)
    if module is None:
        reason = ONE_DEVICE if _partitions(lowered) == 1 else NoDump()
        return Dumped(compiled, seconds, reason=reason, final=final)
    # The file system's clock can be slightly behind ours.
    partition_s = min(max(written - clock, 0.0), seconds)
    return Dumped(compiled, seconds, module, partition_s, final=final)


def _final_module(path: Path, old_files: _DumpedFiles) -> bytes | None:
    """Reads the final module and its buffers from a compile's dump; None if missing."""
    # Programs that offload to the host have no separate file for the host's code.
    files = sorted(_dumped(path, _FINAL) - old_files)
    return files[-1][2].read_bytes() if files else None


def _without(
    lowered: Lowered, options: Mapping[str, Any], reason: NotPartitioned
) -> Dumped:
    """Compiles without a dump, for the given reason."""
    begun = time.perf_counter()
    compiled = lowered.compile(compiler_options=dict(options) or None)
    return Dumped(compiled, time.perf_counter() - begun, reason=reason)


def _partitions(lowered: Lowered) -> int | None:
    """Returns the device count that a module is lowered for; None if unknown."""
    try:
        module: Any = lowered.compiler_ir()
        attributes = module.operation.attributes
        return int(str(attributes["mhlo.num_partitions"]).split(":")[0])
    except (AttributeError, KeyError, ValueError):
        return None
