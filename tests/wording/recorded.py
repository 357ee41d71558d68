"""Writes down what shardviz says while tests run: one example for each fact and error.

    make sentences

runs the tests with this plugin, and writes `sentences.md` beside it. The file is there to be read
aloud after a change of words; no test compares anything with it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from shardviz.base.display import Words
from shardviz.base.errors import ShardvizError

FILE = Path(__file__).with_name("sentences.md")
# What differs from machine to machine and from run to run.
_PATH = re.compile(r"(?<![\w.])/(?:[\w.@+-]+/)+")
_said: dict[str, str] = {}


def note(kind: str, words: str) -> None:
    """Keeps the shortest of what was said of a kind, and of equals the first by letters."""
    plain = _PATH.sub("/.../", words)
    known = _said.get(kind)
    if known is None or (len(plain), plain) < (len(known), known):
        _said[kind] = plain


def _kind(fact: object) -> str:
    name = type(fact).__name__
    for field in ("code", "outcome", "kind", "what"):
        code = getattr(fact, field, None)
        if isinstance(code, str) and code:
            return f"{name}: {code}"
        if code is not None and hasattr(code, "name"):
            return f"{name}: {code.name}"
    return name


def _recording(say: Any) -> Any:
    def recorded(fact: object) -> str:
        words = say(fact)
        note(_kind(fact), words)
        return words

    return recorded


def pytest_configure(config: pytest.Config) -> None:
    import shardviz  # noqa: F401  it sets the words

    for name in ("sentence", "explanation"):
        setattr(Words, name, staticmethod(_recording(getattr(Words, name))))
    plain = ShardvizError.__init__

    def recorded(self: ShardvizError, *args: Any) -> None:
        plain(self, *args)
        # Errors of one place differ in what they quote: what is left tells them apart.
        words = str(self)
        start = re.sub(r"\W+", " ", re.sub(r"'[^']*'|[\d.,]+", "", words)).split()[:4]
        note(f"{type(self).__name__}: {' '.join(start)}", words)

    ShardvizError.__init__ = recorded


def pytest_sessionfinish(session: pytest.Session) -> None:
    config: Any = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["sentences"] = dict(_said)
        return
    lines = ["# What shardviz says", "", "Written by `make sentences`; read, not compared.", ""]
    for kind, words in sorted(_said.items()):
        lines += [f"**{kind}**", "", *(f"> {line}" for line in words.splitlines()), ""]
    FILE.write_text("\n".join(lines), encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for kind, words in getattr(node, "workeroutput", {}).get("sentences", {}).items():
        note(kind, words)
