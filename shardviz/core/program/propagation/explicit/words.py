"""What is wrong with an operation's shardings, in one sentence a person can act on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardviz.core.layout.spec import Spec
from shardviz.core.program.propagation.explicit.choices import spec_of
from shardviz.core.program.propagation.explicit.errors import Refused
from shardviz.core.program.running.failures import in_words

_UNEVEN = re.compile(
    r"out dim \((\d+)\) is not divisible by mesh axes \((\d+)\) with spec \((.+?)\)"
)
_TWICE = re.compile(r"P\([^)]*\)(?:[^)]*\))? has duplicate entries for `(\w+)`")
_ALONG = ("dimension", "axis")
_WHOLE = ("sort", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "top_k", "tile", "roll")
_ALIKE = ("select_n", "concatenate", "stack", "clamp", "dynamic_update_slice")


def problem(refused: Refused | None, error: BaseException) -> str:
    """Why jax refused an operation.

    Args:
        refused: the operation, where it was found.
        error: what jax raised.

    >>> problem(None, ValueError("no idea"))
    'ValueError: no idea'
    """
    words = str(error)
    if (uneven := _UNEVEN.search(words)) is not None:
        size, parts, axes = uneven.groups()
        return (
            f"{_named(refused)} makes a dimension of size {size} out of one that is split over"
            f" {axes}, and {size} does not divide by {parts}."
        )
    if (twice := _TWICE.search(words)) is not None:
        return _doubled(refused, twice[1])
    if refused is None:
        return in_words(error)
    specs = [spec_of(operand) for operand in refused.operands]
    if refused.name == "dot_general":
        return _dot(refused, specs)
    if "illegally sharded result" in words:
        axes = [a for a in dict.fromkeys(specs[0].axes) if all(a in s.axes for s in specs[1:])]
        return _doubled(refused, _and(axes) if axes else "one axis")
    return _other(refused, specs, error)


def _other(refused: Refused, specs: Sequence[Spec], error: BaseException) -> str:
    name, shapes = refused.name, [operand.shape for operand in refused.operands]
    if name == "reshape":
        sizes = tuple(refused.params.get("new_sizes", ()))
        return (
            f"reshape from {shapes[0]} to {sizes} takes apart a dimension that is split"
            f" ({specs[0]}), and no mesh axis can follow it."
        )
    if name.startswith(("gather", "scatter")):
        verb = "reads" if name == "gather" else "writes into"
        return (
            f"Indexing {verb} an array that is {specs[0]} by indices that are {specs[1]}, and it is"
            " ambiguous how the result is split."
        )
    if name in _WHOLE:
        return _along(refused, specs[0])
    if name == "conv_general_dilated":
        return (
            f"The operands of the convolution are {_and(specs)}, and it is ambiguous how the result"
            " is split."
        )
    told = ("via `out_sharding`", "sharding rule for")  # the second by jax 0.10.0
    if isinstance(error, NotImplementedError) or any(words in str(error) for words in told):
        return f"jax does not work out a sharding for {name}: it has to be told."
    distinct = list(dict.fromkeys(specs))
    if len(distinct) > 1 and (name in _ALIKE or len({len(s) for s in shapes}) == 1):
        return f"The operands of {name} are split differently: {_and(distinct)}."
    return in_words(error)


def _dot(refused: Refused, specs: Sequence[Spec]) -> str:
    (left, right), (left_batch, right_batch) = refused.params["dimension_numbers"]
    inner = [_over(specs[0], left), _over(specs[1], right)]
    if inner[0] and inner[0] == inner[1]:
        return (
            f"Both operands of dot_general are split over {_and(inner[0])} along the dimension that"
            " it sums: each device has a part of the sum, and it is ambiguous how the result is"
            " split."
        )
    if inner[0] and inner[1]:
        return (
            f"dot_general sums over a dimension that is split over {_and(inner[0])} on the left and"
            f" over {_and(inner[1])} on the right."
        )
    batch = [_over(specs[0], left_batch), _over(specs[1], right_batch)]
    if batch[0] != batch[1]:
        sides = [f"over {_and(b)}" if b else "not at all" for b in batch]
        return (
            f"The batch dimensions of dot_general are split {sides[0]} on the left and {sides[1]}"
            " on the right."
        )
    both = [a for a in specs[0].axes if a in specs[1].axes and a not in inner[0] + inner[1]]
    return _doubled(refused, _and(both) or "one axis")


def _along(refused: Refused, spec: Spec) -> str:
    number = next((refused.params[n] for n in _ALONG if n in refused.params), None)
    if refused.name == "tile":
        repeats = enumerate(refused.params.get("reps", ()))
        number = next((n for n, times in repeats if times > 1 and spec.dims[n]), None)
    number = number[0] if isinstance(number, tuple) and len(number) == 1 else number
    if not isinstance(number, int) or not spec.dims:
        return f"{refused.name} needs whole dimensions, and its operand is {spec}."
    number %= len(spec.dims)
    over = spec.dims[number] or spec.axes
    return (
        f"{refused.name} works along dimension {number}, which is split over {_and(over)}, and"
        " needs it whole."
    )


def _doubled(refused: Refused | None, axes: str) -> str:
    operands = [spec_of(operand) for operand in refused.operands] if refused else []
    given = f" from operands that are {_and(operands)}" if len(operands) > 1 else ""
    return (
        f"{_named(refused)} would split its result over {axes} in two dimensions{given}; a mesh"
        " axis can split one."
    )


def _named(refused: Refused | None) -> str:
    return refused.name if refused else "The operation"


def _over(spec: Spec, dims: Sequence[int]) -> tuple[str, ...]:
    return tuple(axis for dim in dims for axis in spec.dims[dim])


def _and(parts: Sequence[object]) -> str:
    words = [str(part) for part in parts]
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)
