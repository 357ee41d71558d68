"""The exercises by name, and the one way in which answers are graded.

An exercise is text, in the files of Markdown beside this one, below a heading with its
name. An indented block says what it gives, how an answer is read, and one solution:

    mesh = host=4, chip=2
    x = bf16[4096, 1024], named batch embed
    answer: spec of x
    solution: (host, chip)

The task follows, then hints as a list, and after `>` why the solution is right. After
`~` is what has to hold of what an answer leads to, and what is said where it does not:

    ~ replicas = 1: An axis of the mesh splits nothing.

or, where the answer is a number, how many times the right one a usual mistake makes it:

    ~ × 1/2: that counts one direction only.

The ways to read an answer are functions, which say what there is to compare.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from shardviz.core.errors import ShardvizError
from shardviz.core.format import joined, shown, suggestion
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.array_spec import ArraySpec, read_names, read_shape
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.rules import Rules
from shardviz.core.program.program import Program
from shardviz.core.wording.exercises import LESSONS, close

# These read the answers to the exercises in the Markdown files beside them.
_MODULES = ("layouts", "programs", "short")


class Wrong(Exception):
    """An answer that is not right; its text is a hint that speaks of that very answer."""


class Setup(SimpleNamespace):
    """What an exercise gives, by name: `setup.mesh`.

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


class Found(NamedTuple):
    """What an answer leads to.

    Attributes:
        sentence: says it; a function where something has to be compiled to say so.
        facts: what can be compared, by name; a function is called when it is needed.
    """

    sentence: str | Callable[[], str]
    facts: dict[str, Any]

    def fact(self, name: str) -> Any:
        """The fact of that name."""
        value = self.facts[name]
        if callable(value):
            value = value()
        return value

    def __str__(self) -> str:
        if callable(self.sentence):
            return self.sentence()
        return self.sentence


class Kind(NamedTuple):
    """A way to read answers.

    Attributes:
        read: what is given, the answer and a name from the text to what it leads to.
        solve: makes the solution of what is given, where the text has none.
    """

    read: Callable[[Setup, Any, str], Found]
    solve: Callable[[Setup], Any] | None


KINDS: dict[str, Kind] = {}
# What makes values of which there is no text: what was given before it, and words.
MAKERS: dict[str, Callable[[Setup, str], Any]] = {}
Read = TypeVar("Read", bound=Callable[..., Found])


def kind(
    name: str, solve: Callable[[Setup], Any] | None = None
) -> Callable[[Read], Read]:
    """Adds a way to read answers: `answer: NAME`, or `NAME of THING`."""

    def add(read: Read) -> Read:
        KINDS[name] = Kind(read, solve)
        return read

    return add


@dataclass(frozen=True, eq=False)
class Exercise:
    """One exercise.

    Attributes:
        given: what it gives, by name, as text.
        answer: the kind of answer, and the thing that it is of.
        answered: one right answer; `""` where the kind makes it.
        task: what to do, in Markdown.
        hints: at most three, each saying more than the one before.
        why: why the solution is right.
        slips: what has to hold or what is usually mistaken, each with its sentence.
    """

    given: dict[str, str]
    answer: tuple[str, str]
    answered: str
    task: str
    hints: tuple[str, ...]
    why: str
    slips: tuple[tuple[str, str], ...]

    def setup(self) -> Setup:
        """What it gives, made anew."""
        things = Setup()
        for name, text in self.given.items():
            setattr(things, name, _thing(things, name, text))
        return things

    @cached_property
    def _things(self) -> Setup:
        """What it gives, for its grader, which changes nothing of it."""
        return self.setup()

    def solution(self) -> Any:
        """One right answer."""
        solve = KINDS[self.answer[0]].solve
        if solve is None:
            return self.answered
        return solve(self.setup())

    def grade(self, answer: Any) -> str:
        """What a right answer does, in a sentence.

        Raises:
            Wrong, ShardvizError: for any other, with a hint.
        """
        name, of = self.answer
        things = self._things
        found = KINDS[name].read(things, answer, of)
        # Needs are looked at in order: a later one may have to compile something.
        if "value" in found.facts:
            _refuse_slip(found, self.slips)
            _refuse_other(found)
            return str(found)
        for need, sentence in self.slips:
            if not _holds(need, things, found):
                raise Wrong(f"{found} {sentence}")
        return str(found)


def _thing(given: Setup, name: str, text: str) -> Any:
    """A value of what an exercise gives, from its text."""
    if text.startswith("@"):
        maker, _, words = text[1:].partition(" ")
        return MAKERS[maker](given, words)
    if re.fullmatch(r"[\d(][\d, ()]*", text):
        return ast.literal_eval(text)
    readers: dict[str, Callable[[str], Any]] = {
        "mesh": make_mesh,
        "topology": Topology.parse,
        "rules": _rules,
        **dict.fromkeys(("spec", "before", "after"), Spec.parse),
    }
    if name in readers:
        return readers[name](text)
    if array := _ARRAY.fullmatch(text):
        dtype, shape, named, split = array.groups()
        made = ArraySpec(name, read_shape(shape), None, dtype)
        if named:
            made = made.replace(logical=read_names(named))
        if split:
            made = made.replace(spec=Spec.parse(split))
        return made
    return text


