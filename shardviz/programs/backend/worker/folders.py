"""Temporary folders, each locked by the process that created it.

A killed process leaves its folders behind, which use memory if they are in /dev/shm.
Each folder contains a file that its process keeps locked. The system unlocks the file
when the process ends, so any process that finds it unlocked may remove the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from pathlib import Path

_MEMORY, _MIN_FREE = "/dev/shm", 2**28
_LOCK = "owner.lock"
# File descriptors that hold the locks of this process's folders.
_LOCKS: dict[Path, int] = {}
# Folders of this process whose removal has begun.
_REMOVED: set[Path] = set()


def dump_root() -> str:
    """Returns a folder for dumps, in memory if enough is free, otherwise on disk.

    A CPU compile dumps about 1 MiB. Writing it to disk takes longer than compiling.

    >>> os.path.isdir(dump_root())
    True
    """
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(_MEMORY).free
        if free >= _MIN_FREE and os.access(_MEMORY, os.W_OK):
            return _MEMORY
    return tempfile.gettempdir()


def make_folder(kind: str, root: str) -> Path:
    """Creates a folder that belongs to this process.

    Args:
        kind: its purpose, one lower-case word, which becomes part of the name.
        root: the folder in which it is created.

    Raises:
        OSError: if the folder cannot be created.

    >>> folder = make_folder("example", tempfile.gettempdir())
    >>> remove_folder(folder)
    """
    folder = Path(root, f"shardviz-{kind}-{os.getpid()}-{secrets.token_hex(4)}")
    # The name is set before the folder exists, so an interrupt at any point removes it.
    try:
        folder.mkdir(0o700)
        _LOCKS[folder] = os.open(folder / "new", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(_LOCKS[folder], fcntl.LOCK_EX)
        # The lock file is renamed only once it is locked, so no process finds it
        # unlocked.
        os.rename(folder / "new", folder / _LOCK)
    except BaseException:
        remove_folder(folder)
        raise
    return folder


def remove_folder(folder: Path) -> None:
    """Removes a folder created by `make_folder`."""
    # If this is interrupted, `remove_abandoned` finishes the removal.
    _REMOVED.add(folder)
    shutil.rmtree(folder, ignore_errors=True)
    lock = _LOCKS.pop(folder, None)
    if lock is not None:
        os.close(lock)
    _REMOVED.discard(folder)


def remove_abandoned(*roots: str) -> None:
    """Removes the folders of processes that have ended.

    Args:
        *roots: folders to search; by default those that `dump_root` may return.
    """
    for folder in _REMOVED.copy():
        remove_folder(folder)
    for root in dict.fromkeys(roots or (_MEMORY, tempfile.gettempdir())):
        for lock_file in Path(root).glob(f"shardviz-*/{_LOCK}"):
            with contextlib.suppress(OSError):  # another user's folder, locked, or gone
                lock = os.open(lock_file, os.O_RDWR)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock_file.parent, ignore_errors=True)
                finally:
                    os.close(lock)
