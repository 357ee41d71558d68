"""compile_with_dump(): compiles, and reads what XLA's partitioner made of the program.

XLA gives that text out in no other way than by dumping its passes to a folder.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax

from shardviz.core.backend.bridge import check_lowered_names
from shardviz.core.backend.folders import dump_root, make_folder, remove_folder
from shardviz.core.format import bytes_text

# CPU and GPU write `after_spmd-partitioning`, TPU `after_tpu-spmd-partitioning`.
PARTITIONED = re.compile(r"\.after_(?:tpu-)?spmd-partition(?:ing|er)\b.*\.txt$")

_NUMBER = re.compile(r"module_(\d+)\.")


def partitioned_text(folder: str | os.PathLike[str], module: str | None = None) -> str | None:
    """The module after partitioning, as soon as XLA has written it; None until then.

    Call it repeatedly while another thread or process compiles with a dump to `folder`.

    Args:
        folder: where XLA dumps to.
        module: the name of the module, `jit_f`; by default the last one that was partitioned.

    >>> with tempfile.TemporaryDirectory() as empty:
    ...     print(partitioned_text(empty))
    None
    """
    found = DumpFolder(Path(folder), {}, module).find(PARTITIONED)
    text = read_text(found)
    return text if text is not None and _is_complete(text) else None


class DumpedFile(NamedTuple):
    """A file of the dump: where it is, the number of its module, and when it was written."""

    path: Path
    number: int
    written: float


@dataclass(frozen=True)
class DumpFolder:
    """The files that one compile adds to a folder: those that were not there before.

    Attributes:
        path: the folder.
        before: the files that were there before, and when each was written.
        module: the name of the module in file names; None for any.

    >>> with tempfile.TemporaryDirectory() as empty:
    ...     print(DumpFolder(Path(empty), {}, "jit_f").find(PARTITIONED))
    None
    """

    path: Path
    before: Mapping[Path, int]
    module: str | None

    def find(self, pattern: re.Pattern[str]) -> DumpedFile | None:
        """The file of our module; the one that was dumped last, where there are several."""
        return latest_dump(self.files(), pattern)

    def began(self) -> bool:
        """Whether XLA wrote the module as it was given to the compiler."""
        return any("before_optimizations" in f.path.name for f in self.files())

    def files(self) -> Iterator[DumpedFile]:
        """The files of our module, of every pass."""
        for path, stamp in stamps(self.path).items():
            number = _NUMBER.search(path.name)
            if number is None or self.before.get(path) == stamp:
                continue
            if self.module is not None and f".{self.module}." not in path.name:
                continue
            yield DumpedFile(path, int(number[1]), stamp / 1e9)


def latest_dump(files: Iterable[DumpedFile], pattern: re.Pattern[str]) -> DumpedFile | None:
    """The file of a pass that was dumped last.

    >>> names = ("module_1.jit_f.after_spmd-partitioning.txt", "module_2.jit_f.before.txt")
    >>> latest_dump([DumpedFile(Path(name), 1, 0.0) for name in names], PARTITIONED).path.name
    'module_1.jit_f.after_spmd-partitioning.txt'
    """
    found = [f for f in files if pattern.search(f.path.name)]
    return max(found, key=lambda f: (f.number, f.written), default=None)


def stamps(root: Path) -> dict[Path, int]:
    """When each text in the folder was written, in nanoseconds.

    >>> stamps(Path("/nowhere"))
    {}
    """
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            if name.endswith(".txt"):
                path = Path(folder, name)
                with contextlib.suppress(OSError):  # another compile removed its own
                    found[path] = path.stat().st_mtime_ns
    return found


def read_text(found: DumpedFile | None) -> str | None:
    """The text of a dumped file; None where there is none, or it was removed.

    >>> read_text(None) is None
    True
    """
    try:
        return found.path.read_text(encoding="utf-8", errors="replace") if found else None
    except OSError:
        return None


def _is_complete(text: str) -> bool:
    # XLA prints the entry computation last, and its closing brace stands alone on a line.
    return "\nENTRY " in text and text.rstrip().endswith("\n}")


PASSES = "spmd|shardy"
ONE_DEVICE = "The program is for one device, so there is nothing to partition."

_MAX_MESSAGE = 300  # characters
_LEAST_FREE = 2**25  # bytes: of 64 devices a dump is about 1 MiB
_TO, _PASSES = "xla_dump_to", "xla_dump_hlo_pass_re"


@dataclass(frozen=True, eq=False)
class Dumped:
    """A compiled program, and what XLA dumped meanwhile.

    Attributes:
        compiled: jax's own `Compiled`.
        seconds: how long the whole compile took.
        partitioned_text: the module straight after SPMD partitioning, for one device; or None.
        partition_s: seconds until the partitioner was done; None where it left no text.
        reason: why there is no text of the partitioner, in one sentence; else `""`.

    >>> Dumped(None, 0.5, None, None, ONE_DEVICE).reason
    'The program is for one device, so there is nothing to partition.'
    """

    compiled: Any
    seconds: float
    partitioned_text: str | None
    partition_s: float | None
    reason: str


def compile_with_dump(
    lowered: Any, options: Mapping[str, Any] | None = None, folder: str | None = None
) -> Dumped:
    """Compiles, and reads what XLA's partitioner made of the program.

    Args:
        lowered: jax's own `Lowered`.
        options: compiler options. A folder for dumps that they or `XLA_FLAGS` name is used.
        folder: else the folder for the dump, whose files stay; by default a temporary one.

    Raises:
        ProgramError: for a mesh axis whose name this jaxlib cannot compile.
        Exception: whatever the compiler raises.

    >>> dumped = compile_with_dump(jax.jit(abs).lower(1.0))
    >>> dumped.partitioned_text, dumped.reason
    (None, 'The program is for one device, so there is nothing to partition.')
    """
    check_lowered_names(lowered)
    options = dict(options or {})
    name, partitions = _module(lowered)
    single = partitions == 1
    if single and requested_folder(options) is None:
        return _without(lowered, options, ONE_DEVICE)
    try:
        with _folder(options, folder) as path:
            if single:
                return _without(lowered, options, ONE_DEVICE)
            return _compile(lowered, options, path, name)
    except _NoFolder as error:
        if isinstance(error, _Unwritable):
            options = _undumped(options)
        reason = f"There is no folder for XLA's dump: {error} What its partitioner made is unknown."
        return _without(lowered, options, reason)


def requested_folder(options: Mapping[str, Any]) -> str | None:
    """The folder that the user's own options or `XLA_FLAGS` dump to; None where neither does.

    >>> requested_folder({"xla_dump_to": "/tmp/mine"})
    '/tmp/mine'
    """
    return str(options[_TO]) if options.get(_TO) else _flag(_TO)


class _NoFolder(Exception):
    """Nothing can be dumped; the text says why."""


class _Unwritable(_NoFolder):
    """The folder takes no files, so that XLA must not be asked to dump there at all."""


@contextmanager
def _folder(options: Mapping[str, Any], folder: str | None) -> Iterator[Path]:
    given = requested_folder(options) or folder
    if given is not None:
        if "://" in given or given in ("-", "sponge"):
            raise _NoFolder(f"{given!r}, where it was to go, is no folder.")
        _refuse_unwritable(Path(given))
        yield Path(given)
        return
    try:
        made = make_folder("dump", dump_root())
    except OSError as error:
        raise _NoFolder(f"{error}.") from error
    try:
        _refuse_unwritable(made)
        yield made
    finally:
        remove_folder(made)  # XLA may still write to it, when a compile is cut short


def _refuse_unwritable(folder: Path) -> None:
    # XLA refuses the program where the folder takes no files, and where it is full, LLVM ends the
    # process.
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise _Unwritable(
            f"{folder} takes no files ({error.strerror}): free some space or name another one."
        ) from error
    if free < _LEAST_FREE:
        raise _Unwritable(
            f"{folder} has {bytes_text(free)} left, and a dump may need {bytes_text(_LEAST_FREE)}:"
            " free some space or name another one."
        )


def _compile(lowered: Any, options: Mapping[str, Any], path: Path, name: str | None) -> Dumped:
    added = {}
    if requested_folder(options) is None:
        added[_TO] = str(path)
    if not options.get(_PASSES) and _flag(_PASSES) is None:
        added[_PASSES] = PASSES
    dump = DumpFolder(path, stamps(path), name)
    clock, begun = time.time(), time.perf_counter()
    try:
        compiled = lowered.compile(compiler_options={**options, **added})
    except Exception as error:
        if not _is_of_the_dump(error, added, path):
            raise
        words = str(error).strip().splitlines()[0]
        return _without(lowered, options, f"XLA cannot dump this program: {words[:_MAX_MESSAGE]}")
    seconds = time.perf_counter() - begun
    files = list(dump.files())
    found = latest_dump(files, PARTITIONED)
    text = read_text(found)
    if found is None or text is None:
        return Dumped(compiled, seconds, None, None, _why_none(dump, options))
    if not _is_complete(text):
        reason = f"XLA could not write all of its partitioner's text to {path}: it may be full."
        return Dumped(compiled, seconds, None, None, reason)
    # The clock of the files may tick a little behind ours.
    partition_s = min(max(found.written - clock, 0.0), seconds)
    return Dumped(compiled, seconds, text, partition_s, "")


def _without(lowered: Any, options: Mapping[str, Any], reason: str) -> Dumped:
    begun = time.perf_counter()
    compiled = lowered.compile(compiler_options=dict(options) or None)
    return Dumped(compiled, time.perf_counter() - begun, None, None, reason)


def _undumped(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without the dump that they, or `XLA_FLAGS`, ask for."""
    kept = {name: value for name, value in options.items() if name not in (_TO, _PASSES)}
    return {**kept, _TO: ""} if _flag(_TO) is not None else kept


