"""Which arguments of a traced program go under a root or a logarithm, and so have to be positive.

Values are made up around 0; a second moment of an optimiser, say, is never below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ROOTS = ("sqrt", "rsqrt", "log", "log2", "pow", "acosh", "lgamma", "digamma")
# Operations whose result has the sign of their operands, where these have one sign.
_KEEPING = (
    *("add", "add_any", "mul", "div", "select_n", "reduce_sum", "reduce_max", "reduce_min"),
    *("convert_element_type", "broadcast_in_dim", "reshape", "transpose", "squeeze", "copy", "rev"),
    *("slice", "dynamic_slice", "gather", "concatenate", "cumsum", "optimization_barrier", "name"),
    *(
        "sharding_constraint",
        "reshard",
        "device_put",
        "reduce_precision",
        "expand_dims",
        "all_gather",
    ),
)
_Carried = dict[Any, frozenset[int]]


def positive_arguments(jaxpr: Any) -> tuple[int, ...]:
    """The positions of the arguments that have to be positive, as far as the program tells.

    An argument counts where it reaches a root or a logarithm by sums, products and moves alone.

    Args:
        jaxpr: jax's own, of the whole program.

    >>> import jax, jax.numpy as jnp
    >>> adam = lambda p, m, v, g: p - m / jnp.sqrt(0.9 * v + 0.1 * g**2)
    >>> positive_arguments(jax.make_jaxpr(adam)(1.0, 1.0, 1.0, 1.0))
    (2,)
    """
    found: set[int] = set()
    inside = getattr(jaxpr, "jaxpr", jaxpr)
    _follow(inside, {v: frozenset([i]) for i, v in enumerate(inside.invars)}, found)
    return tuple(sorted(found))


def _follow(jaxpr: Any, carried: _Carried, found: set[int]) -> list[frozenset[int]]:
    """What the results of a jaxpr carry of the arguments; adds to `found` what goes under roots."""

    def of(variable: Any) -> frozenset[int]:
        literal = hasattr(variable, "val")  # which cannot be a key
        return frozenset() if literal else carried.get(variable, frozenset())

    for equation in jaxpr.eqns:
        operands = [of(v) for v in equation.invars]
        inner = _inner(equation.params)
        if inner:
            results = _calls(inner, operands, len(equation.outvars), found)
        else:
            results = [_kept(equation, operands)] * len(equation.outvars)
            if equation.primitive.name in _ROOTS:
                found.update(operands[0])
        carried.update(zip(equation.outvars, results, strict=True))
    return [of(v) for v in jaxpr.outvars]


def _kept(equation: Any, operands: list[frozenset[int]]) -> frozenset[int]:
    name = equation.primitive.name
    if name == "sub":
        return operands[0]
    square = name == "mul" and equation.invars[0] is equation.invars[1]
    odd = name == "integer_pow" and equation.params["y"] % 2
    if (name in _KEEPING and not square) or odd:
        return frozenset().union(*operands)
    return frozenset()


def _calls(
    inner: list[Any], operands: list[frozenset[int]], count: int, found: set[int]
) -> list[frozenset[int]]:
    """What the results of a call carry; of loops as far as one turn tells."""
    results = [frozenset[int]()] * count
    for jaxpr in inner:
        skipped = len(operands) - len(jaxpr.invars)  # the index of a cond
        given = operands[skipped:] if skipped in (0, 1) else [frozenset()] * len(jaxpr.invars)
        out = _follow(jaxpr, dict(zip(jaxpr.invars, given, strict=True)), found)
        if len(out) == count:
            results = [a | b for a, b in zip(results, out, strict=True)]
    return results


def _inner(params: Mapping[str, Any]) -> list[Any]:
    """The jaxprs among the parameters of an equation."""
    values = [v for p in params.values() for v in (p if isinstance(p, (tuple, list)) else (p,))]
    found = [getattr(v, "jaxpr", v) for v in values]
    return [v for v in found if hasattr(v, "eqns") and hasattr(v, "invars")]
