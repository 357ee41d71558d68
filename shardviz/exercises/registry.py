"""The exercises by name, and the one way in which answers are graded.

An exercise is data: what it gives, how an answer is read, what has to hold of what is
found, and one solution. Its words are Markdown in the files beside this one, below a
heading with its name: the task, hints as a list, after `>` why the solution is right,
and after `~` a sentence for each need that is not met (or for each number to which a
usual mistake leads).
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import Any, NamedTuple

from shardviz.core.errors import ShardvizError
from shardviz.core.format import joined, shown, suggestion
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.rules.rules import Rules
from shardviz.core.program.program import Program
from shardviz.core.wording.exercises import LESSONS

# The exercises by name, in the order in which they were added.
EXERCISES: dict[str, Exercise] = {}
_MODULES = ("layouts", "programs")


class Wrong(Exception):
    """An answer that is not right; its text is a hint that speaks of that very answer."""


class Setup(SimpleNamespace):
    """What an exercise gives, by name: `setup.mesh`.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> Setup(mesh=make_mesh(x=4), devices=4)
    mesh = x=4
    devices = 4
    """

    def __repr__(self) -> str:
        lines = [f"{name} = {_shown(thing)}" for name, thing in vars(self).items()]
        return "\n".join(lines)


def _shown(thing: Any) -> str:
    if isinstance(thing, ArraySpec):
        text = thing.short
        if thing.logical:
            text += f", logical names {' '.join(map(str, thing.logical))}"
        if thing.spec:
            text += f", split {thing.spec}"
        return text
    if isinstance(thing, tuple) and isinstance(thing[0], ArraySpec):
        return "".join(f"\n    {each.name}: {_shown(each)}" for each in thing)
    if isinstance(thing, Rules):
        return "".join(f"\n    {rule}" for rule in thing)
    if isinstance(thing, Program):
        return "\n" + indent(inspect.getsource(thing.fn).strip(), "    ")
    return str(thing)


class Found(SimpleNamespace):
    """What an answer leads to: a sentence on it, and facts that needs compare.

    >>> str(Found("Two shards.", shards=2)), Found("Two shards.", shards=2).shards
    ('Two shards.', 2)
    """

    def __init__(self, sentence: str, **facts: Any):
        super().__init__(sentence=sentence, **facts)

    def __str__(self) -> str:
        return str(self.sentence)


class Words(NamedTuple):
    """The words of an exercise.

    Attributes:
        task: what to do, in Markdown.
        hints: at most three, each saying more than the one before.
        why: why the solution is right.
        slips: what is said of a need that is not met, or of a usual mistake.
    """

    task: str
    hints: tuple[str, ...]
    why: str
    slips: tuple[str, ...]


def read_words(text: str) -> Words:
    """The words of an exercise from its Markdown.

    >>> read_words("Which?\\n\\n- Look.\\n- Again.\\n\\n> Because.\\n\\n~ no.").hints
    ('Look.', 'Again.')
    """
    task: list[str] = []
    marked: dict[str, list[str]] = {"-": [], "~": [], ">": []}
    for block in re.split(r"\n\s*\n", text.strip()):
        mark = block[:1]
        if mark not in marked:
            task.append(block)
            continue
        # An entry may run over several lines; each begins with its mark.
        entries = re.split(rf"(?:^|\n){mark} ", block)[1:]
        marked[mark] += [" ".join(entry.split()) for entry in entries]
    hints, slips = tuple(marked["-"]), tuple(marked["~"])
    return Words("\n\n".join(task), hints, " ".join(marked[">"]), slips)


@cache
def _own_words() -> dict[str, str]:
    """The Markdown of our own exercises, by heading `# subject/name`."""
    texts = {}
    for path in Path(__file__).parent.glob("*.md"):
        parts = re.split(r"^# (\S+)$", path.read_text("utf-8"), flags=re.MULTILINE)
        # Headings and what is below them alternate, after the text before the first.
        texts.update(zip(parts[1::2], parts[2::2], strict=True))
    return texts


class Exercise(NamedTuple):
    """One exercise; made by `exercise`."""

    setup: Callable[[], Setup]
    read: Callable[[Setup, Any], Any]
    needs: Sequence[Callable[[Setup, Any], bool]]
    solve: Callable[[Setup], Any]
    words: Words


def exercise(
    name: str,
    setup: Callable[[], Setup],
    read: Callable[[Setup, Any], Any],
    needs: Sequence[Callable[[Setup, Any], bool]],
    solution: Any,
    words: str | None = None,
) -> None:
    """Adds an exercise, in place of an older one of that name.

    Args:
        name: its subject and its own name, `subject/name`.
        setup: makes what it gives.
        read: of what is given and an answer, what the answer leads to: a Found, or
            another value whose text is a sentence. Raises `Wrong` for what it cannot
            read.
        needs: what has to hold of what is given and what was found, in order.
        solution: one right answer, or a function that makes it of what is given.
        words: its Markdown; by default that in the files of this folder.
    """
    solve = solution
    if not inspect.isfunction(solution):

        def solve(given: Setup) -> Any:
            return solution

    if words is None:
        words = _own_words()[name]
    EXERCISES[name] = Exercise(setup, read, needs, solve, read_words(words))
    given.cache_clear()


def grade(name: str, answer: Any) -> str:
    """What a right answer does, in a sentence.

    Raises:
        Wrong, ShardvizError: for any other, with a hint.
    """
    one = find(name)
    things = given(name)
    found = one.read(things, answer)
    # Needs are looked at in order: a later one may have to compile something.
    for number, met in enumerate(one.needs):
        if not met(things, found):
            raise Wrong(f"{found} {one.words.slips[number]}")
    return str(found)


@cache
def given(name: str) -> Setup:
    """What an exercise gives, for its grader, which changes nothing of it."""
    return EXERCISES[name].setup()


@cache
def _load() -> None:
    for name in _MODULES:
        importlib.import_module(f"{__package__}.{name}")


def find(name: Any) -> Exercise:
    """An exercise by its name.

    Raises:
        ShardvizError: where there is none.
    """
    _load()
    if isinstance(name, str) and name in EXERCISES:
        return EXERCISES[name]
    raise ShardvizError(
        f"There is no exercise called {shown(name)}.{suggestion(name, EXERCISES)}"
    )


def subject_of(name: str) -> str:
    """The subject of an exercise: `arrays` of `arrays/memory`."""
    return name.partition("/")[0]


def names(lesson: int | str | None = None) -> tuple[str, ...]:
    """The names of all exercises, or of those of a lesson, in the order of the course.

    Args:
        lesson: the number of a lesson, from 1, or its subject, such as `"rules"`.

    Raises:
        ShardvizError: where there is no such lesson.

    >>> names(lesson=1)[0], len(names()) > 30
    ('arrays/eight-shards', True)
    """
    _load()
    # Subjects that a course added come after ours.
    subjects = list(dict.fromkeys([*LESSONS, *map(subject_of, EXERCISES)]))
    wanted = subjects
    if lesson in subjects:
        wanted = [str(lesson)]
    elif type(lesson) is int and 1 <= lesson <= len(subjects):  # True is no number
        wanted = [subjects[lesson - 1]]
    elif lesson is not None:
        known = joined(f"{i} {subject}" for i, subject in enumerate(subjects, 1))
        raise ShardvizError(f"There is no lesson {shown(lesson)}; there are {known}.")
    found: list[str] = []
    for subject in wanted:
        found += [name for name in EXERCISES if subject_of(name) == subject]
    return tuple(found)
