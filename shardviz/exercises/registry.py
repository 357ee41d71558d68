"""What an exercise is: what it gives, its words, and the function that grades answers.

Its words are Markdown beside the module of its grader, below a heading with its name:
the task, hints as a list, after `>` why the solution is right, and after `~` what is
said of numbers to which usual mistakes lead.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from shardviz.core.errors import ShardvizError
from shardviz.core.format import joined, shown, suggestion
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.rules import Rules
from shardviz.core.program.program import Program
from shardviz.core.wording.exercises import LESSONS

# The exercises by name, in the order in which their modules add them.
EXERCISES: dict[str, Exercise] = {}
# Modules with exercises, in the order of the course.
_MODULES = ("layouts", "programs")


class Wrong(Exception):
    """An answer that is not right; its text is a hint that speaks of that very answer."""


class Setup(SimpleNamespace):
    """What an exercise gives, by name: `setup.mesh`.

    >>> Setup(mesh=MeshSpec(("x",), (4,)))
    mesh = x=4
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
        return "\n" + indent(source(thing.fn), "    ")
    if isinstance(thing, (MeshSpec, Spec, Topology, str)):
        return str(thing)
    return repr(thing)


def source(function: Any) -> str:
    """The code of a function."""
    return inspect.getsource(function).strip()


class Words(NamedTuple):
    """The words of an exercise.

    Attributes:
        task: what to do, in Markdown.
        hints: at most three, each saying more than the one before.
        why: why the solution is right.
        slips: what is said of a number that a usual mistake leads to.
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
    task, why = [], []
    lists: dict[str, list[str]] = {"-": [], "~": []}
    for block in re.split(r"\n\s*\n", text.strip()):
        mark = block[:1]
        if mark in lists:
            # An entry may run over several lines; each begins with its mark.
            for entry in re.split(rf"(?:^|\n){mark} ", block)[1:]:
                lists[mark].append(" ".join(entry.split()))
        elif mark == ">":
            why.append(re.sub(r"^> ?", "", block, flags=re.MULTILINE))
        else:
            task.append(block)
    return Words(
        "\n\n".join(task),
        tuple(lists["-"]),
        " ".join(" ".join(why).split()),
        tuple(lists["~"]),
    )


@cache
def _words_beside(module: str) -> dict[str, str]:
    """The Markdown beside a module, by heading `# subject/name`."""
    path = Path(str(sys.modules[module].__file__)).with_suffix(".md")
    parts = re.split(r"^# (\S+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    # What the pattern captures and what is between alternate, after the text before.
    return dict(zip(parts[1::2], parts[2::2], strict=True))


class Exercise(NamedTuple):
    """One exercise; made by `exercise`."""

    name: str
    setup: Callable[[], Setup]
    grade: Callable[[Setup, Any], str]
    solve: Callable[[Setup], Any]
    words: Words


Grade = TypeVar("Grade", bound=Callable[[Any, Any], str])


def exercise(
    name: str,
    setup: Callable[[], Setup],
    solve: Callable[[Setup], Any],
    words: str | None = None,
) -> Callable[[Grade], Grade]:
    """Makes an exercise of a function that grades an answer.

    The function takes what is given and the answer. It returns what a right answer
    does, in a sentence, and raises `Wrong` for any other.

    Args:
        name: its subject and its own name, `subject/name`. An older exercise of that
            name is replaced.
        setup: makes what it gives.
        solve: makes one right answer of what is given.
        words: its Markdown; by default that below the heading `# subject/name` in the
            file beside the module.
    """

    def add(grade: Grade) -> Grade:
        text = words
        if text is None:
            text = _words_beside(grade.__module__)[name]
        EXERCISES[name] = Exercise(name, setup, grade, solve, read_words(text))
        given.cache_clear()
        return grade

    return add


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


def names_of(lesson: int | str | None) -> tuple[str, ...]:
    """The names of all exercises, or of those of a lesson, in the order of the course.

    Raises:
        ShardvizError: where there is no such lesson.
    """
    _load()
    # Subjects that a course added come after ours.
    subjects = list(dict.fromkeys([*LESSONS, *map(subject_of, EXERCISES)]))
    wanted = subjects
    if lesson is not None:
        wanted = [s for i, s in enumerate(subjects, 1) if _is(lesson, i, s)]
    if not wanted:
        known = joined(f"{i} {subject}" for i, subject in enumerate(subjects, 1))
        raise ShardvizError(f"There is no lesson {shown(lesson)}; there are {known}.")
    names = [name for name in EXERCISES if subject_of(name) in wanted]
    # By module, too: who imports one of them first changes no order.
    places = {f"{__package__}.{module}": i for i, module in enumerate(_MODULES)}

    def place(name: str) -> tuple[int, int]:
        module = EXERCISES[name].grade.__module__
        return wanted.index(subject_of(name)), places.get(module, len(places))

    return tuple(sorted(names, key=place))


def _is(lesson: Any, number: int, subject: str) -> bool:
    # True is an int, and no number of a lesson.
    return lesson == subject or (type(lesson) is int and lesson == number)
