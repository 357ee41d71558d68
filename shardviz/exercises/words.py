"""What the exercises say: how they are answered, and what a right answer does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardviz.base.collective import Collective
from shardviz.base.format import (
    bytes_text,
    clause,
    joined,
    listed,
    plural,
)
from shardviz.base.layout import Layout
from shardviz.base.partition_spec import Spec

#: The subjects of the lessons, in the order of the course.
LESSONS = (
    "arrays",
    "collectives",
    "matmul",
    "rules",
    "parallelism",
    "compiler",
    "pods",
    "debugging",
    "memory",
    "overlap",
    "zero",
    "shard_map",
    "ring",
    "cache",
    "pipeline",
    "slices",
    "experts",
    "explicit",
)


def task_end(name: str) -> str:
    """How an exercise is answered, in Markdown."""
    return (
        f"These are in `exercises.setup({name!r})`. Answer with"
        f" `exercises.check({name!r}, …)`."
    )


def no_more_hints(name: str) -> str:
    """What stands in place of a fourth hint."""
    return f"There are no more hints. `exercises.solution({name!r})` shows an answer."


#: What stands in place of a solution while a lock hides it.
SOLUTIONS_HIDDEN = "Solutions are hidden; exercises.unlock(word) shows them again."

#: Why there is no second lock.
LOCKED_ALREADY = (
    "Solutions are hidden already. Show them with exercises.unlock(word) before another"
    " word hides them."
)


def locked(hashed: str) -> str:
    """What a lock does, and how others are given one."""
    return (
        "Solutions are hidden until exercises.unlock(word). To hide them in a notebook of"
        f" others, write exercises.lock(hashed={hashed!r}), which does not show the word."
    )


def not_the_word(got: str) -> str:
    """A lock stays."""
    return f"{got} is not the word that hid the solutions."


def no_word(got: str) -> str:
    """What a lock takes."""
    return f"A word is text that is not empty; got {got}."


def marks_table(marks: Iterable[tuple[str, int, bool, int, bool]]) -> str:
    """The marks of exercises as a table: name, answers, right, hints, solution seen.

    >>> print(marks_table([]))
    No exercise was begun.
    """
    rows = [("exercise", "answers", "right", "hints", "solution seen")]
    right = 0
    for name, tried, is_right, hints, seen in marks:
        right += is_right
        rows.append((name, str(tried), _YES[is_right], str(hints), _YES[seen]))
    if len(rows) == 1:
        return "No exercise was begun."
    width = max(len(row[0]) for row in rows)
    lines = []
    for name, tried, is_right, hints, seen in rows:
        lines.append(f"{name:{width}}  {tried:>7}  {is_right:5}  {hints:>5}  {seen}")
    return "\n".join([*lines, f"Right: {right} of {len(rows) - 1} begun."])


_YES = {True: "yes", False: "no"}


def says(layout: Layout) -> str:
    """What a layout does.

    >>> from shardviz.base.layout import lay_out
    >>> from shardviz.base.mesh import MeshSpec
    >>> print(says(lay_out((8, 4), Spec.parse("x"), MeshSpec(("x", "y"), (4, 2)))))
    With P('x') each device holds a shard of [2, 4], 32 B, and 2 devices hold each shard.
    """
    same = "no two devices hold the same shard"
    if layout.replicas > 1:
        same = f"{plural(layout.replicas, 'device')} hold each shard"
    return (
        f"With {layout.spec or 'it'} each device holds a shard of"
        f" {list(layout.shard_shape)}, {bytes_text(layout.bytes_per_device)}, and"
        f" {same}."
    )


def unknown_names(names: Iterable[str]) -> str:
    """Names in a table that no dimension has; empty where there are none."""
    return clause(" No dimension is called {}.", listed(sorted(names), "or"))


def takes(path: str, spec: Spec | None, held: int, mesh: object, arrays: int) -> str:
    """What one array or several take on a mesh; of several, the largest is named."""
    size = f"{bytes_text(held)} per device"
    if arrays == 1:
        return f"{path} becomes {spec}, {size}."
    return (
        f"On {mesh} the arrays take {size}; the largest there is {path}, split {spec}."
    )


def read_as(name: str, linen: Spec | None, nnx: Spec | None) -> str:
    """How an array is split by two readers of one table."""
    return f"Read as linen, {name} becomes {linen}; read as nnx, {nnx}."


def serves(batch: int, held: int, most: int) -> str:
    """What a device holds while it serves so many sequences."""
    return (
        f"With {batch:,} sequences each device holds {bytes_text(held)} of"
        f" {bytes_text(most)}."
    )


def lists(names: Iterable[str]) -> str:
    """The names that a right answer has."""
    return f"That is right: {joined(sorted(names))}."


def contract(good: str, bad: str) -> str:
    """What a test said of a good audit and of a bad one, empty where it passed."""
    return f"Of the good audit it says {good or 'nothing'}, of the bad one {bad or 'nothing'}."


def does_not_compile(message: str) -> str:
    """Why a program has no plan, no compiled form, or no result."""
    return f"The program does not compile: {' '.join(message.split())[:300]}"


def moves(some: Iterable[Collective]) -> str:
    """Collectives as a phrase.

    >>> moves([Collective("all-gather", ("U",), 2048)])
    'all-gather of 2 KiB over U'
    """
    phrases = []
    for collective in some:
        size = bytes_text(collective.bytes_per_device)
        axes = " × ".join(collective.axes_in_words)
        phrases.append(f"{collective.kind} of {size} over {axes}")
    return joined(phrases, limit=4) or "no collective"


def costs(head: str, some: Iterable[Collective], sent: int) -> str:
    """The collectives that an answer takes, and what each device sends in them."""
    text = f"{head}: {moves(some)}"
    if sent:
        text += f"; each device sends {bytes_text(sent)}"
    return f"{text}."


def inserts(some: Iterable[Collective]) -> str:
    """The collectives that XLA's partitioner inserts."""
    return f"The partitioner inserts {moves(some)}."


def shards(layouts: Mapping[str, Layout]) -> str:
    """In how many shards every array is, and of which shape."""
    parts = []
    for name, layout in layouts.items():
        count = plural(layout.num_blocks, "shard")
        parts.append(f"{name} is in {count} of {list(layout.shard_shape)}")
    return f"{joined(parts)}."


def result_is(spec: Spec, rows: int | None = None) -> str:
    """How the result of a program is split."""
    where = "The"
    if rows is not None:
        where = f"With {rows:,} rows the"
    return f"{where} result is {spec}."


def close(amount: str) -> str:
    """An answer of which only the unit or the last digit may be wrong."""
    return f"{amount} is close. Write three digits or more; 1 MB is not 1 MiB."


def another_result(spec: Spec, said: Spec) -> str:
    """The product of two factors is not split as an answer says.

    >>> another_result(Spec.parse("x, y"), Spec.parse("x"))
    "With these factors the product is P('x', 'y'); you write P('x')."
    """
    return f"With these factors the product is {spec}; you write {said}."
