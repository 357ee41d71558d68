"""Sentences that explain a collective, and names of the values that it moves."""

from __future__ import annotations

from shardviz.base.cause import (
    UNKNOWN,
    AddedByGrad,
    AxisPart,
    Cause,
    Contracted,
    FromOneDevice,
    Gathered,
    Moved,
    Reduced,
    Rematerialised,
    Resplit,
    Sent,
    Summed,
    Unsplittable,
    ValueName,
    WithinOperation,
    Written,
    axes_in_words,
)
from shardviz.base.collective_kind import KINDS, Effect
from shardviz.base.format import clause, joined, with_article

# Name of the reduction operation -> verb.
REDUCES = {
    "add": "sums",
    "maximum": "takes the maximum",
    "minimum": "takes the minimum",
    "multiply": "multiplies",
    "and": "takes the logical and",
    "or": "takes the logical or",
}
#: Verbs for the effect of a collective on its operand.
VERBS = {
    Effect.SUM: "sums",
    Effect.GATHER: "gathers",
    Effect.EXCHANGE: "moves",
    Effect.SEND: "moves",
    Effect.COPY: "moves",
}
#: Effect of a collective -> clause, if the collective is a step of one operation.
STEPS_WITHIN = {
    Effect.SUM: "parts are sent",
    Effect.GATHER: "each device's part of the result is gathered",
    Effect.EXCHANGE: "shards are exchanged",
    Effect.SEND: "shards are sent to other devices",
    Effect.COPY: "parts are sent",
}


def value_name(value: ValueName) -> str:
    """Formats the name of a value.

    >>> value_name(ValueName("operation", "dot_general", "mlp.py:31"))
    'dot_general (mlp.py:31)'
    """
    if value.code == "argument":
        return f"argument {value.name}"
    if value.code == "slice":
        return f"a slice of argument {value.name}"
    if value.code == "carried":
        return f"the carry of the loop{_at(value)}"
    if value.code == "unknown":
        return "unknown"
    return value.name + clause(" ({})", value.source)


def _at(value: ValueName) -> str:
    return clause(" at {}", value.source)


def _first(text: str, value: ValueName) -> str:
    """Capitalizes the text that starts a sentence, unless it names an operation."""
    if value.code == "operation":
        return text
    return text[0].upper() + text[1:]


def _axes(cause: Cause, otherwise: str) -> str:
    if not cause.axes:
        return otherwise
    return joined(axes_in_words(cause.axes, cause.parts))


def axis_part(fact: AxisPart) -> str:
    """Formats the part of a mesh axis that each group covers.

    >>> axis_part(AxisPart("data", 2, 4))
    '2 of 4 along data'
    """
    return f"{fact.devices} of {fact.size} along {fact.axis}"


def gradient(argument: str, line: str, over: str, kind: str) -> str:
    """Why the gradient of an array is summed over devices.

    >>> gradient("params.w1", "mlp.py:3", "data", "all-reduce")[:44]
    'Gradient of params.w1 (mlp.py:3): all device'
    """
    array = f"Gradient of {argument}{clause(' ({})', line)}:"
    if not KINDS[kind].equal_results:
        return (
            f"{array} the forward pass gathers {argument} over {over}, so its gradients are"
            f" summed over {over}, and each device keeps its shard."
        )
    return (
        f"{array} all devices along {over} hold the same {argument}, so its gradients are"
        f" summed over {over}."
    )


def of_a_gradient(operation: str) -> str:
    """A sentence for a collective of a backward pass whose array is unknown.

    >>> of_a_gradient("psum (mlp.py:3)")[:53]
    'This collective belongs to a gradient: psum (mlp.py:3'
    """
    return (
        f"This collective belongs to a gradient: {operation}. It comes from the gradient of"
        " another collective or of a value that several devices share, or from a custom_vjp"
        " of the program."
    )


def _written(fact: Written) -> str:
    return f"The program itself calls this collective: {_operation(fact)}."


def _added_by_grad(fact: AddedByGrad) -> str:
    if fact.gradient_of is None:
        return of_a_gradient(_operation(fact))
    line = "" if fact.operation is None else fact.operation.source
    array = fact.gradient_of.name
    if fact.gradient_of.code == "slice":
        array = str(fact.gradient_of)
    return gradient(array, line, _axes(fact, "all devices"), fact.kind)


def _operation(fact: Cause) -> str:
    # A sentence that ends with "of unknown" would be odd.
    operand = value_name(fact.operand)
    if fact.operand == UNKNOWN:
        operand = "an operand that the compiler does not name"
    return f"{fact.operation} of {operand}"


def _unknown(fact: Cause) -> str:
    # There is a cause, but the module does not record it.
    verb = VERBS[KINDS[fact.kind].effect]
    return f"The compiler does not name the value that this collective {verb}."


def _from_one(fact: FromOneDevice) -> str:
    return (
        f"{_asks(fact.wanted_by)} the part of {fact.operand} that one device along"
        f" {_axes(fact, 'all its devices')} holds. The other devices contribute zeros, so a"
        " sum brings this part to every device."
    )


def _asks(asker: ValueName | None, the: str = "The") -> str:
    """The reader of a value, with a verb: `dot_general (mlp.py:31) needs`."""
    if asker is None:
        return f"{the} program returns"
    if asker.is_request:
        return f"{_request(asker, the)} asks for"
    if asker.code == "carried" and the == "The":
        return f"{_first(value_name(asker), asker)} needs"
    return f"{asker} needs"


