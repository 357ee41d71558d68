"""Places the arguments of a run on devices: the user's values, or examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ContextDecorator
from types import MappingProxyType
from typing import Any, TypeGuard

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from numpy.typing import DTypeLike

from shardviz.base.array_spec import ArraySpec, dtype_name
from shardviz.base.errors import ProgramError
from shardviz.base.format import listed, plural, shown
from shardviz.base.partition_spec import Spec
from shardviz.base.typing import PyTree
from shardviz.programs.backend.arguments import parameter_names
from shardviz.programs.backend.bridge import jax_dtype, key_implementation
from shardviz.programs.backend.trace import donated_leaves, placed_spec
from shardviz.programs.program import Program

# Number of elements computed at a time.
_SLICE_ELEMENTS = 1 << 22


def copies_allowed() -> ContextDecorator:
    """Returns a context manager that allows copies despite `jax_transfer_guard`."""
    return jax.transfer_guard("allow")


def value_leaves(program: Program, values: Sequence[PyTree]) -> list[PyTree] | None:
    """Returns the leaves of the user's values, checked against the program.

    Returns None if `values` is empty.
    """
    if not values:
        return None
    leaves = _leaves(program, tuple(values))
    for array, leaf in zip(program.arrays, leaves, strict=True):
        _check(array, leaf)
    _check_donated(program, leaves)
    return leaves


def example(
    array: ArraySpec, sharding: Sharding, seed: int, positive: bool = False
) -> jax.Array:
    """Creates an example array of small pseudo-random numbers, the same every time.

    Floats lie between -0.25 and 0.25, or above 0 if `positive`; integers between 0 and
    3 (0 and 1 for types of 2 bits). Each device's shard is computed separately, so the
    host never holds the full array.

    Args:
        array: shape and dtype of the example.
        sharding: sharding of the example.
        seed: different seeds give different numbers.
        positive: True for floats above 0, for functions such as roots and logarithms.
    """
    if array.dtype.startswith("key<"):
        return _example_keys(array, sharding, seed)
    dtype = jax_dtype(array.dtype)
    blocks: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

    def block(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None  # jax passes None only for arrays without a shape
        bounds = tuple(
            s.indices(n)[:2] for s, n in zip(index, array.shape, strict=True)
        )
        if bounds not in blocks:
            blocks[bounds] = example_block(array.shape, bounds, dtype, seed, positive)
        return blocks[bounds]

    return jax.make_array_from_callback(array.shape, sharding, block)


def example_block(
    shape: tuple[int, ...],
    bounds: Sequence[tuple[int, int]],
    dtype: DTypeLike,
    seed: int,
    positive: bool = False,
) -> np.ndarray:
    """Computes a block of an example; each element depends only on its array index.

    >>> full = example_block((4, 4), ((0, 4), (0, 4)), np.dtype("float32"), 1)
    >>> part = example_block((4, 4), ((2, 4), (0, 2)), np.dtype("float32"), 1)
    >>> bool((full[2:, :2] == part).all())
    True
    """
    sizes = [stop - start for start, stop in bounds]
    if not sizes:
        sizes, bounds, shape = [1], [(0, 1)], (1,)
        return example_block(shape, bounds, dtype, seed, positive).reshape(())
    block = np.empty(sizes, dtype)
    # Fill slices of rows, because the uint64 index needs more memory than the block.
    rows = max(1, _SLICE_ELEMENTS // max(1, math.prod(sizes[1:])))
    for first in range(0, sizes[0], rows):
        count = min(rows, sizes[0] - first)
        index = np.full([1] * len(shape), seed << 40, np.uint64)
        stride = 1
        for dim in reversed(range(len(shape))):
            start = bounds[dim][0] + (first if dim == 0 else 0)
            steps = np.arange(count if dim == 0 else sizes[dim], dtype=np.uint64)
            along = np.expand_dims(
                steps + np.uint64(start), [d for d in range(len(shape)) if d != dim]
            )
            index = index + along * np.uint64(stride % (1 << 64))
            stride *= shape[dim]
        block[first : first + count] = _numbers(_mixed(index), dtype, positive)
    return block


def _mixed(bits: np.ndarray) -> np.ndarray:
    """Hashes each number to 24 pseudo-random bits, with splitmix64's finalizer."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (bits ^ (bits >> np.uint64(31))) >> np.uint64(40)


def _numbers(bits: np.ndarray, dtype: DTypeLike, positive: bool) -> np.ndarray:
    kind = np.dtype(dtype).kind
    if kind == "b":
        return (bits & np.uint64(1)).astype(bool)
    if kind in "iu" or dtype_name(dtype).startswith(("int", "uint")):
        mask = 1 if dtype_name(dtype) in ("int2", "uint2") else 3
        return (bits & np.uint64(mask)).astype(np.int8).astype(dtype)
    # Positive values start at 0.0625: near 0, roots and quotients amplify rounding.
    lowest = np.float32(0.0625 if positive else -0.25)
    floats = bits.astype(np.float32) * np.float32(2.0**-25) + lowest
    if kind == "c":
        more_bits = _mixed(bits).astype(np.float32)
        imaginary = more_bits * np.float32(2.0**-25) + lowest
        return (floats + 1j * imaginary).astype(dtype)
    return floats.astype(dtype)


