"""The registry of exercises, each a grading function with task, hints and solution."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import numpy as np

from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import ShardvizError
from shardviz.base.format import joined, shown, suggestion
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.exercises.answers import Answer
from shardviz.exercises.words import LESSONS
from shardviz.hardware.topology import Topology
from shardviz.programs.program import Program


class Setup(SimpleNamespace):
    """An exercise's meshes, arrays, rules and programs as attributes: `setup.mesh`.

    >>> import shardviz as sv
    >>> from shardviz import exercises
    >>> exercises.Setup(mesh=sv.mesh(x=4), devices=4)
    mesh = x=4
    devices = 4
    """

    def __repr__(self) -> str:
        lines = []
        for name, value in vars(self).items():
            lines.append(f"{name} = {_shown(value)}")
        return "\n".join(lines)


def _shown(value: object) -> str:
    if isinstance(value, ArraySpec):
        text = value.short
        if value.logical:
            text += f", logical names {' '.join(map(str, value.logical))}"
        if value.spec:
            text += f", split {value.spec}"
        return text
    if isinstance(value, MeshSpec) and (np.diff(value.device_ids.flat) != 1).any():
        return f"{value}, device ids {' '.join(map(str, value.device_ids.flat))}"
    if isinstance(value, float):  # such as a rate
        return f"{value:g}"
    if isinstance(value, tuple) and isinstance(value[0], ArraySpec):
        return "".join(f"\n    {array.name}: {_shown(array)}" for array in value)
    if isinstance(value, Rules):
        return "".join(f"\n    {rule}" for rule in value)
    if isinstance(value, Program):
        return "\n" + indent(inspect.getsource(value.fn).strip(), "    ")
    if isinstance(value, (MeshSpec, Spec, Topology, str)):
        return str(value)
    return repr(value)


Grader = Callable[[Setup, Answer], str]


@dataclass(frozen=True, eq=False)
class Exercise:
    """An exercise of the course.

    Attributes:
        task: what to do, in Markdown.
        setup: creates the exercise's meshes, arrays, rules and programs.
        hints: at most three hints, each more specific than the previous one.
        solution: a right answer.
        why: why the solution is right.
        grade: returns a sentence about the effect of a right answer; for any other
            answer, raises Wrong or a ShardvizError with a hint.
    """

    task: str
    setup: Callable[[], Setup]
    hints: Sequence[str]
    solution: Any
    why: str
    grade: Grader


EXERCISES: dict[str, Exercise] = {}


def add(
    name: str,
    *,
    task: str,
    given: Callable[[], Setup],
    hints: Sequence[str],
    solution: Any,
    why: str,
) -> Callable[[Grader], Grader]:
    """Adds an exercise; replaces an earlier one with the same name.

    Decorates the grading function, which takes the Setup and an answer. The function
    rejects a wrong answer by calling `require` with a hint. For a right answer it
    returns a sentence about the answer's effect.

    Args:
        name: subject and name, such as `"arrays/memory"`.
        task: what to do, in Markdown.
        given: a function that creates the Setup.
        hints: at most three hints, each more specific than the previous one.
        solution: a right answer.
        why: why the solution is right.
    """

    def register(grade: Grader) -> Grader:
        EXERCISES[name] = Exercise(
            inspect.cleandoc(task), given, hints, solution, why, grade
        )
        return grade

    return register


def find(name: object) -> Exercise:
    """Finds an exercise by name.

    Raises:
        ShardvizError: if there is no such exercise.
    """
    if isinstance(name, str) and name in EXERCISES:
        return EXERCISES[name]
    raise ShardvizError(
        f"There is no exercise called {shown(name)}.{suggestion(name, EXERCISES)}"
    )


def subject_of(name: str) -> str:
    """Returns the subject of an exercise: `arrays` for `arrays/memory`."""
    return name.partition("/")[0]


def names(lesson: int | str | None = None) -> tuple[str, ...]:
    """Lists the names of all exercises, or of one lesson's exercises, in course order.

    Args:
        lesson: the number of a lesson, or a subject, such as `"rules"`.

    Raises:
        ShardvizError: if there are no such exercises.

    >>> from shardviz import exercises
    >>> exercises.names(lesson=1)[0], len(exercises.names()) > 30
    ('arrays/eight-shards', True)
    """
    # Subjects that a course has added come after ours, and have no number.
    subjects = list(dict.fromkeys([*LESSONS, *map(subject_of, EXERCISES)]))
    chosen = subjects
    if lesson is not None:
        chosen = [s for s in subjects if lesson in (s, LESSONS.get(s))]
    if not chosen or lesson is True:
        numbered = joined(f"{LESSONS.get(s, '')} {s}".strip() for s in subjects)
        raise ShardvizError(
            f"There are no exercises for lesson {shown(lesson)}; there are {numbered}."
        )
    names: list[str] = []
    for subject in chosen:
        names += [name for name in EXERCISES if subject_of(name) == subject]
    return tuple(names)
