"""Exercises that check themselves, for the lessons of the course.

    from shardviz import exercises
    exercises.names(lesson=1)
    exercises.task("arrays/eight-shards")
    exercises.check("arrays/eight-shards", your_answer)

shardviz compares the layout, plan or compiled program of an answer with the task, so
many different answers can be right.
"""

from __future__ import annotations

import html
import inspect
from dataclasses import dataclass
from textwrap import indent

from shardviz.base.display import Displayed
from shardviz.base.errors import ShardvizError
from shardviz.base.format import shown
from shardviz.base.typing import JsonDict

# These modules add the exercises. Within a lesson, the order is that of the imports, so the
# exercises that ask for code come last.
from shardviz.exercises import layouts, programs, short  # noqa: F401  # isort: skip
from shardviz.exercises import costs, sizing, training, your_code  # noqa: F401  # isort: skip
from shardviz.exercises.answers import Answer, Wrong, require
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

# The marks of this process.
_PROGRESS = Progress()


class _InText(Displayed):
    """A value that is shown as its repr, also in a notebook."""

    __slots__ = ()

    def _text_(self) -> str:
        return repr(self)

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> JsonDict:
        head, _, body = html.escape(repr(self)).partition(":")
        body = body.replace("\n", "<br>")
        return {"text/plain": repr(self), "text/html": f"<p><b>{head}</b>:{body}</p>"}


class Text(str, Displayed):
    """Text that is shown without quotes; a notebook renders it as Markdown.

    >>> from shardviz import exercises
    >>> exercises.Text("Which axes does the mesh have?")
    Which axes does the mesh have?
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _text_(self) -> str:
        return str(self)

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> JsonDict:
        return {"text/plain": str(self), "text/markdown": str(self)}


@dataclass(frozen=True, repr=False)
class Check(_InText):
    """The grade of an answer; truthy if the answer is right.

    Attributes:
        exercise: the name of the exercise.
        ok: whether the answer is right.
        hint: a hint about a wrong answer; `""` for a right one.
        does: the effect of a right answer, in a sentence; `""` for a wrong one.

    >>> from shardviz import exercises
    >>> exercises.Check("arrays/memory", False, "1 MiB is too little.")
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
    """A right answer to an exercise, and why it is right.

    Attributes:
        exercise: the name of the exercise.
        answer: the answer, in a form that `check` accepts.
        why: why the answer is right.

    >>> from shardviz import exercises
    >>> exercises.Solution("arrays/memory", 1024, "It is split in four.")
    arrays/memory: 1024
    It is split in four.
    """

    exercise: str
    answer: Answer
    why: str

    def __repr__(self) -> str:
        answer = str(self.answer)
        if callable(self.answer):
            answer = inspect.getsource(self.answer).strip()
        # Start code and tables on a new line, so that their lines are aligned.
        if "\n" in answer:
            answer = f"\n{answer}"
        else:
            answer = f" {answer}"
        return f"{self.exercise}:{answer}\n{self.why}"


def task(name: str) -> Text:
    """Returns an exercise's task, with its meshes, arrays, rules and programs.

    Raises:
        ShardvizError: if there is no such exercise.

    >>> from shardviz import exercises
    >>> print(exercises.task("arrays/second-half").splitlines()[0])
    **arrays/second-half** (lesson 1)
    """
    exercise, subject = find(name), subject_of(name)
    # Exercises added by a course can have subjects that are not among our lessons.
    lesson = f" (lesson {LESSONS[subject]})" if subject in LESSONS else ""
    setup_text = indent(repr(exercise.setup()), "    ")
    parts = [f"**{name}**{lesson}", exercise.task, setup_text, task_end(name)]
    return Text("\n\n".join(parts))


def setup(name: str) -> Setup:
    """Returns an exercise's meshes, arrays, rules and programs, by name.

    Raises:
        ShardvizError: if there is no such exercise.

    >>> from shardviz import exercises
    >>> exercises.setup("arrays/second-half").mesh.size
    8
    """
    return find(name).setup()


