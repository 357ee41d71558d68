"""Base classes for values that display themselves, and the clock for long work.

This module cannot import the code that draws pictures and writes sentences, which is
above it. `shardviz/__init__.py` connects them when the package is imported.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import ClassVar, TextIO


class Displayed:
    """A value with a picture. A notebook shows it as text, and as PNG if it can."""

    __slots__ = ()
    renderer: ClassVar[Callable[[object], dict[str, object]] | None] = None

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> dict[str, object]:
        if Displayed.renderer is None:
            return {"text/plain": repr(self)}
        return Displayed.renderer(self)


class Words:
    """The functions of `shardviz.wording`, set when the package is imported."""

    sentence: ClassVar[Callable[[object], str] | None] = None
    explanation: ClassVar[Callable[[object], str] | None] = None


def sentence(fact: object) -> str:
    """A fact in one sentence; its repr before the package is set up."""
    return (Words.sentence or repr)(fact)


def explanation(value: object) -> str:
    """A value explained in several lines; its repr before the package is set up."""
    return (Words.explanation or repr)(value)


class Fact:
    """A value made of codes and fields. Its `str` is its sentence.

    >>> from shardviz.plans.uncertain import Uncertain
    >>> fact = Uncertain("along", ("model",))
    >>> fact.code, str(fact)[:27]
    ('along', 'The estimate is uncertain h')
    """

    __slots__ = ()

    def __str__(self) -> str:
        return sentence(self)


_LINE_SECONDS = 10.0


class StageClock:
    """Shows the stage of long work and its duration, in one line of a terminal.

    Nothing is written in the first seconds. Nothing is written to a stream that is not
    a terminal, such as the output of a notebook cell, unless `lines` is true.

    Args:
        subject: the subject of the work, such as the name of a program.
        stream: the stream to write to; by default the standard error.
        after: seconds before anything is written.
        every: seconds from one update to the next.
        lines: whether a stream that is not a terminal gets a separate line for each
            stage, at most one every 10 s.

    >>> with StageClock("step") as stage:
    ...     stage("compile")
    """

    def __init__(
        self,
        subject: str,
        stream: TextIO | None = None,
        after: float = 2.0,
        every: float = 1.0,
        lines: bool = False,
    ) -> None:
        # Looked up late, since pytest and notebooks replace sys.stderr.
        self._subject, self._stream = subject, stream or sys.stderr
        self._after, self._every, self._stage = after, every, ""
        self._lines = lines
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Callable[[str], None]:
        # A replaced stream may lack isatty.
        tick = self._write_lines if self._lines else None
        if getattr(self._stream, "isatty", bool)():
            tick = self._tick
        if tick is not None:
            self._thread = threading.Thread(
                target=tick, name="shardviz-clock", daemon=True
            )
            self._thread.start()
        return self._enter

    def __exit__(self, *error: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _enter(self, stage: str) -> None:
        self._stage = stage

    def _write_lines(self) -> None:
        start, pause, shown = time.monotonic(), self._after, None
        while not self._done.wait(pause):
            # The previous line already names a stage that continues.
            if (stage := self._stage) != shown:
                line = clock_line(self._subject, stage, time.monotonic() - start)
                self._stream.write(f"{line}\n")
                self._stream.flush()
                shown = stage
            pause = max(self._every, _LINE_SECONDS)

    def _tick(self) -> None:
        start, pause, length = time.monotonic(), self._after, 0
        while not self._done.wait(pause):
            line = clock_line(self._subject, self._stage, time.monotonic() - start)
            # Padded with blanks, since some terminals print escape sequences.
            self._stream.write(f"\r{line:<{length}}")
            self._stream.flush()
            pause, length = self._every, len(line)
        if length:
            self._stream.write("\r" + " " * length + "\r")
            self._stream.flush()


def clock_line(subject: str, stage: str, seconds: float) -> str:
    """The line that a StageClock writes, of at most 79 letters.

    >>> clock_line("train_step", "compile", 83.4)
    'train_step: compile, 1:23'
    """
    minutes, remainder = divmod(int(seconds), 60)
    end = f": {stage or 'begins'}, {minutes}:{remainder:02}"
    # A line that wraps could not be overwritten after `\r`.
    most = 79 - len(end)
    if len(subject) > most:
        subject = subject[: most - 1] + "…"
    return f"{subject}{end}"
