"""The doors to effects: what a program's effects allow, and the order in which they happened."""

from __future__ import annotations

from typing import Any

from shardviz.api.adopting import room
from shardviz.core.program.effects.events import Observed
from shardviz.core.program.effects.values import Effects
from shardviz.core.program.program import Program


def effects(thing: Any, *args: Any) -> Effects:
    """The effects of a program, and on how many devices it may run, said before it runs.

    The function is traced and lowered, as jax would; nothing is compiled and no callback is called.

    Args:
        thing: what `sv.program` made, or a function.
        *args: for a function, the arrays it takes, or their shapes and types.

    Raises:
        ShardvizError: for what is neither, or where jax is not installed. What jax refuses is an
            answer: `.refused`.

    >>> import jax
    >>> def log(x):
    ...     jax.debug.print("{x}", x=x, ordered=True)
    >>> effects(log, jax.ShapeDtypeStruct((8,), "float32")).devices
    '1 device'
    """
    prediction = room("shardviz.core.program.effects.prediction", "sv.effects", "jax")
    return prediction.predict(thing, *args)


def observed_order(program: Program, *values: Any, target: Any = None) -> Observed:
    """Runs a program and tells in which order its effects happened, on each device.

    Args:
        program: what `sv.program` made.
        *values: the arguments; made up where none are given.
        target: `None` for what is attached (or simulated), or text such as `"cpu:8"`.

    Raises:
        ShardvizError: for what is no program. A run that fails is told in `.report`.

    >>> import jax, shardviz as sv
    >>> def log(x):
    ...     jax.debug.print("{x}", x=x.sum())
    ...     return x
    >>> seen = observed_order(sv.program(log, sv.array("x", (8,)), mesh="data=1"))
    >>> [e.what for e in seen.events]
    ['{x}']
    """
    order = room("shardviz.core.program.effects.order", "sv.observed_order", "jax")
    return order.observed_order(program, *values, target=target)
