"""The files that XLA dumps while it compiles: which of them is wanted, and whether it is whole."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax

from shardviz.core.hlo.collectives import read_collectives
from shardviz.core.program.report import Collective

# CPU and GPU write `after_spmd-partitioning`, TPU `after_tpu-spmd-partitioning`.
PARTITIONED = re.compile(r"\.after_(?:tpu-)?spmd-partition(?:ing|er)\b.*\.txt$")
PROPAGATED = re.compile(r"\.after_(?:tpu-)?shardy-xla\b.*\.txt$")

_NUMBER = re.compile(r"module_(\d+)\.")
_MEMORY, _ROOM = "/dev/shm", 2**28


def partitioned_text(folder: str | os.PathLike[str], module: str | None = None) -> str | None:
    """The module after partitioning, as soon as XLA has written it; None until then.

    To be asked again and again while another thread or process compiles with a dump to `folder`.

    Args:
        folder: where XLA dumps to.
        module: the name of the module, `jit_f`; the last one that was partitioned where not given.

    >>> with tempfile.TemporaryDirectory() as empty:
    ...     print(partitioned_text(empty))
    None
    """
    found = DumpFolder(Path(folder), {}, module).find(PARTITIONED)
    text = read_text(found)
    return text if text is not None and _is_complete(text) else None


def dump_root() -> str:
    """Where a folder for a dump is best made: in memory where there is room, else with temporaries.

    A CPU compile dumps its machine code too, a MiB or so; on a disk that is most of what the dump
    costs.

    >>> os.path.isdir(dump_place())
    True
    """
    try:
        room = shutil.disk_usage(_MEMORY).free
    except OSError:
        room = 0
    return _MEMORY if room >= _ROOM and os.access(_MEMORY, os.W_OK) else tempfile.gettempdir()


class DumpedFile(NamedTuple):
    """A file of the dump: where it is, the number of its module, and when it was written."""

    path: Path
    number: int
    written: float


@dataclass(frozen=True)
class DumpFolder:
    """The files that one compile adds to a folder: those that were not there before.

    Attributes:
        place: the folder.
        before: what stood there before, and when it was written.
        module: the name of the module as it stands in the names of files; None for any.

    >>> with tempfile.TemporaryDirectory() as empty:
    ...     print(DumpFolder(Path(empty), {}, "jit_f").find(PARTITIONED))
    None
    """

    place: Path
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
        for path, stamp in stamps(self.place).items():
            number = _NUMBER.search(path.name)
            if number is None or self.before.get(path) == stamp:
                continue
            if self.module is not None and f".{self.module}." not in path.name:
                continue
            yield DumpedFile(path, int(number[1]), stamp / 1e9)


def latest_dump(
    files: Iterable[DumpedFile], pattern: re.Pattern[str], number: int | None = None
) -> DumpedFile | None:
    """The file of a pass that was dumped last; of one module, where its number is given.

    >>> files = [DumpedFile(Path(f"module_{n}.jit_f.after_shardy-xla.txt"), n, 0.0) for n in (1, 2)]
    >>> newest(files, PROPAGATED).number, newest(files, PROPAGATED, 1).number
    (2, 1)
    """
    found = [f for f in files if pattern.search(f.path.name) and number in (None, f.number)]
    return max(found, key=lambda f: (f.number, f.written), default=None)


def stamps(place: Path) -> dict[Path, int]:
    """When each text in the folder was written, in nanoseconds.

    >>> stamps(Path("/nowhere"))
    {}
    """
    found = {}
    for folder, _, names in os.walk(place):
        for name in names:
            if name.endswith(".txt"):
                path = Path(folder, name)
                with contextlib.suppress(OSError):  # another compile removed its own
                    found[path] = path.stat().st_mtime_ns
    return found


def read_text(found: DumpedFile | None) -> str | None:
    """What stands in a file of the dump; None where there is none, or no more.

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


def requested_folder(options: Mapping[str, Any]) -> str | None:
    """The folder that a person's own options or `XLA_FLAGS` dump to; None where neither does.

    >>> asked_folder({"xla_dump_to": "/tmp/mine"})
    '/tmp/mine'
    """
    return str(options[_TO]) if options.get(_TO) else _flag(_TO)


class _NoFolder(Exception):
    """Nothing can be dumped; the text says why."""


@contextmanager
def _folder(options: Mapping[str, Any], folder: str | None) -> Iterator[Path]:
    given = requested_folder(options) or folder
    if given is not None:
        if "://" in given or given in ("-", "sponge"):
            raise _NoFolder(f"{given!r}, where it was asked to go, is no folder.")
        yield Path(given)
        return
    try:
        # XLA may still write to it while it is removed, when a compile is cut short.
        temporary = tempfile.TemporaryDirectory(
            prefix="shardviz-dump-", dir=dump_root(), ignore_cleanup_errors=True
        )
    except OSError as error:
        raise _NoFolder(f"{error}.") from error
    with temporary as made:
        yield Path(made)


def _compile(lowered: Any, options: Mapping[str, Any], place: Path, name: str | None) -> Dumped:
    asked = {}
    if requested_folder(options) is None:
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
    found = latest_dump(files, PARTITIONED)
    text = read_text(found)
    if found is None or text is None:
        return Dumped(compiled, seconds, None, None, None, _why_none(dump, options))
    # The clock of the files may tick a little behind ours.
    partition_s = min(max(found.written - clock, 0.0), seconds)
    propagated = read_text(latest_dump(files, PROPAGATED, found.number))
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
