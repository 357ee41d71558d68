"""Base classes for values that display themselves, and a clock for long work.

The code that draws pictures and writes sentences imports this module, so this module
cannot import that code. `shardviz/__init__.py` connects the two when it is imported.
"""

from __future__ import annotations

import html
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TextIO
from uuid import uuid4

from shardviz.base.plain import Plain

if TYPE_CHECKING:
    from shardviz.base.typing import JsonDict


class Displayed(Plain):
    """A value with a picture. Notebooks show it as text, and if possible as PNG."""

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
    """Returns a fact's sentence; its repr while shardviz is being imported."""
    return (Words.sentence or repr)(fact)


def explanation(value: object) -> str:
    """Explains a value in several lines; its repr while shardviz is being imported."""
    return (Words.explanation or repr)(value)


class Fact(Plain):
    """A value that holds codes and fields, and whose `str` is a sentence.

    >>> from shardviz.plans.uncertain import Uncertain
    >>> fact = Uncertain("along", ("model",))
    >>> fact.code, str(fact)[:27]
    ('along', 'The estimate is uncertain h')
    """

    __slots__ = ()

    def __str__(self) -> str:
        return sentence(self)

    def to_dict(self) -> JsonDict:
        """Returns the attributes as plain data, with the class and the sentence."""
        return {"fact": type(self).__name__, **super().to_dict(), "text": str(self)}


class StageClock:
    """Shows the stage and the duration of long work, in one line while it lasts.

    Shows nothing in the first seconds. Shows the line only on a terminal, in standard
    error, or in the output of a notebook cell, with a moving bar.

    Args:
        subject: a name for the work, such as the name of a program.
        stream: the stream to write to; standard error by default.
        after: seconds before anything is written.
        every: seconds from one update to the next.
        hint: added to the line; `{}` stands for the way to interrupt.
        stage: the first stage.

    >>> with StageClock("step") as stage:
    ...     stage("compile")
    """

    def __init__(
        self,
        subject: str,
        stream: TextIO | None = None,
        after: float = 3.0,
        every: float = 1.0,
        hint: str = "",
        stage: str = "",
    ) -> None:
        # Read sys.stderr at call time, because pytest and notebooks replace it.
        self._subject, self._stream = subject, stream or sys.stderr
        self._after, self._every, self._stage = after, every, stage
        self._in_notebook = type(self._stream).__module__.startswith("ipykernel.")
        self._hint = hint.format("Interrupt" if self._in_notebook else "Ctrl-C")
        self._done, self._display_id = threading.Event(), uuid4().hex
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Callable[[str], None]:
        # A replaced stream may lack isatty.
        if self._in_notebook or getattr(self._stream, "isatty", bool)():
            self._thread = threading.Thread(
                target=self._tick, name="shardviz-clock", daemon=True
            )
            self._thread.start()
        return self._enter

    def __exit__(self, *error: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _enter(self, stage: str) -> None:
        self._stage = stage

    def _tick(self) -> None:
        start, pause, line = time.monotonic(), self._after, ""
        while not self._done.wait(pause):
            last, seconds = line, time.monotonic() - start
            line = clock_line(self._subject, self._stage, seconds, self._hint)
            self._show(line, last)
            pause = self._every
        if line:
            self._show("", line)

    def _show(self, line: str, last: str) -> None:
        """Replaces the last line; an empty line erases it."""
        if self._in_notebook:
            # A notebook has imported IPython, which this module must not import.
            displays = sys.modules["IPython.display"]
            show = displays.update_display if last else displays.display
            page = f"{_BAR} {html.escape(line)}" if line else ""
            show({"text/html": page}, raw=True, display_id=self._display_id)
            return
        # Spaces erase the last line; some terminals would print an escape sequence.
        self._stream.write(f"\r{line:<{len(last)}}" + "\r" * (not line))
        self._stream.flush()


# Without a value, a browser shows a bar that moves.
_BAR = '<progress style="width: 8em; vertical-align: middle"></progress>'


def clock_line(subject: str, stage: str, seconds: float, hint: str = "") -> str:
    """Returns the line that a StageClock writes, at most 79 characters long.

    >>> clock_line("train_step", "compile", 83.4)
    'train_step: compile, 1:23'
    """
    minutes, remainder = divmod(int(seconds), 60)
    end = f": {stage or 'begins'}, {minutes}:{remainder:02}"
    if hint:
        end += f" · {hint}"
    # If the line wrapped, `\r` could not return to its start.
    most = 79 - len(end)
    if len(subject) > most:
        subject = subject[: most - 1] + "…"
    return f"{subject}{end}"
