"""write_text(): files that hold the old text or the new one, and never half of either."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from shardviz.base.errors import ProgramError
from shardviz.base.format import shown


def write_text(path: str | os.PathLike[str], text: str, name: str) -> None:
    """Writes a text file in UTF-8, as a whole or not at all; creates its folder.

    Args:
        path: of the file.
        text: all that it should hold.
        name: what is written, for the error: `"a lock"`.

    Raises:
        ProgramError: if the file cannot be written; the old one is still there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(f"{folder}/new/x", "text", "an example")
    ...     os.listdir(f"{folder}/new")
    ['x']
    """
    try:
        _replace(Path(path), text)
    except (OSError, TypeError, ValueError) as error:  # ValueError: NUL in the path
        why = getattr(error, "strerror", None) or error
        raise ProgramError(
            f"Cannot write {name} to {shown(str(path))}: {why}."
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
        # It is still there only after an error or an interrupt.
        new.unlink(missing_ok=True)
