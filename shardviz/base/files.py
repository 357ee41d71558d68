"""write_text(): replaces a file atomically, so that no reader sees half of it."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from shardviz.base.errors import ProgramError
from shardviz.base.format import shown


def write_text(path: str | os.PathLike[str], text: str, name: str) -> None:
    """Writes UTF-8 text to a file, completely or not at all; creates missing folders.

    Args:
        path: the path of the file.
        text: the complete content.
        name: a name for the content in the error message, such as `"a lock"`.

    Raises:
        ProgramError: if the file cannot be written. An existing file then stays
            unchanged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(f"{folder}/new/x", "text", "an example")
    ...     os.listdir(f"{folder}/new")
    ['x']
    """
    try:
        _replace(Path(path), text)
    except (OSError, TypeError, ValueError) as error:  # ValueError: NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise ProgramError(
            f"Cannot write {name} to {shown(str(path))}: {reason}."
        ) from None


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    target = Path(os.path.realpath(path))  # keeps a symlink, replaces its target
    mode = None
    with contextlib.suppress(FileNotFoundError):
        mode = target.stat().st_mode
    if mode is not None and not stat.S_ISREG(mode):
        # A terminal or pipe cannot be replaced, so write to it. For a folder, raise.
        target.write_text(text, encoding="utf-8", newline="\n")
        return
    new = target.with_name(f".shardviz-{secrets.token_hex(8)}")
    try:
        with new.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            os.fsync(file.fileno())
        os.replace(new, target)
    finally:
        # After success this name no longer exists; after an error, remove the file.
        new.unlink(missing_ok=True)
