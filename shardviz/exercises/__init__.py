"""Exercises that check themselves: one for each thing that a lesson of the course
teaches.

    from shardviz import exercises
    exercises.names(lesson=1)
    exercises.task("arrays/eight-shards")
    exercises.check("arrays/eight-shards", your_answer)

An answer is laid out, planned or compiled, and the result is compared with what the task
asks, so many different answers can be right.
"""

from __future__ import annotations

import html
import inspect
from dataclasses import dataclass
from textwrap import indent
from typing import Any

from shardviz.base.display import Displayed
from shardviz.base.errors import ShardvizError
from shardviz.base.format import shown
from shardviz.exercises import layouts, programs, short  # noqa: F401  adds the exercises
from shardviz.exercises.answers import Wrong, require
from shardviz.exercises.marks import Mark, Marks, Progress, hash_of
from shardviz.exercises.registry import Setup, add, find, names, subject_of
from shardviz.exercises.words import (
    LESSONS,
    SOLUTIONS_HIDDEN,
    locked,
    no_more_hints,
    task_end,
)

__all__ = [
    "Check",
    "Mark",
    "Marks",
    "Setup",
    "Solution",
    "Text",
    "add",
    "check",
    "hint",
    "lock",
    "names",
    "report",
    "require",
    "reset",
    "setup",
    "solution",
    "task",
    "unlock",
]

# What was tried, asked for and shown in this process.
_PROGRESS = Progress()


class _InText(Displayed):
    """A value that a notebook shows as its text."""

    __slots__ = ()

    def _text_(self) -> str:
        return repr(self)

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> dict[str, Any]:
        head, _, rest = html.escape(repr(self)).partition(":")
        rest = rest.replace("\n", "<br>")
        return {"text/plain": repr(self), "text/html": f"<p><b>{head}</b>:{rest}</p>"}


