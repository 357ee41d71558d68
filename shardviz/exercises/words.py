"""English sentences of the exercises: how to answer, and what an answer does."""

from __future__ import annotations

from collections import Counter
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

#: The number of the lesson that each subject belongs to, in course order.
LESSONS = {
    "arrays": 1,
    "running": 2,
    "roofline": 3,
    "collectives": 4,
    "torus": 5,
    "matmul": 6,
    "parallelism": 7,
    "zero": 8,
    "compiler": 9,
    "pods": 10,
    "memory": 11,
    "rules": 12,
    "tables": 13,
    "debugging": 14,
    "keep": 15,
    "arithmetic": 16,
    "far": 17,
    "overlap": 18,
    "measured": 19,
    "shard_map": 20,
    "sequence": 21,
    "ring": 22,
    "cache": 23,
    "pipeline": 24,
    "accumulation": 25,
    "slices": 26,
    "random": 27,
    "explicit": 28,
    "experts": 29,
}


def task_end(name: str) -> str:
    """Explains in Markdown how to answer an exercise."""
    return (
        f"These values are in `exercises.setup({name!r})`. Answer with"
        f" `exercises.check({name!r}, …)`."
    )


def no_more_hints(name: str) -> str:
    """The text that replaces a hint after the last one."""
    return f"There are no more hints. `exercises.solution({name!r})` shows an answer."


#: The error of `solution` while solutions are locked.
SOLUTIONS_HIDDEN = "Solutions are hidden; exercises.unlock(word) shows them again."

#: The error of `lock` if another word already hides the solutions.
LOCKED_ALREADY = (
    "Solutions are hidden already. Show them with exercises.unlock(word) before another"
    " word hides them."
)


def locked(hashed: str) -> str:
    """Describes a lock, and how to hide solutions in other people's notebooks."""
    return (
        "Solutions are hidden until exercises.unlock(word). To hide them in someone"
        f" else's notebook, write exercises.lock(hashed={hashed!r}), which does not show the word."
    )


def not_the_word(word: str) -> str:
    """The error of `unlock` for a wrong word."""
    return f"{word} is not the word that hid the solutions."


def no_word(word: str) -> str:
    """The error of `lock` and `unlock` for empty text or another type."""
    return f"The word must be a non-empty string; got {word}."


def marks_table(marks: Iterable[tuple[str, int, bool, int, bool]]) -> str:
    """Formats marks (name, answers, right, hints, solution seen) as a table.

    >>> print(marks_table([]))
    No exercise was begun.
    """
    rows = [("exercise", "answers", "right", "hints", "solution seen")]
    right = 0
    for name, tried, is_right, hints, solution_seen in marks:
        right += is_right
        cells = (str(tried), _YES[is_right], str(hints), _YES[solution_seen])
        rows.append((name, *cells))
    if len(rows) == 1:
        return "No exercise was begun."
    width = max(len(row[0]) for row in rows)
    lines = []
    for name, tried, is_right, hints, solution in rows:
        lines.append(
            f"{name:{width}}  {tried:>7}  {is_right:5}  {hints:>5}  {solution}"
        )
    return "\n".join(
        [*lines, f"Right: {right} of {plural(len(rows) - 1, 'begun exercise')}."]
    )


_YES = {True: "yes", False: "no"}


def shards_text(layout: Layout) -> str:
    """Describes the shards of a layout.

    >>> from shardviz.base.layout import lay_out
    >>> from shardviz.base.mesh import MeshSpec
    >>> print(shards_text(lay_out((8, 4), Spec.parse("x"), MeshSpec(("x", "y"), (4, 2)))))
    With P('x'), each device holds a [2, 4] shard (32 B), and 2 devices hold each shard.
    """
    replicas = "no two devices hold the same shard"
    if layout.replicas > 1:
        replicas = f"{plural(layout.replicas, 'device')} hold each shard"
    return (
        f"With {'this sharding' if layout.spec is None else layout.spec}, each device holds a {list(layout.shard_shape)} shard"
        f" ({bytes_text(layout.bytes_per_device)}), and {replicas}."
    )


def unknown_names(names: Iterable[str]) -> str:
    """Lists logical names that no dimension has; `""` if there are none."""
    return clause(" No dimension is called {}.", listed(sorted(names), "or"))


