"""Why the estimate of a plan has a collective, and where it may differ from XLA's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardviz.core.format import joined
from shardviz.core.program.cause import author_of
from shardviz.core.program.plan_causes import (
    MoveCause,
    OperandCause,
    PrintCause,
    ShardingRequest,
    SumCause,
    WrittenCause,
)
from shardviz.core.program.plan_values import dims_over
from shardviz.core.program.uncertain import Uncertain
from shardviz.core.wording.causes import REDUCES, who_wrote

_EDGES = "may exchange what crosses the borders of shards"
_GATHER = "may gather it"
_OTHER = "may move it in other steps"

#: Code to what a value is, and what XLA's partitioner does with what is split.
KINDS: Mapping[str, tuple[str, str]] = {
    # What reads, along a split dimension, elements that another device holds.
    "pad": ("a padding", _EDGES),
    "slice": ("a slice", _EDGES),
    "moved slice": ("a slice", "may move it before it slices it, or after"),
    "slice of one": ("an index", "may sum what only one shard holds"),
    "reverse": ("a reversal", "may swap the shards"),
    "concatenate": ("a concatenation", _EDGES),
    "convolution": ("a convolution", _EDGES),
    "reduce_window": ("a sliding window", _EDGES),
    "select_and_scatter": ("the gradient of a pooling", _EDGES),
    "cumulative": ("a cumulative operation", _GATHER),
    "dynamic_slice": ("a dynamic slice", _GATHER),
    "dynamic_update_slice": ("a dynamic update of a slice", _GATHER),
    "top_k": ("top_k", _GATHER),
    "fft": ("a Fourier transform", _GATHER),
    "reduce": ("a reduction of pairs", "may gather what each device picked"),
    "reshape": ("a reshape", _GATHER),
    "groups": ("a convolution in groups", _GATHER),
    "channels": ("the channels of a convolution", _GATHER),
    # What XLA cannot split.
    "call": ("code that XLA does not look into", _GATHER),
    "matrix": ("an operation on whole matrices", "gathers each matrix"),
    "host": ("a call of Python on the host of one device", "gathers all of it"),
    # What wants a mesh axis in two places.
    "gather": ("a lookup by indices", _OTHER),
    "scatter": ("a write at indices", _OTHER),
    "two factors": (
        "a product with two dimensions over one axis",
        "may split one over another axis, or gather it",
    ),
    "moved operand": (
        "a product of which an operand is moved first",
        "may gather all of the operand and sum nothing",
    ),
    "summed result": (
        "a product whose result is split over what it sums",
        "may sum in other steps",
    ),
    "other dimension": (
        "a product split along other dimensions than its operands",
        _GATHER,
    ),
    # What is moved, whatever reads it.
    "again": ("what was moved in this way before", "may move it once for both"),
    "steps": ("what is moved in several steps", _OTHER),
    "part": ("what is split over a part of an axis", _OTHER),
}


def uncertain(fact: Uncertain) -> str:
    """Why the estimate at a value is uncertain.

    >>> print(uncertain(Uncertain("reverse", ("model",), 1)))
    The estimate is uncertain here: a reversal along dimension 1, split over model. ...
    """
    what, does = KINDS[fact.code]
    if fact.dim is not None:
        what += f" along dimension {fact.dim}"
    if fact.axes:
        what += f", split over {' × '.join(fact.axes)}"
    return (
        f"The estimate is uncertain here: {what}."
        f" XLA's partitioner {does}; compile to know."
    )


def reduces(reducer: str, otherwise: str = "reduces") -> str:
    """What a reduction does, as a verb.

    >>> reduces("maximum"), reduces("xor")
    ('takes the maximum', 'reduces')
    """
    return REDUCES.get(reducer, otherwise)


def why_summed(cause: SumCause) -> str:
    """Why the result of an operation is a sum over devices.

    >>> print(why_summed(SumCause("dot_general", ("model",), "inner")))
    dot_general sums over its inner dimension, which is split over model: each device ...
    """
    name, split = cause.value, f"split over {joined(cause.axes)}"
    if cause.code == "part":
        return f"Each device has a part of {name}; here they are summed."
    verb = reduces(cause.reducer, "combines")
    words, part = {
        "inner": (
            f"{name} sums over its inner dimension, which is {split}",
            "each device has a part of the sum",
        ),
        "channels": (
            f"{name} sums over a dimension of its operands that is {split}",
            "each device has a part of the sum",
        ),
        "reduce": (
            f"{name} {verb} over {along(cause.dims)}, {split}",
            "each device has a part of the result",
        ),
        "gather": (
            f"{name} looks up entries of an array that is {split}",
            "each device finds those that it holds",
        ),
        "scatter": (
            f"{name} writes updates that are {split} into one array",
            "each device has written its own",
        ),
        "other": (
            f"{name} combines values that are {split}",
            "each device has a part of the result",
        ),
    }[cause.code]
    kept = ", and keeps its shard of the result" if cause.kept else ""
    return f"{words}: {part}{kept}."


def why_moved(cause: MoveCause) -> str:
    """Why a value is moved on the way to what needs it.

    >>> from shardviz.core.layout.partition_spec import Spec
    >>> split, needed = Spec.parse("data"), Spec.parse("None")
    >>> cause = MoveCause("x", ("data",), "all-gather", split, needed, "op", "sort")
    >>> print(why_moved(cause))
    x is split over data and sort needs that dimension not split.
    """
    again = " It was moved so before." if cause.again else ""
    return f"{_capital(_moved(cause))}{again}"


def _moved(cause: MoveCause) -> str:
    before, after = cause.before, cause.after
    made, over = _made(cause), joined(cause.axes)
    from_dims, to_dims = dims_over(before, cause.axes), dims_over(after, cause.axes)
    has = f"{made} is split over {over}" if from_dims else f"{made} is {before}"
    if cause.asked is not None:
        return f"{_asker(cause.asked)} asks for {after}, and {has}."
    if cause.code == "result":
        return f"the result is requested as {after}, and {has}."
    if cause.code == "loop":
        return f"the loop carries it as {after}, and {has}."
    if cause.code == "return":
        return f"{cause.user or 'the function'} gives it as {after}, and {has}."
    user = cause.user or "what reads it"
    if cause.code == "call":
        return f"{user} is called with it as {after}, and {has}."
    if cause.kind == "all-gather" and from_dims:
        which = "that dimension" if len(from_dims) == 1 else "those dimensions"
        return f"{made} is split over {over} and {user} needs {which} not split."
    if cause.kind == "all-to-all" and from_dims and to_dims and from_dims != to_dims:
        return (
            f"{made} is split over {over} along {along(from_dims)} and {user} needs it"
            f" split along {along(to_dims)}."
        )
    return f"{made} is {before} and {user} needs {after}."


def _made(cause: MoveCause) -> str:
    if cause.under is None:
        return cause.value
    return f"{cause.value}, under {_asker(cause.under)},"


def _asker(request: ShardingRequest) -> str:
    article = "a" if request.kind in ("constraint", "reshard") else "the"
    at = f" at {request.source}" if request.source else ""
    return f"{article} {request.kind}{at}"


def _capital(sentence: str) -> str:
    # A name of the program keeps its letters.
    for word in ("a ", "the "):
        if sentence.startswith(word):
            return sentence[0].upper() + sentence[1:]
    return sentence


def why_gathered(cause: OperandCause) -> str:
    """Why an operand of a product is gathered."""
    again = " It was moved so before." if cause.again else ""
    return (
        f"{cause.value} is split over {joined(cause.axes)}, over which {cause.product}"
        f" sums. XLA gathers it and sums nothing.{again}"
    )


def why_printed(cause: PrintCause) -> str:
    """Why a value is gathered for a call of Python."""
    return (
        f"{cause.value} is split over {joined(cause.axes)}, and {cause.user} calls"
        " Python on the host of one device: XLA gathers all of it, each time."
    )


def why_written(cause: WrittenCause) -> str:
    """Who has put a collective into the program.

    >>> cause = WrittenCause("psum", ("data",), "jit(f)/shard_map/psum", "shard_map")
    >>> why_written(cause)
    'It is written in the program: psum, inside shard_map.'
    """
    at = f" at {cause.source}" if cause.source else ""
    who = who_wrote(author_of(cause.op), joined(cause.axes))
    return f"{who}: {cause.value}{at}, inside {cause.inside}."


def along(dims: Sequence[int]) -> str:
    """Dimensions by number.

    >>> along([1]), along([0, 1])
    ('dimension 1', 'dimensions 0 and 1')
    """
    return f"dimension {dims[0]}" if len(dims) == 1 else f"dimensions {joined(dims)}"


SENTENCES = {
    Uncertain: uncertain,
    SumCause: why_summed,
    MoveCause: why_moved,
    OperandCause: why_gathered,
    PrintCause: why_printed,
    WrittenCause: why_written,
}