def _example_keys(array: ArraySpec, sharding: Sharding, seed: int) -> jax.Array:
    # Split off an additional key, because jax rejects a split into 0 keys.
    key = jax.random.key(seed, impl=key_implementation(array.dtype))
    keys = jax.random.split(key, math.prod(array.shape) + 1)
    return _spread(keys[:-1].reshape(array.shape), array, sharding)


def _spread(
    leaf: PyTree, array: ArraySpec, sharding: Sharding, copy: bool = False
) -> jax.Array:
    """Places a value, which this process holds in full, on this process's devices.

    `jax.device_put` would wait for all processes and compare their values.

    Args:
        leaf: the value.
        array: shape and dtype of the value.
        sharding: sharding of the result.
        copy: True if the result must not share memory with the value.
    """
    if array.dtype.startswith("key<"):
        return jax.make_array_from_callback(
            array.shape, sharding, lambda index: leaf[index]
        )
    host, dtype = np.asarray(leaf), jax_dtype(array.dtype)

    def block(index: tuple[slice, ...] | None) -> np.ndarray:
        return np.array(host[index], dtype, copy=True if copy else None)

    return jax.make_array_from_callback(array.shape, sharding, block)


def _leaves(program: Program, values: tuple[PyTree, ...]) -> list[PyTree]:
    """Flattens the values; raises for a wrong number of values or a different tree."""
    if program.tree is None:
        names, leaves = [a.name for a in program.arrays], list(values)
    else:
        names = parameter_names(program.fn, len(program.tree.children()))
        leaves, tree = jax.tree.flatten(values)
        # For a wrong number of values, the error below is clearer than this one.
        if len(values) == len(names) and tree != program.tree:
            raise ProgramError(
                "The values form a different tree than the arguments:"
                f" {shown(tree, 120)} and {shown(program.tree, 120)}. Give them in the"
                " same containers."
            )
    if len(values) != len(names):
        raise ProgramError(
            f"The program takes {plural(len(names), 'argument')} ({listed(names)}); got"
            f" {plural(len(values), 'value')}. Give one each, in the containers that the"
            " arguments have, or none for made-up values."
        )
    return leaves


def _check(array: ArraySpec, value: PyTree) -> None:
    """Raises if a value is deleted, or isn't of the shape and dtype of the argument."""
    if isinstance(value, jax.Array) and value.is_deleted():
        raise ProgramError(
            f"{array.name} is an array that jax has deleted, because a call donated it."
            " Give an array that still has its values, such as the result of that call."
        )
    leaf = value
    try:
        # Numbers and lists are allowed.
        if not hasattr(value, "dtype") or not hasattr(value, "shape"):
            leaf = np.asarray(value)
        dtype = leaf.dtype
        # Unless x64 is on, jax converts numpy's 64-bit types to 32 bits.
        if not isinstance(leaf, jax.Array):
            dtype = jax.dtypes.canonicalize_dtype(dtype)
        passed = ArraySpec(array.name, tuple(leaf.shape), None, dtype_name(dtype))
    except (TypeError, ValueError):
        raise ProgramError(
            f"{array.name} takes an array, {array.short}; got {shown(value)}."
        ) from None
    if passed.shape != array.shape or passed.dtype != array.dtype:
        raise ProgramError(
            f"{array.name} is {array.short} in the program and {passed.short} in the values."
            " Give an array of that shape and type."
        )


def _check_donated(program: Program, leaves: Sequence[PyTree]) -> None:
    """Raises if the call would donate an array that is also another argument.

    `Inputs` copies donated arrays, so the run itself would succeed. jax copies only
    arrays that aren't committed to their devices.
    """
    donated = donated_leaves(program)
    for position in donated:
        leaf, array = leaves[position], program.arrays[position]
        if not getattr(leaf, "committed", False):
            continue
        for other, same in enumerate(leaves):
            if same is leaf and other != position:
                raise ProgramError(
                    f"{array.name} and {program.arrays[other].name} are the same array, and"
                    f" the call donates {array.name}: jax refuses to use the memory of a"
                    " donated array twice. Copy the array for one of them with"
                    " jax.numpy.copy, or don't donate it."
                )


def is_global(leaf: object) -> TypeGuard[jax.Array]:
    """Returns whether a value lies on devices of several processes."""
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def host_value(leaf: PyTree) -> PyTree | None:
    """Returns the full value; None if this process holds only some of its shards."""
    if not is_global(leaf):
        return leaf
    return leaf.addressable_data(0) if leaf.is_fully_replicated else None


def partial_axes(array: object) -> list[str]:
    """Returns the mesh axes over which an array is unreduced, sorted."""
    spec = getattr(getattr(array, "sharding", None), "spec", None)
    return sorted(getattr(spec, "unreduced", None) or ())


def summed(leaf: PyTree) -> PyTree:
    """All-reduces an unreduced array's partial sums; returns other values unchanged."""
    if not partial_axes(leaf):
        return leaf
    full = PartitionSpec(*leaf.sharding.spec.partitions)
    return jax.sharding.reshard(leaf, NamedSharding(leaf.sharding.mesh, full))


