"""The exercises by name: each one function, with its task, hints and solution."""

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
from shardviz.exercises.words import LESSONS
from shardviz.hardware.topology import Topology
from shardviz.programs.program import Program


class Setup(SimpleNamespace):
    """What an exercise gives, by name: `setup.mesh`.

    >>> from shardviz.base.mesh import make_mesh
    >>> Setup(mesh=make_mesh(x=4), devices=4)
    mesh = x=4
    devices = 4
    """

    def __repr__(self) -> str:
        lines = []
        for name, thing in vars(self).items():
            lines.append(f"{name} = {_shown(thing)}")
        return "\n".join(lines)


def _shown(thing: Any) -> str:
    if isinstance(thing, ArraySpec):
        text = thing.short
        if thing.logical:
            text += f", logical names {' '.join(map(str, thing.logical))}"
        if thing.spec:
            text += f", split {thing.spec}"
        return text
    if isinstance(thing, MeshSpec) and (np.diff(thing.device_ids.flat) != 1).any():
        return f"{thing}, device ids {' '.join(map(str, thing.device_ids.flat))}"
    if isinstance(thing, float):  # a rate
        return f"{thing:g}"
    if isinstance(thing, tuple) and isinstance(thing[0], ArraySpec):
        return "".join(f"\n    {each.name}: {_shown(each)}" for each in thing)
    if isinstance(thing, Rules):
        return "".join(f"\n    {rule}" for rule in thing)
    if isinstance(thing, Program):
        return "\n" + indent(inspect.getsource(thing.fn).strip(), "    ")
    if isinstance(thing, (MeshSpec, Spec, Topology, str)):
        return str(thing)
    return repr(thing)


Grader = Callable[[Setup, Any], str]


@dataclass(frozen=True, eq=False)
class Exercise:
    """One exercise.

    Attributes:
        task: what to do, in Markdown.
        setup: creates its meshes, arrays, rules and programs.
        hints: at most three, each more specific than the one before.
        solution: one right answer.
        why: why the solution is right.
        grade: what a right answer does, in a sentence; raises Wrong or a
            ShardvizError with a hint for any other answer.
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
    """Adds the exercise that a function grades, in place of an older one of its name.

    The function takes the Setup and an answer. For a right answer it returns what the
    answer does, in a sentence; a wrong one it refuses with `require` and a hint.

    Args:
        name: its subject and a name: `"arrays/memory"`.
        task: what to do, in Markdown.
        given: returns the Setup.
        hints: at most three, each more specific than the one before.
        solution: one right answer.
        why: why the solution is right.
    """

    def register(grade: Grader) -> Grader:
        EXERCISES[name] = Exercise(
            inspect.cleandoc(task), given, hints, solution, why, grade
        )
        return grade

    return register


def find(name: Any) -> Exercise:
    """An exercise by its name.

    Raises:
        ShardvizError: where there is none.
    """
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

    >>> from shardviz import exercises
    >>> exercises.names(lesson=1)[0], len(exercises.names()) > 30
    ('arrays/eight-shards', True)
    """
    # Subjects that a course added come after ours.
    subjects = list(dict.fromkeys([*LESSONS, *map(subject_of, EXERCISES)]))
    wanted = subjects
    if lesson in subjects:
        wanted = [str(lesson)]
    elif type(lesson) is int and 1 <= lesson <= len(subjects):  # True is no number
        wanted = [subjects[lesson - 1]]
    elif lesson is not None:
        numbered = joined(f"{i} {subject}" for i, subject in enumerate(subjects, 1))
        raise ShardvizError(
            f"There is no lesson {shown(lesson)}; there are {numbered}."
        )
    found: list[str] = []
    for subject in wanted:
        found += [name for name in EXERCISES if subject_of(name) == subject]
    return tuple(found)
