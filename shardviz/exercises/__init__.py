"""Exercises that check themselves: one for each thing that a lesson of the course teaches.

    from shardviz import exercises
    exercises.names(lesson=1)
    exercises.task("arrays/eight-shards")
    exercises.check("arrays/eight-shards", your_answer)

An answer is laid out, planned or compiled, and what comes out is compared with what the task asks:
no right answer is stored, and many are right. The exercises are in the other modules of this
package, which are found by themselves, each with a file of Markdown for its words. Here is what
shows and grades them, and what reads answers; it evaluates nothing and exhausts no iterable.
"""

from __future__ import annotations

import datetime
import html
import importlib
import math
import pkgutil
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from shardviz.api.layouts import rules as make_rules
from shardviz.api.values import as_mesh, as_spec, is_jax, layout_of
from shardviz.core.display import Displayed
from shardviz.core.errors import ShardvizError
from shardviz.core.format import bytes_text, joined, plural, shown, suggestion
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.layout import Layout, lay_out
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import limited, parse_bytes
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.resolution import Resolution
from shardviz.core.layout.rules import Rules
from shardviz.core.program.program import Program

#: The subjects of the lessons, in the order of the course.
LESSONS = {
    "arrays": "One array on a mesh",
    "rules": "Rules, and why one did not match",
    "matmul": "The four cases of a sharded matmul",
    "collectives": "The collectives: what moves, how much, how long",
    "parallelism": "Data, fsdp, tensor and expert parallelism",
    "compiler": "What the compiler decides",
    "pods": "Will it fit, how fast could it be",
    "debugging": "Debugging a whole model",
}
MOST = 10_000  # entries of an answer that are looked at
_EXPLORER = "shardviz.widgets.explorer"
_EXERCISES: dict[str, Exercise] = {}
_SHOWN: Counter[str] = Counter()  # how many hints were asked for, by exercise