def partial_result(value: jax.Array, sharding: NamedSharding) -> jax.Array:
    """Returns an unreduced array whose partial results combine to a value.

    Args:
        value: an array with the split dimensions of `sharding`.
        sharding: a sharding with unreduced axes.
    """
    spec = sharding.spec
    kind = getattr(spec, "unreduced_kind", None)  # jax 0.10 has only sums
    if kind is None or kind.name == "sum":
        return jax.sharding.reshard(value, sharding)
    # jax refuses to reshard to a partial max or min, but its reductions return them.
    axes = tuple(sorted(spec.unreduced))
    devices = math.prod(sharding.mesh.shape[axis] for axis in axes)
    copies = NamedSharding(sharding.mesh, PartitionSpec(axes, *spec.partitions))
    stacked = jax.lax.broadcast(value, (devices,), out_sharding=copies)
    # Typed as Any, because `out_sharding` is new in the jax that has these kinds.
    reduce: Any = {"max": jax.lax.reduce_max, "min": jax.lax.reduce_min}[kind.name]
    return reduce(stacked, (0,), out_sharding=sharding)


class Inputs:
    """The arguments of one run: the user's values, or examples.

    Args:
        program: the program to run.
        mesh: the jax mesh to place the arguments on.
        leaves: the user's checked values; None for examples.
        positive: positions of arguments whose examples must be above 0.
        compiled: position of an argument -> sharding that the compiler chose.
    """

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        leaves: list[PyTree] | None,
        positive: Sequence[int] = (),
        compiled: Mapping[int, Sharding] = MappingProxyType({}),
    ) -> None:
        self.program, self.mesh, self.leaves = program, mesh, leaves
        self._compiled = compiled
        self.donated, self.positive = donated_leaves(program), positive

    @property
    def bytes_in_place(self) -> int:
        """Bytes per device of user values that already have the right sharding."""
        placed = 0
        for position, leaf in enumerate(self.leaves or ()):
            layout = self.program.requests[position].layout
            # A donated array needs a copy, because the run deletes it.
            if layout is None or position in self.donated:
                continue
            if isinstance(leaf, jax.Array):
                sharding = self._sharding(position)
                if leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
                    placed += layout.bytes_per_device
        return placed

    @property
    def on_other_processes(self) -> bool:
        """True if this process holds only some shards of any value."""
        return any(host_value(leaf) is None for leaf in self.leaves or ())

    @copies_allowed()
    def place_all(self) -> list[jax.Array]:
        """Places every argument on its devices."""
        positions = range(len(self.program.arrays))
        return jax.block_until_ready([self._place(i) for i in positions])

    @copies_allowed()
    def replace_donated(self, placed: list[jax.Array]) -> None:
        """Recreates in `placed` the donated arrays, which the last run deleted."""
        for position in self.donated:
            placed[position] = jax.block_until_ready(self._place(position))

    @copies_allowed()
    def place_unsharded(self, mesh: Mesh) -> list[jax.Array]:
        """Places every argument unsharded on the single device of a mesh."""
        placed = []
        for position, array in enumerate(self.program.arrays):
            kind = array.memory_kind
            sharding = NamedSharding(mesh, PartitionSpec(), memory_kind=kind)
            if self.leaves is None:
                placed.append(self._example(position, sharding))
            else:
                value = host_value(summed(self.leaves[position]))
                placed.append(jax.device_put(value, sharding))
        return placed

    def _example(self, position: int, sharding: Sharding) -> jax.Array:
        array = self.program.arrays[position]
        return example(array, sharding, position, position in self.positive)

    def _place(self, position: int) -> jax.Array:
        sharding = self._sharding(position)
        leaf = None if self.leaves is None else self.leaves[position]
        partial = None
        if (
            isinstance(sharding, NamedSharding)
            and sharding.spec.unreduced
            and not partial_axes(leaf)
        ):
            # jax creates an unreduced array only from an array on these devices.
            full = PartitionSpec(*sharding.spec.partitions)
            kind, partial = sharding.memory_kind, sharding
            sharding = NamedSharding(self.mesh, full, memory_kind=kind)
        if self.leaves is None:
            placed = self._example(position, sharding)
        else:
            placed = self._placed_value(position, leaf, sharding)
        return placed if partial is None else partial_result(placed, partial)

    def _placed_value(
        self, position: int, leaf: PyTree, sharding: Sharding
    ) -> jax.Array:
        donated = position in self.donated
        if sharding.is_fully_addressable or is_global(leaf):
            # The run deletes donated arrays, so they must not share the user's memory.
            return jax.device_put(leaf, sharding, may_alias=False if donated else None)
        return _spread(leaf, self.program.arrays[position], sharding, donated)

    def _sharding(self, position: int) -> Sharding:
        if position in self._compiled:
            return self._compiled[position]
        spec = placed_spec(self.program.requests[position].spec or Spec())
        kind = self.program.arrays[position].memory_kind
        return NamedSharding(self.mesh, spec.to_jax(), memory_kind=kind)
