"""What the exercises say: how they are answered, and what a right answer does."""

from __future__ import annotations

from collections.abc import Iterable

from shardviz.core.format import (
    bytes_text,
    clause,
    joined,
    listed,
    plural,
    seconds_text,
)
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.report import Collective

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


def task_end(name: str) -> str:
    """How an exercise is answered, in Markdown."""
    return (
        f"These are in `exercises.setup({name!r})`. Answer with"
        f" `exercises.check({name!r}, …)`."
    )


def no_more_hints(name: str) -> str:
    """What stands in place of a fourth hint."""
    return f"There are no more hints. `exercises.solution({name!r})` shows an answer."


def says(layout: Layout) -> str:
    """What a layout does.

    >>> from shardviz.core.layout.layout import lay_out
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


def idle_axes(axes: Iterable[str]) -> str:
    """Which mesh axes split nothing; empty where there are none."""
    return clause("Nothing is split over {}.", listed(axes))


def unknown_names(names: Iterable[str]) -> str:
    """Names in a table that no dimension has; empty where there are none."""
    return clause(" No dimension is called {}.", listed(sorted(names), "or"))


def holds_rows(spec: Spec | None, device: int, rows: slice) -> str:
    """Which rows a device holds."""
    return f"With {spec} device {device} holds rows {rows.start} to {rows.stop - 1}"


def same_coordinate(ids: Iterable[int], axis: str, device: int) -> str:
    """Which devices are at the same place of an axis."""
    return f"Devices {listed(sorted(ids))} are where {device} is along {axis}."


def shard_on(mesh: MeshSpec, shape: Iterable[int]) -> str:
    """The shard that every device of a mesh holds."""
    return f"On {mesh} every shard is {list(shape)}."


def becomes(name: str, spec: Spec | None, held: int | None = None) -> str:
    """How an array is split, and what each device holds of it."""
    if held is None:
        return f"{name} becomes {spec}."
    return f"{name} becomes {spec}, {bytes_text(held)} per device."


def read_as(name: str, linen: Spec | None, nnx: Spec | None) -> str:
    """How an array is split by two readers of one table."""
    return f"Read as linen, {name} becomes {linen}; read as nnx, {nnx}."


def no_difference(name: str, spec: Spec | None, repeats: bool) -> str:
    """Two readers of a table that split an array alike."""
    # The two differ in which of several rules for a name they take.
    why = "No name has two rules."
    if repeats:
        why = "Both decide alike here."
    return f"Read as linen and as nnx, {name} becomes {spec}. {why}"


def at_least(seconds: float, flops: float) -> str:
    """The least time of a step at the peak rate of a chip."""
    return f"At least {seconds_text(seconds)}, at {flops / 1e12:.0f} TFLOP/s per chip."


def takes(what: str, held: int, mesh: MeshSpec | None = None) -> str:
    """What each device holds of a model, without a full stop."""
    where = "The"
    if mesh is not None:
        where = f"On {mesh} the"
    return f"{where} {what} takes {bytes_text(held)} per device"


def serves(batch: int, held: int) -> str:
    """What a device holds while it serves so many sequences, without a full stop."""
    return f"With {batch:,} sequences each device holds {bytes_text(held)}"


def lists(paths: Iterable[str]) -> str:
    """The arrays that a right answer names."""
    return f"These are {listed(sorted(paths))}."


def contract(failure: str) -> str:
    """A test that finds the planted mistake."""
    return f"It passes for the good audit, and fails for the bad one: {failure}"


def does_not_compile(message: str) -> str:
    """Why a program has no plan or no compiled form."""
    return f"The program does not compile so: {' '.join(message.split())[:300]}"


def moves(some: Iterable[Collective]) -> str:
    """Collectives as a phrase.

    >>> moves([Collective("all-gather", ("U",), 2048)])
    'all-gather of 2 KiB over U'
    """
    phrases = []
    for collective in some:
        size = bytes_text(collective.bytes_per_device)
        axes = " × ".join(collective.mesh_axes)
        phrases.append(f"{collective.kind} of {size} over {axes}")
    return joined(phrases, limit=4) or "no collective"


def product(spec: Spec) -> str:
    """A product for which nothing moves."""
    return f"The product is {spec}, and nothing moves."


def pair_needs(a: Layout, b: Layout, some: Iterable[Collective]) -> str:
    """The collectives of a product of two arrays."""
    return f"A as {a.spec} and B as {b.spec} need {moves(some)}."


def array_needs(name: str, layout: Layout, some: Iterable[Collective]) -> str:
    """The collectives of a program in which one array is split so."""
    return f"With {name} as {layout.spec} it needs {moves(some)}."


def array_sends(
    name: str, layout: Layout, sent: int, some: Iterable[Collective]
) -> str:
    """What each device sends where one array is split so."""
    return (
        f"With {name} as {layout.spec} each device sends {bytes_text(sent)}:"
        f" {moves(some)}."
    )


def reshards(
    before: Spec | None, after: Spec | None, some: Iterable[Collective]
) -> str:
    """The collectives between two specs of one array."""
    return f"From {before} to {after} takes {moves(some)}."


def sends(sent: float, collective: Collective) -> str:
    """What each device sends in a collective."""
    axes = joined(collective.mesh_axes)
    return f"Each device sends {bytes_text(int(sent))} in the {collective.kind} over {axes}."


def ring(seconds: float, size: int, rate: float) -> str:
    """The least time around a ring, in both directions."""
    return f"{seconds_text(seconds)}: {bytes_text(size)} both ways at {rate / 1e9:.0f} GB/s."


def inserts(some: Iterable[Collective]) -> str:
    """The collectives that XLA's partitioner inserts, without a full stop."""
    return f"The partitioner inserts {moves(some)}"


def experts_stay(some: Iterable[Collective]) -> str:
    """Expert parallelism: the experts stay, and tokens move."""
    return f"Every device holds two experts; the tokens move by {moves(some)}."


def came_from(name: str) -> str:
    """The argument that an axis came from."""
    return f"It came from {name}."


def result_is(spec: Spec, rows: int | None = None) -> str:
    """How the result of a program is split."""
    where = "The"
    if rows is not None:
        where = f"With {rows:,} rows the"
    return f"{where} result is {spec}."


def by_way_of(spec: Spec | None, sent: int, direct: int) -> str:
    """What a constraint in between saves."""
    return (
        f"By way of {spec} each device sends {bytes_text(sent)} instead of"
        f" {bytes_text(direct)}."
    )
