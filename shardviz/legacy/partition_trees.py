"""Integer partitions of pytrees: prefix trees of Parts, their device counts, and one mesh for all.

A mesh whose axes run major to minor splits an array into row-major blocks, block k on device k, if
every dimension takes a run of neighbouring axes. So `Parts(2, 4)` over 8 devices needs axes of
sizes 2 and 4 (or finer), `Parts(8, 1)` fits one axis of 8, and `mesh_sizes` finds the coarsest
mesh that fits all Parts of a function.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from shardviz.core.errors import ProgramError
from shardviz.core.format import listed, plural, shown
from shardviz.core.layout.mesh import MAX_DEVICES, MeshSpec
from shardviz.core.layout.parse import check_size
from shardviz.core.layout.partition_spec import Spec
from shardviz.legacy.partitions import Parts

Partition = Parts | None


def is_partition(value: Any) -> bool:
    """Whether a value is a leaf of a tree of parts.

    >>> is_partition(Parts(2)), is_partition(None), is_partition((2, 1))
    (True, True, False)
    """
    return value is None or isinstance(value, Parts)


def check_tree(prefix: Any, what: str) -> tuple[Parts, ...]:
    """Every Parts in a tree of parts, checked to hold nothing else but None.

    Args:
        prefix: Parts, None, or containers of these.
        what: the argument it was given as, such as `"in_parts"`.

    Raises:
        ProgramError: for any other leaf.

    >>> check_tree({"w": Parts(2, 1), "b": None}, "in_parts")
    (Parts(2, 1),)
    """
    import jax

    leaves = jax.tree.leaves(prefix, is_leaf=is_partition)
    for leaf in leaves:
        if not is_partition(leaf):
            raise ProgramError(
                f"{what} holds {shown(leaf)}, which is no Parts. Write legacy.Parts(2, 1) for 2"
                " parts along the first of two dimensions, None for an array that is replicated,"
                " or containers of these."
            )
    return tuple(leaf for leaf in leaves if leaf is not None)


def flat_parts(prefix: Any, tree: Any, what: str) -> tuple[Partition, ...]:
    """One Parts or None for each leaf of `tree`, from a prefix of that tree.

    Args:
        prefix: Parts, None, or containers of these, as deep as the arrays below differ.
        tree: a jax PyTreeDef.
        what: the argument the prefix was given as.

    Raises:
        ProgramError: if it is no prefix of the tree.

    >>> import jax
    >>> flat_parts((Parts(2), None), jax.tree.structure(({"a": 0, "b": 0}, 0)), "in_parts")
    (Parts(2), Parts(2), None)
    """
    import jax

    found: list[Partition] = []

    def add(partition: Partition, below: Any) -> None:
        found.extend([partition] * jax.tree.structure(below).num_leaves)

    try:
        jax.tree.map(add, prefix, tree.unflatten(range(tree.num_leaves)), is_leaf=is_partition)
    except (ValueError, TypeError) as error:
        raise ProgramError(
            f"{what} is {shown(prefix)}, and that is no prefix of the tree it is for,"
            f" {shown(tree, 100)}. Give one Parts (or None) for all, or the same containers with a"
            " Parts (or None) wherever all arrays below are split alike; arguments form a tuple."
        ) from error
    return tuple(found)


def count_of(named: Iterable[tuple[str, Sequence[Parts]]], count: Any = None) -> int | None:
    """How many devices all of these Parts need; None where nothing says so.

    Args:
        named: the name of the argument that each group was given as, and its Parts.
        count: `num_partitions`, where it was given.

    Raises:
        ProgramError: if two of them disagree.

    >>> count_of([("in_parts", [Parts(2, 2)]), ("out_parts", [Parts(4)])])
    4
    """
    found = [(f"{part} in {what}", part.product) for what, parts in named for part in parts]
    if count is not None:
        found.insert(0, (f"num_partitions={shown(count)}", check_count(count)))
    if not found:
        return None
    first, expected = found[0]
    for other, product in found[1:]:
        if product != expected:
            raise ProgramError(
                f"All parts of one sharded_jit make the same number of partitions: {first} makes"
                f" {expected:,} and {other} makes {product:,}. Change one of them; write None for"
                " an array that is replicated."
            )
    return expected


def check_count(count: Any, what: str = "num_partitions") -> int:
    """A number of partitions, checked.

    Raises:
        ProgramError: for anything but a whole number of devices.

    >>> check_count(8)
    8
    """
    number = check_size(count, what, ProgramError)
    if not 1 <= number <= MAX_DEVICES:
        raise ProgramError(
            f"{what} is a number of devices, from 1 to {MAX_DEVICES:,}; got {shown(count)}."
        )
    return number


def mesh_sizes(
    count: int, partitions: Iterable[Partition]
) -> tuple[tuple[int, ...], tuple[Parts, ...]]:
    """The axis sizes of the coarsest mesh of `count` devices that fits these partitions.

    Returns:
        The sizes, and those Parts that do not fit a mesh of the same device order: no mesh has
        both Parts(2, 3) and Parts(3, 2). Earlier partitions come first.

    >>> mesh_sizes(8, [Parts(2, 4), Parts(8, 1), None])
    ((2, 4), ())
    >>> mesh_sizes(6, [Parts(2, 3), Parts(3, 2)])
    ((2, 3), (Parts(3, 2),))
    """
    strides, unfit = [1, count] if count > 1 else [1], []
    for parts in partitions:
        if parts is None:
            continue
        finer = sorted({*strides, *itertools.accumulate(parts, int.__mul__)})
        if all(b % a == 0 for a, b in itertools.pairwise(finer)):
            strides = finer
        elif parts not in unfit:
            unfit.append(parts)
    return tuple(b // a for a, b in itertools.pairwise(strides)) or (1,), tuple(unfit)


def is_prime_power(count: int) -> bool:
    """Whether a number has at most one distinct prime factor, as 8 has and 6 has not.

    >>> [n for n in range(1, 13) if not is_prime_power(n)]
    [6, 10, 12]
    """
    prime = next((d for d in range(2, count + 1) if count % d == 0), 1)
    while prime > 1 and count % prime == 0:
        count //= prime
    return count == 1


def mesh_over(sizes: Sequence[int]) -> MeshSpec:
    """The mesh with these axis sizes: axes `part0`, `part1`, … major to minor.

    >>> str(mesh_over((2, 4)))
    'part0=2, part1=4'
    """
    return MeshSpec(tuple(f"part{i}" for i in range(len(sizes))), tuple(sizes))


def is_parts_mesh(mesh: Any) -> bool:
    """Whether a mesh, ours or jax's, has the axes that `mesh_over` gives.

    >>> is_parts_mesh(mesh_over((2, 4))), is_parts_mesh(MeshSpec(("data",), (8,)))
    (True, False)
    """
    names = tuple(mesh.axis_names)
    return bool(names) and names == tuple(f"part{i}" for i in range(len(names)))


def spec_over(partition: Partition, sizes: Sequence[int]) -> Spec | None:
    """The Spec over `mesh_over(sizes)` that splits an array so; None where that mesh cannot.

    >>> str(spec_over(Parts(2, 4), (2, 2, 2)))
    "P('part0', ('part1', 'part2'))"
    >>> spec_over(Parts(4, 2), (2, 4)) is None
    True
    """
    if partition is None:
        return Spec()
    if partition.product != math.prod(sizes):
        return None
    dims, axis = [], 0
    for count in partition:
        start, product = axis, 1
        while product < count and axis < len(sizes):
            product, axis = product * sizes[axis], axis + 1
        if product != count:
            return None
        dims.append(tuple(f"part{i}" for i in range(start, axis)))
    return Spec(tuple(dims))


def same_parts(local: Any, overall: Any, tree: Any, what: str) -> None:
    """Refuses local parts that differ from the global ones: a single process has all devices.

    Args:
        local: what was given for this process; None for nothing.
        overall: the parts over all devices.
        tree: the jax PyTreeDef that both are prefixes of.
        what: `"in_parts"` or `"out_parts"`.

    Raises:
        ProgramError: if they differ.

    >>> import jax
    >>> same_parts(Parts(2), Parts(2), jax.tree.structure(0), "in_parts")
    """
    if local is None:
        return
    here, everywhere = flat_parts(local, tree, f"local_{what}"), flat_parts(overall, tree, what)
    if here != everywhere:
        raise ProgramError(
            f"local_{what} says how the data of one process is split, and {what} how the data of"
            f" all processes is. In a single process they are the same: got {listed(here)} and"
            f" {listed(everywhere)}, for {plural(len(here), 'array')}. Leave local_{what} out."
        )
