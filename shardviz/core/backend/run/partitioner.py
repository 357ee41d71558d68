"""compile_with_dump(): compiles, and reads what XLA's partitioner made of the program.

XLA gives that module out in no other way than by dumping its passes to a folder.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax

from shardviz.core.backend.bridge import check_lowered_names
from shardviz.core.backend.run.folders import dump_root, make_folder, remove_folder
from shardviz.core.program.unpartitioned import Unpartitioned
from shardviz.core.xla.module import Module

# CPU and GPU write `after_spmd-partitioning`, TPU `after_tpu-spmd-partitioning`.
_PARTITIONED = re.compile(r"\.after_(?:tpu-)?spmd-partition(?:ing|er)\b.*\.hlo\.pb$")
_BEGUN = "before_optimizations"  # the module as it was given to the compiler
_NUMBER = re.compile(r"module_(\d+)\.")

#: The passes that are dumped, as a regular expression of XLA's.
PASSES = "spmd|shardy"
ONE_DEVICE = Unpartitioned("one device")

_MAX_MESSAGE = 300  # characters
_LEAST_FREE = 2**25  # bytes: of 64 devices a dump is about 1 MiB
_TO, _PASSES = "xla_dump_to", "xla_dump_hlo_pass_re"
_AS_PROTO, _AS_TEXT = "xla_dump_hlo_as_proto", "xla_dump_hlo_as_text"


class DumpedFile(NamedTuple):
    """A file of the dump: where it is, the number of its module, and when it was
    written.
    """

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
    """

    path: Path
    before: Mapping[Path, int]
    module: str | None

    def partitioned(self) -> DumpedFile | None:
        """The module after partitioning that was dumped last; None where there is none."""
        files = [f for f in self.files() if _PARTITIONED.search(f.path.name)]
        return max(files, key=lambda f: (f.number, f.written), default=None)

    def begun(self) -> bool:
        """Whether XLA wrote the module as it was given to the compiler."""
        return any(_BEGUN in file.path.name for file in self.files())

    def files(self) -> Iterator[DumpedFile]:
        """The files of our module, of every pass."""
        for path, stamp in stamps(self.path).items():
            number = _NUMBER.search(path.name)
            if number is None or self.before.get(path) == stamp:
                continue
            if self.module is not None and f".{self.module}." not in path.name:
                continue
            yield DumpedFile(path, int(number[1]), stamp / 1e9)


def stamps(root: Path) -> dict[Path, int]:
    """When each module in the folder was written, in nanoseconds.

    >>> stamps(Path("/nowhere"))
    {}
    """
    found: dict[Path, int] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            if name.endswith(".pb"):
                path = Path(folder, name)
                with contextlib.suppress(OSError):  # another compile removed its own
                    found[path] = path.stat().st_mtime_ns
    return found


def partitioned_module(
    folder: str | os.PathLike[str], module: str | None = None
) -> Module | None:
    """The module after partitioning, as soon as XLA has written it; None until then.

    Call it repeatedly while another thread or process compiles with a dump to `folder`.

    Args:
        folder: where XLA dumps to.
        module: the name of the module, `jit_f`; by default the last one that was
            partitioned.

    >>> with tempfile.TemporaryDirectory() as empty:
    ...     print(partitioned_module(empty))
    None
    """
    return read_module(DumpFolder(Path(folder), {}, module).partitioned())


def read_module(file: DumpedFile | None) -> Module | None:
    """The module of a dumped file; None where there is none, or not all of it yet."""
    if file is None:
        return None
    try:
        return Module(file.path.read_bytes())
    except (OSError, ValueError):
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

    Raises:
        ProgramError: for a mesh axis whose name this jaxlib cannot compile.
        Exception: whatever the compiler raises.

    >>> dumped = compile_with_dump(jax.jit(abs).lower(1.0))
    >>> dumped.partitioned, dumped.reason.code
    (None, 'one device')
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
        if error.reason.code != "no folder":
            # XLA must not be asked to dump there at all.
            options = _undumped(options)
        return _without(lowered, options, error.reason)


