"""Why a collective is there, and what the values are called that it is about."""

from __future__ import annotations

from collections.abc import Callable

from shardviz.base.cause import (
    UNKNOWN,
    AxisPart,
    Cause,
    ValueName,
    axes_in_words,
)
from shardviz.base.collective_kind import KINDS, Effect
from shardviz.base.format import clause, joined, with_article

# What a collective does with what the devices have, by the operation of its reduction.
REDUCES = {
    "add": "sums",
    "maximum": "takes the maximum",
    "minimum": "takes the minimum",
    "multiply": "multiplies",
    "and": "takes the logical and",
    "or": "takes the logical or",
}
#: What a collective does with its operand.
VERBS = {
    Effect.SUM: "sums",
    Effect.GATHER: "gathers",
    Effect.EXCHANGE: "moves",
    Effect.SEND: "moves",
    Effect.COPY: "moves",
}
#: What happens to an operation's results in a step within it.
STEPS_WITHIN = {
    Effect.SUM: "parts of it are sent",
    Effect.GATHER: "what each device made of it is gathered",
    Effect.EXCHANGE: "its shards are exchanged",
    Effect.SEND: "shards are sent to other devices",
    Effect.COPY: "parts of it are sent",
}


def value_name(value: ValueName) -> str:
    """What a value is called.

    >>> value_name(ValueName("operation", "dot_general", "mlp.py:31"))
    'dot_general (mlp.py:31)'
    """
    if value.code == "argument":
        return f"argument {value.name}"
    if value.code == "slice":
        return f"a slice of argument {value.name}"
    if value.code == "carried":
        return f"what the loop{_at(value)} carries"
    if value.code == "unknown":
        return "unknown"
    return value.name + clause(" ({})", value.source)


def _at(value: ValueName) -> str:
    return clause(" at {}", value.source)


def _first(text: str, value: ValueName) -> str:
    """A text that begins a sentence; names of operations keep their small letters."""
    if value.code == "operation":
        return text
    return text[0].upper() + text[1:]


def _axes(cause: Cause, otherwise: str) -> str:
    if not cause.axes:
        return otherwise
    return joined(axes_in_words(cause.axes, cause.parts))


def axis_part(fact: AxisPart) -> str:
    """A part of a mesh axis.

    >>> axis_part(AxisPart("data", 2, 4))
    '2 of 4 along data'
    """
    return f"{fact.devices} of {fact.size} along {fact.axis}"


def cause(fact: Cause) -> str:
    """Why a collective is there.

    >>> w = ValueName("argument", "w")
    >>> print(cause(Cause("summed", "all-reduce", ("data",), operand=w, reducer="add")))
    Each device has a part of argument w: they are summed over data.
    """
    return _SENTENCES[fact.code](fact)


def gradient(of: str, line: str, over: str, kind: str) -> str:
    """Why the gradient of an array is summed over devices.

    >>> gradient("params.w1", "mlp.py:3", "data", "all-reduce")[:44]
    'Gradient of params.w1 (mlp.py:3): all device'
    """
    array = f"Gradient of {of}{clause(' ({})', line)}:"
    if kind == "reduce-scatter":
        return (
            f"{array} the forward pass gathers {of} over {over}, so its gradients are"
            f" summed over {over}, and each device keeps its shard."
        )
    return (
        f"{array} all devices along {over} hold the same {of}, so its gradients are"
        f" summed over {over}."
    )


def of_a_gradient(what: str) -> str:
    """A collective of a backward pass whose array is not known.

    >>> of_a_gradient("psum (mlp.py:3)")[:52]
    'It belongs to a gradient: psum (mlp.py:3). It is the'
    """
    return (
        f"It belongs to a gradient: {what}. It is the gradient of a collective or of a"
        " value that several devices share, or a custom_vjp of the program has it."
    )


def _written(fact: Cause) -> str:
    # A sentence that ends with "of unknown" would be odd.
    operand = value_name(fact.operand)
    if fact.operand == UNKNOWN:
        operand = "an operand that the compiler does not name"
    what = f"{fact.operation}, of {operand}"
    if fact.gradient_of is not None:
        line = "" if fact.operation is None else fact.operation.source
        of = fact.gradient_of.name
        if fact.gradient_of.code == "slice":
            of = str(fact.gradient_of)
        return gradient(of, line, _axes(fact, "all devices"), fact.kind)
    if fact.code == "gradient":
        return of_a_gradient(what)
    return f"It is written in the program: {what}."


def _unknown(fact: Cause) -> str:
    # Not "there is no cause": it has one that is not in the module.
    verb = VERBS[KINDS[fact.kind].effect]
    return f"Its operand is unknown: the compiler does not say what it {verb}."


