"""Temporary folders that know the process they belong to.

A process that was killed leaves its folders behind, and its memory with them where they
lie in memory. `remove_abandoned()` removes those, and none of a process that still
runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import socket
import tempfile
from pathlib import Path

_MEMORY, _MIN_FREE = "/dev/shm", 2**28
_BOOT, _NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
_NAME = re.compile(r"shardviz-[a-z]+-([0-9a-f]{8})-(\d+)-(\d+)-\w+")


def dump_root() -> str:
    """Where to make folders for dumps: in memory where enough is free, else on the disk.

    A CPU compile dumps about 1 MiB, and writing that to a disk takes longer than all
    else.

    >>> os.path.isdir(dump_root())
    True
    """
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(_MEMORY).free
        if free >= _MIN_FREE and os.access(_MEMORY, os.W_OK):
            return _MEMORY
    return tempfile.gettempdir()


def make_folder(kind: str, root: str) -> Path:
    """A new folder of this process.

    Args:
        kind: what it is for, one word of small letters: it is part of the name.
        root: the folder to make it in.

    Raises:
        OSError: where none can be made.

    >>> folder = make_folder("example", tempfile.gettempdir())
    >>> owner_of(folder.name) == os.getpid()
    True
    >>> remove_folder(folder)
    """
    owner = os.getpid()
    prefix = f"shardviz-{kind}-{_machine()}-{owner}-{_started(owner) or 0}-"
    return Path(tempfile.mkdtemp(prefix=prefix, dir=root))


def remove_folder(folder: Path) -> None:
    """Removes a folder that `make_folder` made, in the process that made it only.

    A forked child inherits its parent's cleaning up, which must do nothing there.
    """
    if owner_of(folder.name) == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def owner_of(name: str) -> int | None:
    """The process that made a folder of this name; None for any other folder.

    >>> owner_of("shardviz-dump-0123abcd-4711-8150-x_y"), owner_of("something-else")
    (4711, None)
    """
    found = _NAME.fullmatch(name)
    return int(found[2]) if found else None


def remove_abandoned(*roots: str) -> None:
    """Removes the folders of processes that have ended.

    Those of other users, machines and containers are left alone.

    Args:
        *roots: where to look; by default wherever `dump_root` may be.
    """
    for root in dict.fromkeys(roots or (_MEMORY, tempfile.gettempdir())):
        try:
            entries = list(os.scandir(root))
        except OSError:
            continue  # no such folder on this system
        for entry in entries:
            if _is_abandoned(entry):
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    found = _NAME.fullmatch(entry.name)
    if found is None or found[1] != _machine():
        return False
    if not entry.is_dir(follow_symlinks=False):
        return False
    with contextlib.suppress(OSError):
        if entry.stat(follow_symlinks=False).st_uid == os.getuid():
            return not _runs(int(found[2]), int(found[3]))
    return False  # another user's, or gone meanwhile


def pid_exists(pid: int) -> bool:
    """Whether a process of this machine has that number.

    >>> pid_exists(os.getpid())
    True
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it runs, and is not ours
    return True


def _runs(pid: int, started: int) -> bool:
    """Whether a process that started then still runs; a later one may have its number."""
    now = _started(pid)
    return pid_exists(pid) and (not started or now is None or now == started)


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks of the system; None without Linux."""
    try:
        # The name before it, in brackets, may hold anything.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _machine() -> str:
    """A digest of the machine since it started, and of the container."""
    parts = [socket.gethostname()]
    for read in (_BOOT.read_text, lambda: os.readlink(_NAMESPACE)):
        try:
            parts.append(read())
        except OSError:
            continue  # not Linux
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