def takes(path: str, spec: Spec | None, size: int, mesh: object, arrays: int) -> str:
    """Describes the bytes of one or several arrays on a mesh.

    Args:
        path, spec: path and spec of the largest array.
        size: bytes of all arrays on each device.
        mesh: the mesh.
        arrays: the number of arrays.
    """
    per_device = f"{bytes_text(size)} per device"
    if arrays == 1:
        return f"{path} becomes {spec}, {per_device}."
    return (
        f"On {mesh}, the arrays take {per_device}; the largest is {path}, split as"
        f" {spec}."
    )


def read_as(name: str, linen: Spec | None, nnx: Spec | None) -> str:
    """Names the specs that an array gets from the same table in two dialects."""
    return f"Read as linen, {name} becomes {linen}; read as nnx, {nnx}."


def serves(batch: int, used: int, memory: int) -> str:
    """Describes the memory used on each device to serve a batch of sequences."""
    return (
        f"With {batch:,} sequences, each device holds {bytes_text(used)} of"
        f" {bytes_text(memory)}."
    )


def lists(names: Iterable[str]) -> str:
    """Confirms the names in a right answer."""
    return f"That is right: {joined(sorted(names))}."


def contract(good: str, bad: str) -> str:
    """Quotes a test's messages for a good and a bad audit; `""` if a test passed."""
    return (
        f"For the good audit, your test raises {good or 'nothing'}; for the bad one, it raises"
        f" {bad or 'nothing'}."
    )


def does_not_compile(message: str) -> str:
    """Explains why a program cannot be planned, compiled or run."""
    return f"The program does not compile: {' '.join(message.split())[:300]}"


def raises(error: Exception) -> str:
    """Names the error that an answer's function raises.

    >>> raises(ValueError("incompatible devices"))
    'Your function raises a ValueError: incompatible devices'
    """
    message = " ".join(str(error).split())[:300]
    return f"Your function raises a {type(error).__name__}: {message}"


def moves(collectives: Iterable[Collective]) -> str:
    """Lists collectives in a phrase; equal ones once, with their number.

    >>> gather = Collective("all-gather", ("U",), 2048, group_size=2)
    >>> moves([gather]), moves([gather, gather])
    ('all-gather that sends 1 KiB over U', '2 × all-gather that sends 1 KiB over U')
    """
    counts: Counter[str] = Counter()
    for collective in collectives:
        size = collective.sent_text(collective.bytes_per_device)
        axes = " × ".join(collective.axes_in_words)
        counts[f"{collective.kind} that sends {size} over {axes}"] += 1
    phrases = []
    for phrase, count in counts.items():
        phrases.append(phrase if count == 1 else f"{count} × {phrase}")
    return joined(phrases, limit=4) or "no collective"


def costs(head: str, collectives: Iterable[Collective], sent: int) -> str:
    """Lists an answer's collectives, and the bytes that each device sends."""
    text = f"{head}: {moves(collectives)}"
    if sent:
        text += f"; each device sends {bytes_text(sent)}"
    return f"{text}."


def inserts(collectives: Iterable[Collective]) -> str:
    """Lists the collectives that XLA's partitioner inserts."""
    return f"The partitioner inserts {moves(collectives)}."


def shards(layouts: Mapping[str, Layout]) -> str:
    """Describes the number and shape of each array's shards."""
    parts = []
    for name, layout in layouts.items():
        count = plural(layout.num_blocks, "shard")
        parts.append(f"{name} is in {count} of {list(layout.shard_shape)}")
    return f"{joined(parts)}."


def result_is(spec: Spec, rows: int | None = None) -> str:
    """Names the spec of a program's result."""
    start = "The"
    if rows is not None:
        start = f"With {rows:,} rows the"
    return f"{start} result has the spec {spec}."


def close(amount: str) -> str:
    """A hint for an amount that is rounded too much or has a wrong unit."""
    return f"{amount} is close. Write three digits or more, and note that 1 MB is not 1 MiB."


def another_result(spec: Spec, written: Spec) -> str:
    """A hint if an answer names a wrong spec for the product.

    >>> another_result(Spec.parse("x, y"), Spec.parse("x"))
    "With these factors the product has the spec P('x', 'y'); you wrote P('x')."
    """
    return f"With these factors the product has the spec {spec}; you wrote {written}."