class _InText(Displayed):
    """A value that a notebook shows as its text."""

    __slots__ = ()

    def _text_(self) -> str:
        return repr(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
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

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
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
        return f"{'✓' if self.ok else '✗'} {self.exercise}: {self.does or self.hint}"


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
        answer = str(self.answer) if not callable(self.answer) else _source(self.answer)
        between = "\n" if "\n" in answer else " "
        return f"{self.exercise}:{between}{answer}\n{self.why}"


def _source(function: Any) -> str:
    import inspect

    return inspect.getsource(function).strip()


class Exercise(NamedTuple):
    """One exercise; made by `exercise`."""

    name: str
    setup: Callable[[], Setup]
    grade: Callable[[Setup, Any], str]
    solve: Callable[[Setup], Any]
    words: Words


class Words(NamedTuple):
    """The words of an exercise: the task, at most three hints, and why its solution is right."""

    task: str
    hints: tuple[str, ...]
    why: str


@cache
def _words_beside(module: str) -> dict[str, str]:
    """What the file of Markdown beside a module says below each heading `# subject/name`."""
    text = Path(str(sys.modules[module].__file__)).with_suffix(".md").read_text(encoding="utf-8")
    parts = re.split(r"^# (\S+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _read_words(text: str) -> Words:
    """Words in their parts: lines that begin with `-` are hints, those with `>` the reason."""
    blocks = re.split(r"\n\s*\n", text.strip())
    hints = [h for b in blocks if b.startswith("- ") for h in re.split(r"\n- ", b[2:])]
    why = [re.sub(r"^> ?", "", b, flags=re.MULTILINE) for b in blocks if b.startswith(">")]
    task = [b for b in blocks if not b.startswith(("- ", ">"))]
    one_line = [" ".join(text.split()) for text in (*hints, *why)]
    return Words("\n\n".join(task), tuple(one_line[: len(hints)]), " ".join(one_line[len(hints) :]))


Grade = TypeVar("Grade", bound=Callable[[Any, Any], str])


def exercise(
    name: str,
    setup: Callable[[], Setup],
    solve: Callable[[Setup], Any],
    words: str | None = None,
) -> Callable[[Grade], Grade]:
    """Makes an exercise of a function that grades an answer.

    Args:
        name: its subject and its own name, `subject/name`. An older exercise of it is replaced.
        setup: makes what it gives.
        solve: makes one right answer of what is given.
        words: the task in Markdown, then a list of at most three hints, each a line with `-`, then
            lines with `>` that say why the solution is right. By default they are below the
            heading `# subject/name` in the file of Markdown beside the module.
    """

    def add(grade: Grade) -> Grade:
        text = words if words is not None else _words_beside(grade.__module__)[name]
        _EXERCISES[name] = Exercise(name, setup, grade, solve, _read_words(text))
        _things.cache_clear()
        return grade

    return add


@cache
def _load() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def _find(name: Any) -> Exercise:
    _load()
    if isinstance(name, str) and name in _EXERCISES:
        return _EXERCISES[name]
    raise ShardvizError(f"There is no exercise called {shown(name)}.{suggestion(name, names())}")


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
    subjects = list(dict.fromkeys([*LESSONS, *(n.partition("/")[0] for n in _EXERCISES)]))
    wanted = subjects
    if lesson is not None:
        number = isinstance(lesson, int) and not isinstance(lesson, bool)
        known = subjects[lesson - 1 : lesson] if number and lesson > 0 else []  # type: ignore[operator]
        wanted = known or [s for s in subjects if s == lesson]
        if not wanted:
            said = joined(f"{i} {subject}" for i, subject in enumerate(subjects, 1))
            raise ShardvizError(f"There is no lesson {shown(lesson)}; there are {said}.")
    return tuple(n for s in wanted for n in _EXERCISES if n.partition("/")[0] == s)


@cache
def _things(name: str) -> Setup:
    """What an exercise gives, for the graders, which change nothing of it."""
    return _EXERCISES[name].setup()


def task(name: str) -> Text:
    """What to do in an exercise, and what it gives.

    Raises:
        ShardvizError: where there is no such exercise.

    >>> print(task("arrays/second-half").splitlines()[0])
    **arrays/second-half** (lesson 1: One array on a mesh)
    """
    one = _find(name)
    subject = name.partition("/")[0]
    number = dict(zip(LESSONS, range(1, 9), strict=True)).get(subject)
    lesson = f" (lesson {number}: {LESSONS[subject]})" if number else ""
    things = indent(repr(one.setup()), "    ")
    return Text(
        f"**{name}**{lesson}\n\n{one.words.task}\n\n{things}\n\nThese are in"
        f" `exercises.setup({name!r})`. Answer with `exercises.check({name!r}, …)`."
    )


def setup(name: str) -> Setup:
    """What an exercise gives: meshes, arrays, rules and programs, by name.

    Raises:
        ShardvizError: where there is no such exercise.

    >>> setup("arrays/second-half").mesh.size
    8
    """
    return _find(name).setup()


def check(name: str, answer: Any = ...) -> Check:
    """Grades an answer; any object may be given, and nothing is raised.

    Args:
        name: of the exercise.
        answer: the answer, in any form in which people have such a thing: a spec as text, tuple,
            Spec, PartitionSpec or NamedSharding; a Layout; a mesh; rules; a number of bytes as such
            or as `"2 MiB"`; a program or a function; an Explorer, whose state counts.

    >>> check("arrays/memory", "1 GiB").hint
    '1 GiB is too much.'
    >>> bool(check("arrays/memory", solution("arrays/memory").answer))
    True
    """
    try:
        one = _find(name)
        if answer is ...:
            raise Wrong("Put your answer in place of the dots.")
        return Check(name, True, does=one.grade(_things(name), answer))
    except KeyboardInterrupt:
        raise
    except (Wrong, ShardvizError) as problem:
        hint = str(problem)
    except BaseException as error:  # noqa: BLE001  a foreign object or function may raise anything
        hint = f"Your answer raised {shown(error, 200)} where it was read or called."
    words = "".join(c if c.isprintable() else " " for c in hint)
    return Check(name if isinstance(name, str) else shown(name), False, words[:600])


def hint(name: str) -> Text:
    """The next hint for an exercise: at most three, each one saying more than the one before it.

    Raises:
        ShardvizError: where there is no such exercise.

    >>> reset("arrays/memory")
    >>> print(hint("arrays/memory"))
    Which of the axes split `q`, and which do not?
    """
    some, number = _find(name).words.hints, _SHOWN[name]
    _SHOWN[name] = min(number + 1, len(some))
    if number < len(some):
        return Text(some[number])
    return Text(f"There are no more hints. `exercises.solution({name!r})` shows an answer.")


def solution(name: str) -> Solution:
    """One right answer, and why it is right.

    Raises:
        ShardvizError: where there is no such exercise.

    >>> print(solution("rules/two-rules").answer)
    hidden -> x
    width -> y
    """
    one = _find(name)
    return Solution(name, one.solve(one.setup()), one.words.why)


def reset(name: str | None = None) -> None:
    """Begins with the first hint again, of one exercise or of all.

    Raises:
        ShardvizError: where there is no such exercise.

    >>> reset()
    """
    if name is None:
        _SHOWN.clear()
    else:
        _SHOWN.pop(_find(name).name, None)


class Wrong(Exception):
    """An answer that is not right; its text is the hint, which speaks of that very answer."""


class Setup(SimpleNamespace):
    """What an exercise gives, by name: `setup.mesh`.

    >>> Setup(mesh=MeshSpec(("x",), (4,)))
    mesh = x=4
    """

    def __repr__(self) -> str:
        return "\n".join(f"{name} = {_in_words(thing)}" for name, thing in vars(self).items())


def _in_words(thing: Any) -> str:
    if isinstance(thing, ArraySpec):
        names = f", logical names {' '.join(map(str, thing.logical))}" if thing.logical else ""
        return f"{thing.short}{names}{f', split {thing.spec}' if thing.spec else ''}"
    if isinstance(thing, tuple) and isinstance(thing[0], ArraySpec):
        return "".join(f"\n    {each.name}: {_in_words(each)}" for each in thing)
    if isinstance(thing, Rules):
        return "".join(f"\n    {rule}" for rule in thing)
    if isinstance(thing, Program):
        return "\n" + indent(_source(thing.fn), "    ")
    if isinstance(thing, (MeshSpec, Spec, Topology)):
        return str(thing)
    return thing if isinstance(thing, str) else f"{thing!r}"


def opened(answer: Any) -> Any:
    """The program in an Explorer or its session; every other answer as it is."""
    explorers = sys.modules.get(_EXPLORER)
    if explorers is not None and isinstance(answer, explorers.Explorer):
        return answer.session.program
    if explorers is not None and isinstance(answer, explorers.Session):
        return answer.program
    return answer


def check_mesh(found: MeshSpec, wanted: MeshSpec) -> None:
    """Refuses an answer that is on another mesh: other axes, sizes or order of axes."""
    if tuple(found.shape.items()) != tuple(wanted.shape.items()):
        raise Wrong(f"Your answer is on the mesh {found}; this exercise is about {wanted}.")


def _array_of(program: Program, name: str, mesh: MeshSpec) -> Any:
    check_mesh(program.mesh, mesh)
    rows = {row.array.name: row for row in program.requests}
    if name not in rows:
        raise Wrong(f"Your program has no array {shown(name)}.{suggestion(name, rows)}")
    if rows[name].problem:
        raise Wrong(f"{name}: {rows[name].problem}")
    return rows[name]


def read_spec(answer: Any, array: ArraySpec, mesh: MeshSpec) -> Spec:
    """The spec of an array: text, a tuple, a spec of ours or jax's, or what has one.

    Raises:
        Wrong: for an answer on another mesh, and for a program without that array.
        ShardvizError: for what is no spec.
    """
    answer = opened(answer)
    if isinstance(answer, Program):
        return _array_of(answer, array.name, mesh).spec
    if isinstance(answer, ArraySpec) and answer.spec is not None:
        answer = answer.spec
    if isinstance(answer, (Layout, Resolution)) and answer.spec is not None:
        if answer.mesh is not None:
            check_mesh(answer.mesh, mesh)
        return answer.spec
    sharding = getattr(answer, "sharding", answer) if is_jax(answer) else None
    if hasattr(sharding, "spec") and hasattr(sharding, "mesh"):
        check_mesh(as_mesh(sharding.mesh), mesh)  # type: ignore[union-attr]
        return as_spec(sharding.spec)  # type: ignore[union-attr]
    return as_spec(tuple(answer[:MOST]) if isinstance(answer, (list, tuple)) else answer)


def read_layout(answer: Any, array: ArraySpec, mesh: MeshSpec) -> Layout:
    """The layout of an array on a mesh as an answer splits it.

    Raises:
        Wrong: as `read_spec`, and for a layout of another array.
        ShardvizError: for what is no spec, and where it cannot be laid out.
    """
    if isinstance(answer, Layout) and answer.shape != array.shape:
        raise Wrong(f"Your layout is of shape {answer.shape}; {array.name} has {array.shape}.")
    if isinstance(answer, Layout) and answer.spec is None and answer.mesh.size == mesh.size:
        return answer  # of another kind of sharding: what each device holds is what counts
    if is_jax(answer) and not hasattr(answer, "spec") and hasattr(answer, "devices_indices_map"):
        return layout_of(array, answer, mesh, None, None, "linen")
    return lay_out(array.shape, read_spec(answer, array, mesh), mesh, array.dtype)


def says(layout: Layout) -> str:
    """What a layout does, in one sentence.

    >>> says(lay_out((8, 4), Spec.parse("x"), MeshSpec(("x", "y"), (4, 2))))
    "With P('x') each device holds a shard of [2, 4], 32 B, and 2 devices hold each shard."
    """
    same = "no two devices hold the same shard"
    if layout.replicas > 1:
        same = f"{plural(layout.replicas, 'device')} hold each shard"
    return (
        f"With {layout.spec or 'it'} each device holds a shard of {list(layout.shard_shape)},"
        f" {bytes_text(layout.bytes_per_device)}, and {same}."
    )


def read_table(answer: Any, mesh: MeshSpec | None = None) -> Rules:
    """A table of rules in any form that `sv.rules` reads, or what has one.

    Raises:
        Wrong: for a table of paths, and an Explorer on another mesh.
        ShardvizError: for what is no table.
    """
    answer = opened(answer)
    if isinstance(answer, Program) and mesh is not None:
        check_mesh(answer.mesh, mesh)
    own = getattr(answer, "rules", None) if type(answer).__module__.startswith("shardviz") else None
    table = own if isinstance(own, Rules) else make_rules(answer)
    if not isinstance(table, Rules):
        raise Wrong("That is a table of paths; write rules of logical names, as mlp -> model.")
    if not len(table):
        raise Wrong("Your table has no rules, so nothing is split.")
    return table


def real_number(answer: Any) -> float | None:
    """A number of any kind as a float; None for what is no number."""
    if isinstance(answer, (bool, np.bool_, complex, str, bytes)) or answer is None:
        return None
    if isinstance(answer, datetime.timedelta):
        return answer.total_seconds()
    if is_jax(answer) or isinstance(answer, (np.ndarray, np.generic)):
        found = np.asarray(answer)
        if found.shape != () or found.dtype.kind not in "iuf":
            return None
        answer = found.item()
    try:
        value = float(answer)
    except Exception:  # noqa: BLE001  a foreign __float__ may raise anything
        return None
    return value if math.isfinite(value) else None


_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
_TIME = re.compile(r"(\d{1,20}(?:\.\d{1,20})?(?:e-?\d{1,2})?)\s*([mnuµμ]?s)(?:ec(?:onds?)?)?")


def read_number(answer: Any, unit: str) -> float:
    """A number that is not negative; as text, with a unit of bytes or seconds where it has one.

    Args:
        answer: the number.
        unit: `"bytes"`, `"seconds"`, or what is counted.

    Raises:
        Wrong: for anything else.

    >>> read_number("2 MiB", "bytes"), read_number("10 ms", "seconds"), read_number("16", "chips")
    (2097152.0, 0.01, 16.0)
    """
    value = real_number(answer)
    if isinstance(answer, str) and len(answer) < 100:
        text = answer.strip().lower().replace(",", "").replace("_", "")
        timed = _TIME.fullmatch(text) if unit == "seconds" else None
        if timed:
            value = float(timed[1]) * _SECONDS[timed[2]]
        elif unit == "bytes":
            value = float(parse_bytes(text.removesuffix("ytes"), "This", ShardvizError))
        elif re.fullmatch(r"\d{1,20}(\.\d{1,20})?(e[-+]?\d{1,2})?", text):
            value = float(text)
    if value is None:
        example = {"bytes": ", such as 1024 or '1 KiB'", "seconds": ", such as 0.25 or '250 ms'"}
        raise Wrong(f"This takes a number of {unit}{example.get(unit, '')}; got {shown(answer)}.")
    if value < 0:
        raise Wrong(f"A number of {unit} is not negative; got {shown(answer)}.")
    return value


def compare(
    value: float, right: float, amount: str, slips: Mapping[str, float], rtol: float
) -> None:
    """Refuses a number that is not the right one, with the slip that leads to it where one does.

    Args:
        value, amount: the number in the answer, and its text.
        right: the right one.
        slips: sentences, each with the number to which that mistake leads.
        rtol: how far it may be off, as a part of the right one.

    Raises:
        Wrong: where it is another number.
    """
    if math.isclose(value, right, rel_tol=rtol):
        return
    for sentence, slip in slips.items():
        if math.isclose(value, slip, rel_tol=max(rtol, 1e-6)) and slip != right:
            raise Wrong(f"{amount}: {sentence}")
    if not right / 500 < value < right * 500:
        raise Wrong(f"{amount} is off by hundreds of times. Is its unit right?")
    raise Wrong(f"{amount} is too {'much' if value > right else 'little'}.")


def read_names(answer: Any, known: Iterable[str], what: str) -> set[str]:
    """Names or paths: text with commas between them, or values that have a path or a name.

    Raises:
        Wrong: for a name that there is not.
        ShardvizError: for what is no list of names.
    """
    single = isinstance(answer, str) or _name(answer) is not None
    parts = re.split(r"[,;\s]+", answer.strip()[:100_000]) if isinstance(answer, str) else answer
    values = [parts] if single and parts is answer else limited(parts, MOST, what, ShardvizError)
    known = list(known)
    names = set()
    for value in values:
        name = value if isinstance(value, str) else _name(value)
        name = None if name is None else name.strip(" '\"`{}[]()")
        if name not in known:
            raise Wrong(f"{shown(value)} is none of {what.lower()}.{suggestion(name, known)}")
        names.add(name)
    return names


def _name(value: Any) -> str | None:
    own = type(value).__module__.startswith("shardviz")
    found = (getattr(value, "path", None) or getattr(value, "name", None)) if own else None
    return found if isinstance(found, str) else None
