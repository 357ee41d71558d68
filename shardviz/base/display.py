"""How values and work show themselves: in a notebook cell, and as a clock.

`core` draws no pictures: `shardviz/__init__.py` sets the renderer when the package is
imported.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, TextIO


class Displayed:
    """A value with a picture: text always, PNG where a notebook can show it."""

    __slots__ = ()
    renderer: ClassVar[Callable[[Any], dict[str, Any]] | None] = None

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> dict[str, Any]:
        if Displayed.renderer is None:
            return {"text/plain": repr(self)}
        return Displayed.renderer(self)


class Words:
    """How a value reaches its words, which `base.wording` finds.

    `shardviz/__init__.py` sets both when the package is imported.
    """

    sentence: ClassVar[Callable[[Any], str] | None] = None
    explanation: ClassVar[Callable[[Any], str] | None] = None


def sentence(fact: object) -> str:
    """A fact in one sentence; its repr where nothing says it."""
    return (Words.sentence or repr)(fact)


def explanation(value: object) -> str:
    """A value explained in several lines; its repr where nothing explains it."""
    return (Words.explanation or repr)(value)


class Fact:
    """A value of codes and fields. `str` of it is its sentence.

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
    """One line on a terminal that says what is done and for how long, until it is done.

    Nothing is written in the first seconds. To a stream that is no terminal, such as
    that of a notebook's cell, nothing is written unless lines are asked for.

    Args:
        what: what is worked on, such as the name of a program.
        stream: where to; by default the standard error.
        after: how many seconds pass before anything is written.
        every: seconds from one line to the next.
        lines: whether a stream that is no terminal gets a line of its own for each
            stage, at most one every 10 s.

    >>> with StageClock("step") as stage:
    ...     stage("compile")
    """

    def __init__(
        self,
        what: str,
        stream: TextIO | None = None,
        after: float = 2.0,
        every: float = 1.0,
        lines: bool = False,
    ) -> None:
        # Not as a default: pytest and notebooks replace sys.stderr.
        self._what, self._stream = what, stream or sys.stderr
        self._after, self._every, self._stage = after, every, ""
        self._lines = lines
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Callable[[str], None]:
        # A stream that was closed or replaced may have no isatty.
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
        begun, pause, shown = time.monotonic(), self._after, None
        while not self._done.wait(pause):
            # A stage that goes on is in the line before.
            if (stage := self._stage) != shown:
                line = clock_line(self._what, stage, time.monotonic() - begun)
                self._stream.write(f"{line}\n")
                self._stream.flush()
                shown = stage
            pause = max(self._every, _LINE_SECONDS)

    def _tick(self) -> None:
        begun, pause, length = time.monotonic(), self._after, 0
        while not self._done.wait(pause):
            line = clock_line(self._what, self._stage, time.monotonic() - begun)
            # Blanks, not an escape sequence, which some terminals print.
            self._stream.write(f"\r{line:<{length}}")
            self._stream.flush()
            pause, length = self._every, len(line)
        if length:
            self._stream.write("\r" + " " * length + "\r")
            self._stream.flush()


def clock_line(what: str, stage: str, seconds: float) -> str:
    """What a StageClock writes, in at most 79 letters.

    >>> clock_line("train_step", "compile", 83.4)
    'train_step: compile, 1:23'
    """
    minutes, rest = divmod(int(seconds), 60)
    end = f": {stage or 'begins'}, {minutes}:{rest:02}"
    # A line that wraps could not be overwritten by `\r`.
    most = 79 - len(end)
    if len(what) > most:
        what = what[: most - 1] + "…"
    return f"{what}{end}"
