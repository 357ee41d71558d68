"""Sentences for why a plan has a collective, and why XLA may use others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardviz.base.axis_parts import dims_over
from shardviz.base.cause import author_of
from shardviz.base.format import by_count, clause, joined
from shardviz.base.words.causes import REDUCES, gradient, of_a_gradient
from shardviz.plans.plan_causes import (
    MoveCause,
    PrintCause,
    SumCause,
    WrittenCause,
)
from shardviz.plans.uncertain import Uncertain

#: Code of an Uncertain -> clause that gives the reason.
KINDS: Mapping[str, str] = {
    "along": "{op} may read data that other devices hold",
    "call": "{op} needs its operands unsplit",
    "indices": "{op} reads or writes elements by index",
    "product": "in {op}, a mesh axis splits two different dimensions, or only one operand",
    "result": "the result of {op} is resharded, and XLA may move the operands instead",
    "move": "the value or an operand is moved more than once, or in several steps",
    "uneven": "a dimension that does not divide evenly is split into other parts",
}


def uncertain(fact: Uncertain) -> str:
    """Explains why the estimate at a value is uncertain.

    >>> print(uncertain(Uncertain("along", ("model",), "reverse")))
    The estimate is uncertain here: reverse may read data that other devices hold (along ...
    """
    reason = KINDS[fact.code].format(op=fact.op or "it")
    if fact.axes:
        reason += f" (along {' × '.join(fact.axes)})"
    return (
        f"The estimate is uncertain here: {reason}. XLA's partitioner may use other"
        " collectives; a compile shows them."
    )


def reduces(reducer: str, otherwise: str = "reduces") -> str:
    """Returns the verb for a reduction.

    >>> reduces("maximum"), reduces("xor")
    ('takes the maximum', 'reduces')
    """
    return REDUCES.get(reducer, otherwise)


def why_summed(cause: SumCause) -> str:
    """Explains why the result of an operation is reduced over devices.

    >>> print(why_summed(SumCause("dot_general", ("model",), "inner")))
    dot_general sums over its inner dimension, which is split over model: each device ...
    """
    split = f"split over {joined(cause.axes)}"
    part = "each device has a partial result"
    if cause.code == "inner":
        does = f"sums over its inner dimension, which is {split}"
    elif cause.code == "reduce":
        verb = reduces(cause.reducer, "combines")
        which = by_count(len(cause.dims), "which is", "which are")
        does = f"{verb} over {along(cause.dims)}, {which} {split}"
    elif cause.code == "gather":
        does = f"looks up entries of an array that is {split}"
        part = "each device finds only the entries that it holds"
    elif cause.code == "scatter":
        does = f"writes updates that are {split} into one array"
        part = "each device has written only its own updates"
    else:
        does = f"combines values that are {split}"
    # For a reduce-scatter instead of an all-reduce.
    if cause.kept:
        part += ", and needs only its shard of the final result"
    return f"{cause.value} {does}: {part}."


def why_moved(cause: MoveCause) -> str:
    """Explains why a value is moved to another sharding.

    >>> from shardviz.base.partition_spec import Spec
    >>> split, needed = Spec.parse("data"), Spec.parse("None")
    >>> cause = MoveCause("x", ("data",), "all-gather", split, needed, "op", "sort")
    >>> print(why_moved(cause))
    x is split over data along dimension 0, and sort needs that dimension unsplit.
    """
    sentence = _why_moved(cause)
    if cause.through:
        return f"{sentence[:-1]}: XLA moves {cause.value} before {cause.through}."
    return sentence


def _why_moved(cause: MoveCause) -> str:
    before, after, name = cause.before, cause.after, cause.value
    over = joined(cause.axes)
    from_dims, to_dims = dims_over(before, cause.axes), dims_over(after, cause.axes)
    has = f"{name} is {before}"
    if from_dims:
        has = f"{name} is split over {over}"
    if cause.code == "result":
        return f"The result must be {after}, but {has}."
    if cause.code == "own":
        return f"{name} is computed as {before}, but propagation makes it {after}."
    if cause.code in _ASKERS:
        at = clause(" at {}", cause.source)
        return f"{_ASKERS[cause.code]}{at} asks for {after}, but {has}."
    if cause.code == "call":
        return f"{has}, and XLA's partitioner does not split {cause.user} that way."
    user = cause.user or "its reader"
    if cause.kind == "all-gather" and from_dims:
        dims = by_count(len(from_dims), "that dimension", "those dimensions")
        return f"{has} along {along(from_dims)}, and {user} needs {dims} unsplit."
    if cause.kind == "all-to-all" and from_dims and to_dims and from_dims != to_dims:
        return (
            f"{has} along {along(from_dims)}, and {user} needs it split along"
            f" {along(to_dims)}."
        )
    return f"{name} is {before}, and {user} needs {after}."


# Code of a MoveCause -> the request for the new sharding, as a sentence's subject.
_ASKERS = {
    "constraint": "A constraint",
    "reshard": "A reshard",
    "shard_map": "The shard_map",
    "loop": "The loop",
}


def why_printed(cause: PrintCause) -> str:
    """Explains why a value is gathered for a Python callback."""
    return (
        f"{cause.value} is split over {joined(cause.axes)}, and {cause.user} calls"
        " Python on the host of one device, so each call gathers the whole value on that device."
    )


def why_written(cause: WrittenCause) -> str:
    """Explains a collective that the program itself calls, or that `jax.grad` added.

    >>> cause = WrittenCause("psum", ("data",), "jit(f)/shard_map/psum", "shard_map")
    >>> why_written(cause)
    'The program itself calls this collective: psum, inside shard_map.'
    """
    at = clause(" at {}", cause.source)
    collective = f"{cause.value}{at}, inside {cause.inside}"
    if cause.gradient_of:
        over = joined(cause.axes)
        return gradient(cause.gradient_of, cause.source, over, cause.kind)
    if author_of(cause.op) == "gradient":
        return of_a_gradient(collective)
    return f"The program itself calls this collective: {collective}."


def along(dims: Sequence[int]) -> str:
    """Formats dimension numbers.

    >>> along([1]), along([0, 1])
    ('dimension 1', 'dimensions 0 and 1')
    """
    return f"{by_count(len(dims), 'dimension', 'dimensions')} {joined(dims)}"


SENTENCES = {
    Uncertain: uncertain,
    SumCause: why_summed,
    MoveCause: why_moved,
    PrintCause: why_printed,
    WrittenCause: why_written,
}