def _is_of_the_dump(error: Exception, added: Mapping[str, Any], path: Path) -> bool:
    """Whether a compile failed because of the dump: an option we added, or one of its files."""
    if _TO not in added and _PASSES not in added:
        return False
    text = str(error)
    return any(f"'{option}'" in text for option in added) or (_TO in added and str(path) in text)


def _why_none(dump: DumpFolder, options: Mapping[str, Any]) -> str:
    """Why a compile left no text of the partitioner."""
    passes = options.get(_PASSES) or _flag(_PASSES)
    if passes:
        return (
            f"XLA was asked to dump the passes {str(passes)!r} only, and wrote none of"
            f" {PASSES!r}: add these to {_PASSES}."
        )
    if getattr(jax.config, "jax_compilation_cache_dir", None) and not dump.began():
        return (
            "The executable came out of jax's compilation cache on disk, so nothing was"
            " partitioned. Without jax_compilation_cache_dir it is compiled again."
        )
    return f"XLA wrote no text of its partitioner to {dump.path}."


def _module(lowered: Any) -> tuple[str | None, int | None]:
    """The name of the lowered module and its number of devices; None where it does not say."""
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
    values = [f.partition("=")[2] for f in xla_flags(os.environ) if f.startswith(f"--{name}=")]
    return values[-1] or None if values else None
