"""write_text(): replaces a file atomically, so that it is never half written."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from shardviz.base.errors import ProgramError
from shardviz.base.format import shown


def write_text(path: str | os.PathLike[str], text: str, name: str) -> None:
    """Writes a text file in UTF-8, completely or not at all; creates its folder.

    Args:
        path: the path of the file.
        text: the whole content.
        name: a name for the content, for the error: `"a lock"`.

    Raises:
        ProgramError: if the file cannot be written; the old file is still there.

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
    target = Path(os.path.realpath(path))  # a link stays a link
    mode = None
    with contextlib.suppress(FileNotFoundError):
        mode = target.stat().st_mode
    if mode is not None and not stat.S_ISREG(mode):
        # A terminal or a pipe cannot be replaced; a folder is refused.
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
        # The file still exists only after an error or an interrupt.
        new.unlink(missing_ok=True)
