"""compile_with_dump(): compiles, and reads what XLA's partitioner made of the program.

XLA gives that module out in no other way than by dumping its passes to a folder.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardviz.core.backend.bridge import check_lowered_names
from shardviz.core.backend.run.folders import dump_root, make_folder, remove_folder
from shardviz.core.program.unpartitioned import Unpartitioned
from shardviz.core.xla.module import Module

# CPU and GPU write `after_spmd-partitioning`, TPU `after_tpu-spmd-partitioning`.
_PARTITIONED = re.compile(
    r"module_(\d+)\..*\.after_(?:tpu-)?spmd-partition(?:ing|er)\b.*\.hlo\.pb$"
)

#: The passes that are dumped, as a regular expression of XLA's.
PASSES = "spmd|shardy"
ONE_DEVICE = Unpartitioned("one device")

_MAX_MESSAGE = 300  # characters
_LEAST_FREE = 2**25  # bytes: of 64 devices a dump is about 1 MiB
_TO, _PASSES = "xla_dump_to", "xla_dump_hlo_pass_re"
_AS_PROTO, _AS_TEXT = "xla_dump_hlo_as_proto", "xla_dump_hlo_as_text"


def _stamps(folder: Path) -> dict[Path, int]:
    """When each module in a folder was written, in nanoseconds."""
    stamps: dict[Path, int] = {}
    for path in folder.rglob("*.pb"):
        with contextlib.suppress(OSError):  # another compile removed its own
            stamps[path] = path.stat().st_mtime_ns
    return stamps


def _partitioned_file(
    folder: Path, module: str | None, before: Mapping[Path, int] | None = None
) -> tuple[Path, float] | None:
    """The module after partitioning that was dumped last, and when; None for none.

    Args:
        folder: where XLA dumps to.
        module: the name of the module in file names; None for any.
        before: what was there before, and when it was written.
    """
    last = None
    for path, stamp in _stamps(folder).items():
        number = _PARTITIONED.search(path.name)
        if number is None or (before or {}).get(path) == stamp:
            continue
        if module is None or f".{module}." in path.name:
            key = int(number[1]), stamp
            last = max(last or (key, path), (key, path))
    return None if last is None else (last[1], last[0][1] / 1e9)


def partitioned_module(folder: str | os.PathLike[str]) -> Module | None:
    """The module after partitioning, as soon as XLA has written it; None until then.

    Call it repeatedly while another thread or process compiles with a dump to `folder`.

    >>> with tempfile.TemporaryDirectory() as empty:
    ...     print(partitioned_module(empty))
    None
    """
    file = _partitioned_file(Path(folder), None)
    return None if file is None else _read_module(file[0])


def _read_module(path: Path) -> Module | None:
    try:
        return Module(path.read_bytes())
    except (OSError, ValueError):  # not all of it is written yet
        return None


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
    """

    compiled: Any
    seconds: float
    partitioned: Module | None = None
    partition_s: float | None = None
    reason: Unpartitioned | None = None


def compile_with_dump(
    lowered: Any, options: Mapping[str, Any] | None = None, folder: str | None = None
) -> Dumped:
    """Compiles, and reads what XLA's partitioner made of the program.

    Args:
        lowered: jax's own `Lowered`.
        options: compiler options. A folder for dumps that they or `XLA_FLAGS` name is
            used.
        folder: else the folder for the dump, whose files stay; by default a temporary
            one.

    >>> import jax
    >>> dumped = compile_with_dump(jax.jit(abs).lower(1.0))
    >>> dumped.partitioned, dumped.reason.code
    (None, 'one device')
    """
    check_lowered_names(lowered)
    options = dict(options or {})
    name, partitions = _module(lowered)
    named = requested_folder(options)
    if partitions == 1 and named is None:
        return _without(lowered, options, ONE_DEVICE)
    if named is not None and ("://" in named or named in ("-", "sponge")):
        return _without(lowered, options, Unpartitioned("no folder", named))
    made = None
    path = Path(named or folder or dump_root())
    try:
        if named is None and folder is None:
            path = made = _make_folder(str(path))
        _try_to_write(path)
        if partitions == 1:
            return _without(lowered, options, ONE_DEVICE)
        return _compile(lowered, options, path, name)
    except _NotWritten as error:
        # XLA must not be asked to dump there: it refuses the program, or ends the
        # process.
        refused = Unpartitioned("no folder", str(path), str(error))
        return _without(lowered, _undumped(options), refused)
    finally:
        if made is not None:
            remove_folder(made)


