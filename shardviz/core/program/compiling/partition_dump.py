"""The files that XLA dumps while it compiles: which of them is wanted, and whether it is whole."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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


def dump_place() -> str:
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
        return newest(self.files(), pattern)

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


def newest(
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