class Text(str, Displayed):
    """Text that shows itself without quotes, and as Markdown in a notebook.

    >>> Text("Which axes does the mesh have?")
    Which axes does the mesh have?
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _text_(self) -> str:
        return str(self)

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> dict[str, Any]:
        return {"text/plain": str(self), "text/markdown": str(self)}


@dataclass(frozen=True, repr=False)
class Check(_InText):
    """What became of an answer; true where it is right.

    Attributes:
        exercise: the name of the exercise.
        ok: whether the answer is right.
        hint: what a wrong answer does, in a sentence; `""` for a right one.
        does: what a right answer does; `""` for a wrong one.

    >>> Check("arrays/memory", False, "1 MiB is too little.")
    ✗ arrays/memory: 1 MiB is too little.
    """

    exercise: str
    ok: bool
    hint: str = ""
    does: str = ""

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        mark = "✓" if self.ok else "✗"
        return f"{mark} {self.exercise}: {self.does or self.hint}"


@dataclass(frozen=True, repr=False)
class Solution(_InText):
    """One right answer, and why it is right.

    Attributes:
        exercise: the name of the exercise.
        answer: the answer, as `check` takes it.
        why: why it is right.

    >>> Solution("arrays/memory", 1024, "It is split in four.")
    arrays/memory: 1024
    It is split in four.
    """

    exercise: str
    answer: Any
    why: str

    def __repr__(self) -> str:
        answer = str(self.answer)
        if callable(self.answer):
            answer = inspect.getsource(self.answer).strip()
        # Code and tables need all of their lines below one another.
        if "\n" in answer:
            answer = f"\n{answer}"
        else:
            answer = f" {answer}"
        return f"{self.exercise}:{answer}\n{self.why}"


def task(name: str) -> Text:
    """What to do in an exercise, and what it gives.

    Raises:
        ShardvizError: where there is no such exercise.

    >>> print(task("arrays/second-half").splitlines()[0])
    **arrays/second-half** (lesson 1)
    """
    one, subject = find(name), subject_of(name)
    # An exercise that a course added may have a subject of its own.
    lesson = ""
    if subject in LESSONS:
        number = LESSONS.index(subject) + 1
        lesson = f" (lesson {number})"
    things = indent(repr(one.setup()), "    ")
    parts = [f"**{name}**{lesson}", one.task, things, task_end(name)]
    return Text("\n\n".join(parts))


def setup(name: str) -> Setup:
    """What an exercise gives: meshes, arrays, rules and programs, by name.

    Raises:
        ShardvizError: where there is no such exercise.

    >>> setup("arrays/second-half").mesh.size
    8
    """
    return find(name).setup()


def check(name: str, answer: Any = ...) -> Check:
    """Grades an answer; any object may be given. What is checked counts as tried.

    Args:
        name: of the exercise.
        answer: the answer, in any form in which people have such a thing: a spec as
            text, tuple, Spec, PartitionSpec or NamedSharding; a Layout; a mesh; rules;
            a number of bytes as such or as `"2 MiB"`; a program or a function; an
            Explorer, whose state counts.

    >>> check("arrays/memory", "1 GiB").hint
    '1 GiB is too much.'
    >>> bool(check("arrays/memory", solution("arrays/memory").answer))
    True
    """
    try:
        one = find(name)
        if answer is ...:
            raise ShardvizError("Put your answer in place of the dots.")
        mark = _PROGRESS.of(name)
        mark.tried += 1
        does = one.grade(one.setup(), answer)
        mark.right = True
        return Check(name, True, does=does)
    except (Wrong, ShardvizError) as problem:
        hint = str(problem)
    except Exception as error:  # noqa: BLE001  the answer may be a function, which is called
        hint = f"{type(error).__name__}: {error}"
    # What an answer holds may be anything; a hint is one line.
    text = "".join(c if c.isprintable() else " " for c in hint)
    return Check(name if isinstance(name, str) else shown(name), False, text[:600])


def hint(name: str) -> Text:
    """The next hint for an exercise: at most three, each one saying more than the one
    before it.

    Raises:
        ShardvizError: where there is no such exercise.

    >>> reset()
    >>> print(hint("arrays/memory"))
    Which of the axes split `q`, and which do not?
    """
    hints, mark = find(name).hints, _PROGRESS.of(name)
    if mark.hints < len(hints):
        mark.hints += 1
        return Text(hints[mark.hints - 1])
    return Text(no_more_hints(name))


def solution(name: str) -> Solution:
    """One right answer, and why it is right.

    Raises:
        ShardvizError: where there is no such exercise, and while a lock hides solutions.

    >>> print(solution("rules/two-rules").answer)
    hidden -> x
    width -> y
    """
    one = find(name)
    if _PROGRESS.hashed:
        raise ShardvizError(SOLUTIONS_HIDDEN)
    mark = _PROGRESS.of(name)
    mark.solution_seen = mark.solution_seen or not mark.right
    return Solution(name, one.solution, one.why)


def lock(word: str = "", *, hashed: str = "") -> Text:
    """Hides the solutions in this process until `unlock` gets the same word.

    This keeps solutions out of sight while people work. It does not protect them: they
    are in the files of shardviz, and a new process has no lock.

    Args:
        word: any text.
        hashed: in place of the word, its hash, which a first call shows: a notebook
            can hide the solutions without holding the word.

    Raises:
        ShardvizError: for what is no word, and where another word already hides them.

    >>> print(lock("gather").partition(" To hide")[0])
    Solutions are hidden until exercises.unlock(word).
    >>> unlock("gather")
    """
    hashed = hashed or hash_of(word)
    _PROGRESS.lock(hashed)
    return Text(locked(hashed))


def unlock(word: str) -> None:
    """Shows the solutions again that `lock` hid.

    Raises:
        ShardvizError: where it is not the word that hid them.

    >>> _ = lock("gather")
    >>> unlock("scatter")
    Traceback (most recent call last):
        ...
    shardviz.base.errors.ShardvizError: 'scatter' is not the word that hid the solutions.
    >>> unlock("gather")
    """
    _PROGRESS.unlock(word)


def report(lesson: int | str | None = None) -> Marks:
    """What was tried in this process since it began or since `reset`.

    Args:
        lesson: the number or the subject of a lesson; all lessons by default.

    Raises:
        ShardvizError: where there is no such lesson.

    >>> reset()
    >>> found = check("arrays/memory", "1 GiB"), hint("arrays/memory")
    >>> report()
    exercise       answers  right  hints  solution seen
    arrays/memory        1  no         1  no
    Right: 0 of 1 begun.
    >>> reset()
    """
    return _PROGRESS.report(names(lesson))


def reset() -> None:
    """Begins with the first hint of every exercise again, and with an empty report.

    A lock stays.

    >>> reset()
    """
    _PROGRESS.marks.clear()