_ARRAY = re.compile(r"(\w+)\[(.*?)\](?:, named (.+?))?(?:, split (.*))?")


def _rules(text: str) -> Rules:
    return Rules.parse(text.replace("; ", "\n"))


_COMPARED = {
    "=": operator.eq,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    # Some of them, and nothing else.
    "within": lambda some, those: bool(some) and set(some) <= set(those),
}
_NEED = re.compile(r"(.+) (=|<=|>=|<|within) (.+)")


def _holds(need: str, given: Setup, found: Found) -> bool:
    """Whether `FACT OP VALUE` holds; a value is what is given, a fact, or as it is."""
    match = _NEED.fullmatch(need)
    assert match is not None, need
    name, sign, wanted = match.groups()
    value: Any = wanted
    if wanted in vars(given):
        value = vars(given)[wanted]
    elif wanted in found.facts:
        value = found.fact(wanted)
    elif re.match(r"[\d\[]", wanted):
        value = ast.literal_eval(wanted)
    return _COMPARED[sign](found.fact(name), value)


def _refuse_slip(found: Found, slips: Iterable[tuple[str, str]]) -> None:
    """Refuses a number that a usual mistake makes, by the mistake that is nearest."""
    times = found.fact("value") / found.fact("right")
    tolerance = max(found.fact("tolerance"), 1e-6)
    near = []
    for need, sentence in slips:
        off = abs(times / Fraction(need.removeprefix("× ")) - 1)
        if off <= tolerance:
            near.append((off, sentence))
    if near:
        raise Wrong(f"{found}: {min(near)[1]}")


def _refuse_other(found: Found) -> None:
    value, right = found.fact("value"), found.fact("right")
    # Such as MiB for bytes, or milliseconds for seconds.
    if not right / 500 < value < right * 500:
        raise Wrong(f"{found} is off by a factor of hundreds. Is its unit right?")
    # Bytes that are rounded to one or two digits, or MB for MiB, which is 5 percent.
    off = abs(value / right - 1)
    if "typed" in found.facts and found.fact("tolerance") < off < 0.08:
        raise Wrong(close(found.fact("typed")))
    if value > right * (1 + found.fact("tolerance")):
        raise Wrong(f"{found} is too much.")
    if value < right * (1 - found.fact("tolerance")):
        raise Wrong(f"{found} is too little.")


def read_exercises(text: str) -> dict[str, Exercise]:
    """The exercises in a text of Markdown, by the names in its headings."""
    parts = re.split(r"^# (\S+)$", text, flags=re.MULTILINE)
    # Headings and what is below them alternate, after the text before the first.
    return dict(zip(parts[1::2], map(_read, parts[2::2]), strict=True))


def _read(text: str) -> Exercise:
    head, *blocks = re.split(r"\n\s*\n", text.strip("\n"))
    given, said = {}, {"answer": "", "solution": ""}
    for line in head.split("\n"):
        name, sign, value = re.split(r"\s*(=|:)\s*", line.strip(), maxsplit=1)
        if sign == "=":
            given[name] = value
        else:
            said[name] = value.replace("; ", "\n")
    task: list[str] = []
    marked: dict[str, list[str]] = {"-": [], "~": [], ">": []}
    for block in blocks:
        mark = block[:1]
        if mark not in marked:
            task.append(block)
            continue
        # An entry may run over several lines; each begins with its mark.
        entries = re.split(rf"(?:^|\n){mark} ", block)[1:]
        marked[mark] += [" ".join(entry.split()) for entry in entries]
    slips = [entry.split(": ", 1) for entry in marked["~"]]
    name, _, of = said["answer"].rpartition(" of ")
    # Such as the bytes of an all-reduce, which is nothing that is given.
    if of not in given:
        name, of = said["answer"], ""
    return Exercise(
        given,
        (name, of),
        said["solution"],
        "\n\n".join(task),
        tuple(marked["-"]),
        " ".join(marked[">"]),
        tuple((need, sentence) for need, sentence in slips),
    )


@cache
def exercises() -> dict[str, Exercise]:
    """All exercises by name; those of a course come after ours."""
    here = Path(__file__).parent
    for name in _MODULES:
        importlib.import_module(f"{__package__}.{name}")
    found = {}
    for path in sorted(here.glob("*.md")):
        found.update(read_exercises(path.read_text("utf-8")))
    return found


def add(text: str) -> None:
    """Adds the exercises in a text of Markdown, in place of older ones of their names."""
    exercises().update(read_exercises(text))


def find(name: Any) -> Exercise:
    """An exercise by its name.

    Raises:
        ShardvizError: where there is none.
    """
    known = exercises()
    if isinstance(name, str) and name in known:
        return known[name]
    raise ShardvizError(
        f"There is no exercise called {shown(name)}.{suggestion(name, known)}"
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
    known = exercises()
    # Subjects that a course added come after ours.
    subjects = list(dict.fromkeys([*LESSONS, *map(subject_of, known)]))
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
        found += [name for name in known if subject_of(name) == subject]
    return tuple(found)
