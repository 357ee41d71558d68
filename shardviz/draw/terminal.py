"""Bold and red for text in a terminal, and lines that fit its width."""

from __future__ import annotations

import os
from typing import TextIO

_BOLD, _RED, _END = "\x1b[1m", "\x1b[31m", "\x1b[0m"
# Lines about failed checks and errors begin with one of these.
FAILED = ("✗", "BROKEN")
# Names are not shortened to fewer characters.
_LEAST = 16
# A line is broken before these characters, and continues with this many more spaces.
_SEPARATOR, _INDENT = " · ", 4


def styled(text: str, stream: TextIO | None) -> str:
    """Makes the first line bold and failed checks red, if the stream shows colours.

    A terminal shows colours unless `NO_COLOR` is set (https://no-color.org) or `TERM`
    is `dumb`.

    >>> styled("step: ok", None)
    'step: ok'
    """
    # A replaced stream may lack isatty.
    is_terminal = getattr(stream, "isatty", bool)()
    if (
        not is_terminal
        or os.environ.get("NO_COLOR")
        or os.environ.get("TERM") == "dumb"
    ):
        return text
    lines, is_failed = [], False
    for number, line in enumerate(text.split("\n")):
        # Continuation lines of a failed check are indented.
        is_failed = line.startswith(FAILED) or (is_failed and line.startswith(" "))
        if is_failed:
            line = f"{_RED}{line}{_END}"
        elif number == 0:
            line = f"{_BOLD}{line}{_END}"
        lines.append(line)
    return "\n".join(lines)


def fitted(text: str, width: int) -> str:
    """Breaks lines that are too long at " · ", and shortens names that still do not fit.

    Names lose their beginnings, since the end of a long name says more. Numbers, such as
    device ids, are kept.

    >>> print(fitted("2 KiB · state/params/layers/attention/kernel · line 3", 30))
    2 KiB
        · …layers/attention/kernel
        · line 3
    """
    lines: list[str] = []
    for line in text.split("\n"):
        lines += _broken(line, width) if len(line) > width else [line]
    return "\n".join(lines)


def _broken(line: str, width: int) -> list[str]:
    """Breaks a line at its separators, and shortens each part to the width."""
    indent = " " * (len(line) - len(line.lstrip()) + _INDENT)
    first, *parts = line.split(_SEPARATOR)
    lines = [_shortened(first, width)]
    for part in parts:
        if len(lines[-1] + _SEPARATOR + part) <= width:
            lines[-1] += _SEPARATOR + part
        else:
            lines.append(_shortened(f"{indent}{_SEPARATOR.lstrip()}{part}", width))
    return lines


def _shortened(line: str, width: int) -> str:
    """Shortens the longest names in a line."""
    while len(line) > width:
        names = [word for word in line.split() if any(map(str.isalpha, word))]
        name = max(names, key=len, default="")
        size = max(_LEAST, len(name) - (len(line) - width))
        if size >= len(name):
            break
        line = line.replace(name, "…" + name[1 - size :], 1)
    return line