def requested_folder(options: Mapping[str, Any]) -> str | None:
    """The folder that the user's own options or `XLA_FLAGS` dump to; None for neither.

    >>> requested_folder({"xla_dump_to": "/tmp/mine"})
    '/tmp/mine'
    """
    return str(options[_TO]) if options.get(_TO) else _flag(_TO)


class _NoFolder(Exception):
    """Nothing can be dumped."""

    def __init__(self, reason: Unpartitioned) -> None:
        super().__init__(reason.code)
        self.reason = reason


@contextmanager
def _folder(options: Mapping[str, Any], folder: str | None) -> Iterator[Path]:
    named = requested_folder(options) or folder
    if named is not None:
        if "://" in named or named in ("-", "sponge"):
            raise _NoFolder(Unpartitioned("no folder", named))
        _refuse_unwritable(Path(named))
        yield Path(named)
        return
    try:
        made = make_folder("dump", dump_root())
    except OSError as error:
        refused = Unpartitioned("unwritable", dump_root(), error.strerror or "")
        raise _NoFolder(refused) from error
    try:
        _refuse_unwritable(made)
        yield made
    finally:
        remove_folder(made)  # XLA may still write to it, when a compile is cut short


def _refuse_unwritable(folder: Path) -> None:
    # XLA refuses the program where the folder takes no files, and where it is full,
    # LLVM ends the process.
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        refused = Unpartitioned("unwritable", str(folder), error.strerror or "")
        raise _NoFolder(refused) from error
    if free < _LEAST_FREE:
        full = Unpartitioned("nearly full", str(folder), free=free, needed=_LEAST_FREE)
        raise _NoFolder(full)


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
    dump = DumpFolder(path, stamps(path), name)
    clock, begun = time.time(), time.perf_counter()
    try:
        compiled = lowered.compile(compiler_options={**options, **added})
    except Exception as error:
        if not _is_of_the_dump(error, added, path):
            raise
        message = str(error).strip().splitlines()[0][:_MAX_MESSAGE]
        refused = Unpartitioned("refused", str(path), message)
        return _without(lowered, options, refused)
    seconds = time.perf_counter() - begun
    file = dump.partitioned()
    if file is None:
        return Dumped(compiled, seconds, reason=_why_none(dump, options))
    module = read_module(file)
    if module is None:
        incomplete = Unpartitioned("incomplete", str(path))
        return Dumped(compiled, seconds, reason=incomplete)
    # The clock of the files may tick a little behind ours.
    partition_s = min(max(file.written - clock, 0.0), seconds)
    return Dumped(compiled, seconds, module, partition_s)


def _without(lowered: Any, options: Mapping[str, Any], reason: Unpartitioned) -> Dumped:
    begun = time.perf_counter()
    compiled = lowered.compile(compiler_options=dict(options) or None)
    return Dumped(compiled, time.perf_counter() - begun, reason=reason)


def _undumped(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without the dump that they, or `XLA_FLAGS`, ask for."""
    kept = {
        name: value for name, value in options.items() if name not in (_TO, _PASSES)
    }
    if _flag(_TO) is not None:
        kept[_TO] = ""
    return kept


def _is_of_the_dump(error: Exception, added: Mapping[str, Any], path: Path) -> bool:
    """Whether a compile failed because of the dump: of an option we added, or a file."""
    text = str(error)
    if any(f"'{option}'" in text for option in added):
        return True
    return _TO in added and str(path) in text


def _why_none(dump: DumpFolder, options: Mapping[str, Any]) -> Unpartitioned:
    """Why a compile left no module of the partitioner."""
    passes = options.get(_PASSES) or _flag(_PASSES)
    if passes:
        return Unpartitioned("other passes", str(dump.path), str(passes))
    on_disk = getattr(jax.config, "jax_compilation_cache_dir", None)
    if on_disk and not dump.begun():
        return Unpartitioned("cached")
    return Unpartitioned("nothing", str(dump.path))


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