def _from_one(fact: Cause) -> str:
    asks = _asks(fact)
    return (
        f"{asks} what one device along {_axes(fact, 'all its devices')} holds of"
        f" {fact.operand}: a sum with zeros from the others brings it to all."
    )


def _asks(fact: Cause, the: str = "The") -> str:
    """What wants the value: `dot_general (mlp.py:31) needs`."""
    wants = fact.wanted_by
    if wants is None:
        return f"{the} result has"
    if wants.is_request:
        # By the name of the call, not of the primitive.
        what = wants.name.removeprefix("sharding_")
        return f"{the} {what}{_at(wants)} asks for"
    if wants.code == "carried":
        return f"{_first(value_name(wants), wants) if the == 'The' else wants} needs"
    return f"{wants} needs"


def _behind(fact: Cause) -> str:
    """What the sharding is for, if something behind the reading operation wants it."""
    wants, reads = fact.wanted_by, fact.through
    if fact.beside is not None:
        return f"{reads} combines it with {fact.beside}, which is split otherwise"
    how = "without that split"
    if fact.code != "gathered":
        how = "split otherwise"
    moves = _DOES_BEFORE[fact.code]
    before = f": XLA {moves} before {reads}{clause(', as {}', fact.dtype)}"
    if wants is None:
        return f"the result, which is computed from it, is {how}{before}"
    if wants == UNKNOWN:
        return f"XLA computes {reads} {how}"
    if wants.code == "carried":
        return f"{wants} is computed from it {how}{before}"
    if wants.is_request:
        return f"{_asks(fact, 'the')} a value computed from it {how}{before}"
    return f"{wants} reads a value computed from it {how}{before}"


_DOES_BEFORE = {
    "gathered": "gathers it",
    "resplit": "exchanges its shards",
    "sent": "sends its shards",
}


def _summed(fact: Cause) -> str:
    over = _axes(fact, "all its devices")
    verb = REDUCES.get(fact.reducer, "combines")
    if fact.code == "summed":
        together = f"XLA {verb} of them"
        if verb == "sums":
            together = "they are summed"
        return f"Each device has a part of {fact.operand}: {together} over {over}."
    does = "sums over a dimension of its operands that is"
    if fact.operand.name.startswith("dot"):
        does = "sums over its inner dimension, which is"
    if fact.code == "reduced":
        does = f"{verb} over a dimension that is"
    kept = ""
    if fact.kind == "reduce-scatter":
        kept = ", and keeps its shard of the sum"
    loop = ""
    if fact.vmapped_loop:
        loop = (
            " Under vmap a loop goes on until all are done, so every step asks all"
            " devices; under jax.shard_map each device ends its own loop."
        )
    part = "each device has a part of the result"
    return f"{fact.operand} {does} split over {over}: {part}{kept}.{loop}"


def _within(fact: Cause) -> str:
    over = _axes(fact, "all its devices")
    step = STEPS_WITHIN[KINDS[fact.kind].effect]
    return f"It is a step within {fact.operation}: {step} over {over}."


def _moved(fact: Cause) -> str:
    over = _axes(fact, "devices")
    if fact.code == "sent" and fact.through is None:
        return f"{_asks(fact)} shards of {fact.operand} that other devices along {over} hold."
    # On the way to the collective a reshape may have changed the dimensions.
    where = ""
    if fact.dimension is not None:
        where = f" along dimension {fact.dimension}"
    moved = " is"
    if fact.before:
        moved = f", {_moved_before(fact.before)} before, is then"
    operand = _first(value_name(fact.operand), fact.operand)
    split = f"{operand}{moved} split over {over}{where}"
    if fact.code == "unsplittable":
        return (
            f"{split}, and XLA's partitioner does not split {fact.wanted_by} that way:"
            " it gathers the operand."
        )
    if fact.through is not None:
        return f"{split}, and {_behind(fact)}."
    how = "without that split"
    if fact.code == "resplit":
        how = "split along another dimension"
    return f"{split}, and {_asks(fact, 'the')} it {how}."


def _moved_before(before: str) -> str:
    if before == "slice":
        return "of which a slice is taken"
    return f"moved by {with_article(before)}"


def _rematerialised(fact: Cause) -> str:
    return (
        "The partitioner knew no way in small steps from one sharding to the other:"
        f" every device makes all of {fact.full} to keep {fact.part} of it."
        f" The array is {fact.operand}."
    )


_SENTENCES: dict[str, Callable[[Cause], str]] = {
    "written": _written,
    "gradient": _written,
    "contracted": _summed,
    "reduced": _summed,
    "summed": _summed,
    "from one": _from_one,
    "within": _within,
    "sent": _moved,
    "gathered": _moved,
    "resplit": _moved,
    "unsplittable": _moved,
    "rematerialised": _rematerialised,
    "unknown": _unknown,
}

SENTENCES = {AxisPart: axis_part, Cause: cause, ValueName: value_name}