def check(name: str, answer: Answer = ...) -> Check:
    """Grades an answer, and counts it in the report.

    Args:
        name: the name of the exercise.
        answer: a spec as text, tuple, Spec, PartitionSpec or NamedSharding; a Layout; a
            mesh; rules; bytes as a number or as `"2 MiB"`; a program or a function; or
            an Explorer, whose current state is graded. Any other object is wrong.

    >>> from shardviz import exercises
    >>> exercises.check("arrays/memory", "1 GiB").hint
    '1 GiB is too much.'
    >>> bool(exercises.check("arrays/memory", exercises.solution("arrays/memory").answer))
    True
    """
    try:
        exercise = find(name)
        if answer is ...:
            raise ShardvizError("Put your answer in place of the dots.")
        mark = _PROGRESS.of(name)
        mark.tried += 1
        does = exercise.grade(exercise.setup(), answer)
        mark.right = True
        return Check(name, True, does=does)
    except (Wrong, ShardvizError) as problem:
        hint = str(problem)
    except Exception as error:  # noqa: BLE001  a function as answer may raise anything
        hint = f"{type(error).__name__}: {error}"
    # The hint must be one line, but can quote any characters of an answer.
    text = "".join(c if c.isprintable() else " " for c in hint)
    return Check(name if isinstance(name, str) else shown(name), False, text[:600])


def hint(name: str) -> Text:
    """Returns the next hint for an exercise.

    An exercise has at most three hints, each more specific than the previous one.

    Raises:
        ShardvizError: if there is no such exercise.

    >>> from shardviz import exercises
    >>> exercises.reset()
    >>> print(exercises.hint("arrays/memory"))
    Which of the mesh axes split `q`, and which do not?
    """
    hints, mark = find(name).hints, _PROGRESS.of(name)
    if mark.hints < len(hints):
        mark.hints += 1
        return Text(hints[mark.hints - 1])
    return Text(no_more_hints(name))


def solution(name: str) -> Solution:
    """Returns a right answer to an exercise, and why it is right.

    Raises:
        ShardvizError: if there is no such exercise, or solutions are locked.

    >>> from shardviz import exercises
    >>> print(exercises.solution("rules/two-rules").answer)
    hidden -> x
    width -> y
    """
    exercise = find(name)
    if _PROGRESS.hashed:
        raise ShardvizError(SOLUTIONS_HIDDEN)
    mark = _PROGRESS.of(name)
    mark.solution_seen = mark.solution_seen or not mark.right
    return Solution(name, exercise.solution, exercise.why)


def lock(word: str = "", *, hashed: str = "") -> Text:
    """Hides the solutions in this process until `unlock` is called with the same word.

    A lock keeps solutions out of sight while people work. It does not protect the
    solutions, which are in shardviz's source files: a new process has no lock.

    Args:
        word: any text that is not empty.
        hashed: the hash of the word, for notebooks that must not contain the word
            itself. `lock(word)` shows the hash.

    Raises:
        ShardvizError: if the word is empty or not text, or if solutions are already
            hidden with another word.

    >>> from shardviz import exercises
    >>> print(exercises.lock("gather").partition(" To hide")[0])
    Solutions are hidden until exercises.unlock(word).
    >>> exercises.unlock("gather")
    """
    hashed = hashed or hash_of(word)
    _PROGRESS.lock(hashed)
    return Text(locked(hashed))


def unlock(word: str) -> None:
    """Lifts the lock on solutions.

    Raises:
        ShardvizError: if `word` is not the word that hid the solutions.

    >>> from shardviz import exercises
    >>> _ = exercises.lock("gather")
    >>> exercises.unlock("scatter")
    Traceback (most recent call last):
        ...
    shardviz.base.errors.ShardvizError: 'scatter' is not the word that hid the solutions.
    >>> exercises.unlock("gather")
    """
    _PROGRESS.unlock(word)


def report(lesson: int | str | None = None) -> Marks:
    """Returns the marks since this process started, or since `reset`.

    Args:
        lesson: the number or the subject of a lesson; all lessons by default.

    Raises:
        ShardvizError: if there is no such lesson.

    >>> from shardviz import exercises
    >>> exercises.reset()
    >>> shown = exercises.check("arrays/memory", "1 GiB"), exercises.hint("arrays/memory")
    >>> exercises.report()
    exercise       answers  right  hints  solution seen
    arrays/memory        1  no         1  no
    Right: 0 of 1 begun exercise.
    >>> exercises.reset()
    """
    return _PROGRESS.report(names(lesson))


def reset() -> None:
    """Empties the report, and starts again with the first hint of every exercise.

    A lock on solutions stays.

    >>> from shardviz import exercises
    >>> exercises.reset()
    """
    _PROGRESS.marks.clear()
