"""Reads the flags that XLA takes from the environment."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping
from pathlib import Path


def xla_flags(environment: Mapping[str, str]) -> list[str]:
    """Returns the flags in `XLA_FLAGS`, or in a file it names, as XLA reads them.

    XLA stops at the first word that isn't a flag.

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
