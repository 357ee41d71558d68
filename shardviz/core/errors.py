"""The exceptions, and the few helpers that word them.

    ShardvizError (a ValueError)
    ├── MeshError        a mesh that cannot be: names, sizes, axis types, device ids
    ├── SpecError        a PartitionSpec that cannot be read or does not fit its mesh or array
    ├── RuleError        an axis-rule table or logical names that cannot be read
    ├── LayoutError      an array that cannot be laid out: sizes that do not divide, wrong rank
    ├── ProgramError     a program whose arguments, specs or options do not fit together
    ├── TargetError      devices that are not there, or not enough of them, or too small
    └── MissingPackage   an optional package that a door needs

Every message says what was wrong, what we got, and what to do, in that order.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable

MOST_COMPARED = 1000  # names; a slip of the pen is not worth a second


class ShardvizError(ValueError):
    """Anything shardviz refuses. The message is made to be shown to a person as it stands.

    >>> issubclass(ShardvizError, ValueError)
    True
    """


class MeshError(ShardvizError):
    """A mesh that cannot be."""


class SpecError(ShardvizError):
    """A PartitionSpec that cannot be read, or that does not fit its mesh or array."""


class RuleError(ShardvizError):
    """Axis rules or logical axis names that cannot be read."""


class LayoutError(ShardvizError):
    """An array that cannot be laid out as asked."""


class ProgramError(ShardvizError):
    """A program whose function, arguments, specs or options do not fit together."""


class TargetError(ShardvizError):
    """Devices that are not there, are too few, or have too little memory."""


class MissingPackage(ShardvizError):
    """A door was opened whose package is not installed."""


def shown(value: object, limit: int = 60) -> str:
    """`value` as it may stand in a message: one line, printable, at most `limit` characters.

    >>> shown("a\\x00b"), shown("x" * 100, 10)
    ("'a\\\\x00b'", "'xxxxxxxx…")
    """
    if isinstance(value, int) and value.bit_length() > 1000:  # Python may refuse to print it
        return f"a number of about {int(value.bit_length() * 0.30103) + 1:,} digits"
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  a foreign __repr__ may raise anything
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def listed(values: Iterable[object], word: str = "and", limit: int = 8) -> str:
    """Values as a phrase: `'a', 'b' and 'c'`; long lists are cut and counted.

    >>> listed(["a", "b", "c"])
    "'a', 'b' and 'c'"
    """
    parts = [shown(v) for v in values]
    if len(parts) > limit:
        return ", ".join(parts[:limit]) + f" {word} {len(parts) - limit} more"
    if len(parts) < 2:
        return "".join(parts)
    return ", ".join(parts[:-1]) + f" {word} {parts[-1]}"


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name closest in spelling to `name`, or None where nothing is close.

    >>> nearest("embded", ["embed", "mlp"])
    'embed'
    """
    if not isinstance(name, str):
        return None
    some = [str(k) for k in itertools.islice(known, MOST_COMPARED)]
    close = difflib.get_close_matches(name[:200], some, n=1, cutoff=0.6)
    return close[0] if close else None


def suggestion(name: object, known: Iterable[str]) -> str:
    """` Did you mean 'embed'?`, or the names there are, or nothing; made to be appended.

    >>> suggestion("embded", ["embed", "mlp"])
    " Did you mean 'embed'?"
    """
    names = [str(k) for k in known]
    close = nearest(name, names)
    if close is not None:
        return f" Did you mean {shown(close)}?"
    return f" Known: {listed(names)}." if names else ""


def plural(count: int, noun: str, form: str | None = None) -> str:
    """`1 device`, `2 devices`, `2 replicas`.

    >>> plural(1, "device"), plural(2, "device"), plural(2, "axis", "axes")
    ('1 device', '2 devices', '2 axes')
    """
    return f"{count:,} {noun if count == 1 else form or noun + 's'}"


def bytes_text(count: int) -> str:
    """Bytes in binary units, as people read them.

    >>> bytes_text(0), bytes_text(1536), bytes_text(2 << 20), bytes_text(5 << 40)
    ('0 B', '1.5 KiB', '2 MiB', '5 TiB')
    """
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.1f}".removesuffix(".0") + f" {units[0]}"