def requested_folder(options: Mapping[str, Any]) -> str | None:
    """The folder that the user's own options or `XLA_FLAGS` dump to; None for neither.

    >>> requested_folder({"xla_dump_to": "/tmp/mine"})
    '/tmp/mine'
    """
    return str(options[_TO]) if options.get(_TO) else _flag(_TO)


class _NotWritten(Exception):
    """The folder for a dump takes no files."""


def _make_folder(root: str) -> Path:
    try:
        return make_folder("dump", root)
    except OSError as error:
        raise _NotWritten(error.strerror or str(error)) from error


def _try_to_write(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
        if shutil.disk_usage(folder).free < _LEAST_FREE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise _NotWritten(error.strerror or str(error)) from error


def _compile(
    lowered: Any, options: Mapping[str, Any], path: Path, name: str | None
) -> Dumped:
    added: dict[str, Any] = {}
    if requested_folder(options) is None:
        added[_TO] = str(path)
    elif not any(name in options or _flag(name) for name in (_AS_PROTO, _AS_TEXT)):
        # Their own dump is text, which XLA writes where no format is asked for.
        added[_AS_TEXT] = True
    if not options.get(_AS_PROTO):
        added[_AS_PROTO] = True
    if not options.get(_PASSES) and _flag(_PASSES) is None:
        added[_PASSES] = PASSES
    before = _stamps(path)
    clock, begun = time.time(), time.perf_counter()
    try:
        compiled = lowered.compile(compiler_options={**options, **added})
    except Exception as error:
        # Of an option that was added, or of a file of the dump?
        text = str(error)
        ours = any(f"'{option}'" in text for option in added)
        if not ours and not (_TO in added and str(path) in text):
            raise
        message = text.strip().splitlines()[0][:_MAX_MESSAGE]
        refused = Unpartitioned("refused", str(path), message)
        return _without(lowered, options, refused)
    seconds = time.perf_counter() - begun
    file = _partitioned_file(path, name, before)
    module = None if file is None else _read_module(file[0])
    if file is None or module is None:
        return Dumped(compiled, seconds, reason=Unpartitioned("nothing", str(path)))
    # The clock of the files may tick a little behind ours.
    partition_s = min(max(file[1] - clock, 0.0), seconds)
    return Dumped(compiled, seconds, module, partition_s)


def _without(lowered: Any, options: Mapping[str, Any], reason: Unpartitioned) -> Dumped:
    begun = time.perf_counter()
    compiled = lowered.compile(compiler_options=dict(options) or None)
    return Dumped(compiled, time.perf_counter() - begun, reason=reason)


def _undumped(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without the dump that they, or `XLA_FLAGS`, ask for."""
    kept = {k: v for k, v in options.items() if k not in (_TO, _PASSES)}
    if _flag(_TO) is not None:
        kept[_TO] = ""
    return kept


def _module(lowered: Any) -> tuple[str | None, int | None]:
    """The name of the lowered module and its number of devices; None where not known."""
    try:
        attributes = lowered.compiler_ir().operation.attributes
        name = str(attributes["sym_name"]).strip('"')
        # In the names of files every other byte is an underscore.
        name = re.sub(r"\\[0-9A-F]{2}|[^\w.\-]", "_", name, flags=re.ASCII)
        return name, int(str(attributes["mhlo.num_partitions"]).split(":")[0])
    except (AttributeError, KeyError, ValueError):
        return None, None


def xla_flags(environment: Mapping[str, str]) -> list[str]:
    """The flags in `XLA_FLAGS`, or in the file that it names, as XLA reads them.

    XLA reads nothing more from the first word on that is no flag.

    >>> xla_flags({"XLA_FLAGS": "--xla_dump_to='/tmp/my dump' --xla_a=1 word --xla_b=2"})
    ['--xla_dump_to=/tmp/my dump', '--xla_a=1']
    """
    text = environment.get("XLA_FLAGS", "").strip()
    if text and not text.startswith("-"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return []
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    return list(itertools.takewhile(lambda word: word.startswith("--"), words))


def _flag(name: str) -> str | None:
    """The value of an option in `XLA_FLAGS`; None where it is not there, or empty."""
    value = ""
    for flag in xla_flags(os.environ):
        if flag.startswith(f"--{name}="):
            value = flag.partition("=")[2]
    return value or None