def _request(asker: ValueName, the: str) -> str:
    # Use the name of the jax function, not of its primitive.
    return f"{the} {asker.name.removeprefix('sharding_')}{_at(asker)}"


def _behind(fact: Moved, how: str, moves: str) -> str:
    """Explains a move that only an operation after the value's reader needs.

    Args:
        fact: the cause.
        how: what the value's sharding must be, such as `be split differently`.
        moves: XLA's action, such as `gathers it`.
    """
    asker, reads = fact.wanted_by, fact.through
    if fact.beside is not None:
        return f"{reads} combines it with {fact.beside}, which is split differently"
    before = f": XLA {moves} before {reads}{clause(', as {}', fact.dtype)}"
    if asker is None:
        return f"the result, which is computed from it, must {how}{before}"
    if asker == UNKNOWN:
        return f"XLA decides that {reads} must {how}"
    if asker.code == "carried":
        return f"{asker}, which is computed from it, must {how}{before}"
    if asker.is_request:
        request = _request(asker, "the")
        return f"{request} asks that a value computed from it {how}{before}"
    return f"{asker} reads a value computed from it that must {how}{before}"


def _summed(fact: Summed) -> str:
    verb = _verb(fact)
    together = "they are summed" if verb == "sums" else f"XLA {verb} them"
    if verb.startswith("takes"):
        together = f"XLA {verb} of them"
    over = _axes(fact, "all its devices")
    return f"The devices have partial values of {fact.operand}: {together} over {over}."


def _contracted(fact: Contracted) -> str:
    does = "sums over a dimension of its operands that is"
    if fact.operand.name.startswith("dot"):
        does = "sums over its inner dimension, which is"
    return _completed(fact, does)


def _reduced(fact: Reduced) -> str:
    return _completed(fact, f"{_verb(fact)} over a dimension that is")


def _completed(fact: Reduced, does: str) -> str:
    kept = ""
    if not KINDS[fact.kind].equal_results:
        kept = ", and needs only its shard of the final result"
    loop = ""
    if fact.vmapped_loop:
        loop = (
            " Under vmap, a loop runs until all rows are done, so the devices communicate in"
            " every iteration; under jax.shard_map, each device ends its own loop."
        )
    over = _axes(fact, "all its devices")
    part = "each device has a partial result"
    return f"{fact.operand} {does} split over {over}: {part}{kept}.{loop}"


def _verb(fact: Summed) -> str:
    return REDUCES.get(fact.reducer, "combines")


def _within(fact: WithinOperation) -> str:
    over = _axes(fact, "all its devices")
    step = STEPS_WITHIN[KINDS[fact.kind].effect]
    return f"This collective is a step within {fact.operation}: {step} over {over}."


def _gathered(fact: Gathered) -> str:
    split = _split(fact, fact.dimension)
    if fact.through is not None:
        return f"{split}, and {_behind(fact, 'not be split that way', 'gathers it')}."
    return f"{split}, and {_asks(fact.wanted_by, 'the')} it without that split."


def _unsplittable(fact: Unsplittable) -> str:
    return (
        f"{_split(fact, fact.dimension)}, and XLA's partitioner does not split"
        f" {fact.wanted_by} that way: it gathers the operand."
    )


def _resplit(fact: Resplit) -> str:
    if fact.through is not None:
        behind = _behind(fact, "be split differently", "exchanges its shards")
        return f"{_split(fact)}, and {behind}."
    asks = _asks(fact.wanted_by, "the")
    return f"{_split(fact)}, and {asks} it split along another dimension."


def _sent(fact: Sent) -> str:
    if fact.through is not None:
        behind = _behind(fact, "be split differently", "sends its shards")
        return f"{_split(fact)}, and {behind}."
    over = _axes(fact, "devices")
    return (
        f"{_asks(fact.wanted_by)} shards of {fact.operand} that other devices along {over}"
        " hold."
    )


def _split(fact: Moved, dimension: int | None = None) -> str:
    """How the operand is split before it moves: `Argument w is split over data`."""
    # `dimension` is None if a reshape may have changed the dimensions.
    along = ""
    if dimension is not None:
        along = f" along dimension {dimension}"
    operand = _first(value_name(fact.operand), fact.operand)
    if fact.before == "slice":
        operand = f"A slice of {value_name(fact.operand)}"
    elif fact.before:
        operand = f"After {with_article(fact.before)}, {value_name(fact.operand)}"
    return f"{operand} is split over {_axes(fact, 'devices')}{along}"


def _rematerialised(fact: Rematerialised) -> str:
    return (
        "XLA's partitioner found no efficient way to change the sharding of"
        f" {fact.operand}, so every device makes all of it ({fact.full}) and keeps"
        f" {fact.part}."
    )


SENTENCES = {
    AxisPart: axis_part,
    ValueName: value_name,
    Written: _written,
    AddedByGrad: _added_by_grad,
    Contracted: _contracted,
    Reduced: _reduced,
    Summed: _summed,
    FromOneDevice: _from_one,
    WithinOperation: _within,
    Sent: _sent,
    Gathered: _gathered,
    Resplit: _resplit,
    Unsplittable: _unsplittable,
    Rematerialised: _rematerialised,
    Cause: _unknown,
}
