"""Values for a program: those a person gives, checked; or examples, always the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from shardviz.core.errors import ProgramError, plural, shown
from shardviz.core.layout.array import ArraySpec, dtype_name
from shardviz.core.program.bridge import jax_dtype, key_implementation
from shardviz.core.program.given.arguments import parameter_names
from shardviz.core.program.program import Program

_SLAB = 1 << 22  # elements made at a time
_MOST_NAMES = 8


def value_leaves(program: Program, values: Sequence[Any]) -> list[Any] | None:
    """The leaves of the values a person gave, checked against the program; None for none.

    Raises:
        ProgramError: for a wrong number, tree, shape or dtype.
    """
    if not values:
        return None
    leaves = _leaves(program, tuple(values))
    for array, leaf in zip(program.arrays, leaves, strict=True):
        _check(array, leaf)
    return leaves


def example(
    array: ArraySpec, sharding: NamedSharding, seed: int, positive: bool = False
) -> jax.Array:
    """A made-up array: small numbers that look random and are the same every time.

    Floats lie between -0.25 and 0.25, or above 0 where only positive ones are asked for; integers
    between 0 and 3 (0 and 1 for types of 2 bits). Each device's block is made by itself, so that
    the whole never stands on the host.

    Args:
        array: its shape and dtype.
        sharding: where it goes.
        seed: arrays of different seeds differ.
        positive: whether floats are above 0, for functions such as roots and logarithms.
    """
    if array.dtype.startswith("key<"):
        return _example_keys(array, sharding, seed)
    dtype = jax_dtype(array.dtype)
    made: dict[Any, np.ndarray] = {}

    def block(index: Any) -> np.ndarray:
        bounds = tuple(s.indices(n)[:2] for s, n in zip(index, array.shape, strict=True))
        if bounds not in made:
            made[bounds] = example_block(array.shape, bounds, dtype, seed, positive)
        return made[bounds]

    return jax.make_array_from_callback(array.shape, sharding, block)


def example_block(
    shape: tuple[int, ...],
    bounds: Sequence[tuple[int, int]],
    dtype: Any,
    seed: int,
    positive: bool = False,
) -> np.ndarray:
    """One block of an example: a pure function of each element's place in the whole array.

    It is made slab by slab: the numbers on their way take several times the room of the block.

    >>> whole = example_block((4, 4), ((0, 4), (0, 4)), np.dtype("float32"), 1)
    >>> part = example_block((4, 4), ((2, 4), (0, 2)), np.dtype("float32"), 1)
    >>> bool((whole[2:, :2] == part).all())
    True
    """
    if not bounds or math.prod(b - a for a, b in bounds) <= _SLAB:
        return _slab(shape, bounds, dtype, seed, positive)
    (start, stop), rest = bounds[0], tuple(bounds[1:])
    rows = max(1, _SLAB // max(1, math.prod(b - a for a, b in rest)))
    block = np.empty([b - a for a, b in bounds], dtype)
    for first in range(start, stop, rows):
        last = min(first + rows, stop)
        part = _slab(shape, ((first, last), *rest), dtype, seed, positive)
        block[first - start : last - start] = part
    return block


def _slab(
    shape: tuple[int, ...],
    bounds: Sequence[tuple[int, int]],
    dtype: Any,
    seed: int,
    positive: bool,
) -> np.ndarray:
    place = np.full((1,) * max(1, len(shape)), seed << 40, np.uint64)
    stride = 1
    for dim in reversed(range(len(shape))):
        lane = [1] * len(shape)
        lane[dim] = -1
        steps = np.arange(*bounds[dim], dtype=np.uint64) * np.uint64(stride % (1 << 64))
        place = place + steps.reshape(lane)
        stride *= shape[dim]
    return _numbers(_mixed(place).reshape([b - a for a, b in bounds]), dtype, positive)


def _mixed(bits: np.ndarray) -> np.ndarray:
    """24 random-looking bits of every number: the finaliser of splitmix64."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (bits ^ (bits >> np.uint64(31))) >> np.uint64(40)


def _numbers(bits: np.ndarray, dtype: Any, positive: bool) -> np.ndarray:
    kind = np.dtype(dtype).kind
    if kind == "b":
        return (bits & np.uint64(1)).astype(bool)
    if kind in "iu" or dtype_name(dtype).startswith(("int", "uint")):
        mask = 1 if dtype_name(dtype) in ("int2", "uint2") else 3
        return (bits & np.uint64(mask)).astype(np.int8).astype(dtype)
    # Above 0 they keep a distance, as roots and quotients amplify all rounding near it.
    lowest = np.float32(0.0625 if positive else -0.25)
    floats = bits.astype(np.float32) * np.float32(2.0**-25) + lowest
    if kind == "c":
        other = _mixed(np.atleast_1d(bits)).reshape(bits.shape).astype(np.float32)
        return (floats + 1j * (other * np.float32(2.0**-25) + lowest)).astype(dtype)
    return floats.astype(dtype)


def _example_keys(array: ArraySpec, sharding: NamedSharding, seed: int) -> jax.Array:
    count = math.prod(array.shape)
    keys = jax.random.split(jax.random.key(seed, impl=key_implementation(array.dtype)), count + 1)
    return jax.device_put(keys[:count].reshape(array.shape), sharding)


def _leaves(program: Program, values: tuple[Any, ...]) -> list[Any]:
    if program.tree is None:
        expected, names = len(program.arrays), [a.name for a in program.arrays]
        leaves = list(values)
    else:
        expected = len(program.tree.children())
        names = parameter_names(program.fn, expected)
        leaves, tree = jax.tree.flatten(values)
        if len(values) == expected and tree != program.tree:
            raise ProgramError(
                f"The values form another tree than the arguments: {shown(tree, 120)} and"
                f" {shown(program.tree, 120)}. Give them in the same containers."
            )
    if len(values) != expected:
        some = ", ".join(names[:_MOST_NAMES])
        if expected > _MOST_NAMES:
            some += f" and {expected - _MOST_NAMES} more"
        trees = len(values) == len(program.arrays) != expected
        each = "one each, in the containers that the arguments have" if trees else "one each"
        raise ProgramError(
            f"The program takes {plural(expected, 'argument')} ({some}) and"
            f" {plural(len(values), 'value')} {'was' if len(values) == 1 else 'were'} given. Give"
            f" {each}, or none for made-up values."
        )
    return leaves


def _check(array: ArraySpec, value: Any) -> None:
    try:
        given = value if hasattr(value, "dtype") and hasattr(value, "shape") else np.asarray(value)
        kind = given.dtype
        if not isinstance(given, jax.Array):
            kind = jax.dtypes.canonicalize_dtype(kind)
        found = ArraySpec(array.name, tuple(given.shape), None, dtype_name(kind))
    except (TypeError, ValueError):
        raise ProgramError(
            f"{array.name} takes an array, {array.short}; got {shown(value)}."
        ) from None
    if found.shape != array.shape or found.dtype != array.dtype:
        raise ProgramError(
            f"{array.name} is {array.short} in the program and {found.short} in the values. Give"
            " an array of that shape and type."
        )
