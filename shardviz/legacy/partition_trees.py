"""Integer partitions over pytrees: prefixes of them, their counts, and the mesh that has them all.

A mesh whose axes run major to minor cuts an array into row-major blocks, block k on device k, if
every dimension takes a run of neighbouring axes. So `Parts(2, 4)` needs a mesh that can be cut
after 2 of 8 devices, `Parts(8, 1)` no cut at all, and `mesh_sizes` finds the coarsest mesh that
has every cut asked for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from shardviz.core.errors import ProgramError
from shardviz.core.format import listed, plural, shown
from shardviz.core.layout.mesh import MAX_DEVICES, MeshSpec
from shardviz.core.layout.parse import check_size
from shardviz.core.layout.partition_spec import Spec
from shardviz.legacy.partitions import Parts

Partition = Parts | None


def is_partition(value: Any) -> bool:
    """Whether a value is a leaf of a tree of parts.

    >>> is_cut(Parts(2)), is_cut(None), is_cut((2, 1))
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
    leaves = jax.tree.leaves(prefix, is_leaf=is_partition)
    for leaf in leaves:
        if not is_partition(leaf):
            raise ProgramError(
                f"{what} holds {shown(leaf)}, which is no Parts. Write legacy.Parts(2, 1) for 2 parts"
                " along the first of two dimensions, None for an array that is whole on every"
                " device, or containers of these."
            )
    return tuple(leaf for leaf in leaves if leaf is not None)


def flat_parts(prefix: Any, tree: Any, what: str) -> tuple[Partition, ...]:
    """One Parts or None a leaf of `tree`, from a prefix of that tree.

    Args:
        prefix: Parts, None, or containers of these, down to where all below are alike.
        tree: a jax PyTreeDef.
        what: the argument the prefix was given as.

    Raises:
        ProgramError: if it is no prefix of the tree.

    >>> flat_parts((Parts(2), None), jax.tree.structure(({"a": 0, "b": 0}, 0)), "in_parts")
    (Parts(2), Parts(2), None)
    """
    spread: list[Partition] = []
    take = lambda cut, below: spread.extend([cut] * jax.tree.structure(below).num_leaves)  # noqa: E731
    try:
        jax.tree.map(take, prefix, tree.unflatten(range(tree.num_leaves)), is_leaf=is_partition)
    except (ValueError, TypeError) as error:
        raise ProgramError(
            f"{what} is {shown(prefix)}, and that is no prefix of the tree it speaks of,"
            f" {shown(tree, 100)}. Give one Parts (or None) for all, or the same containers with a"
            " Parts (or None) wherever all arrays below are cut alike; arguments form a tuple."
        ) from error
    return tuple(spread)


def count_of(named: Iterable[tuple[str, Sequence[Parts]]], count: Any = None) -> int | None:
    """How many devices all of these Parts ask for; None where nobody says.

    Args:
        named: what each group was given as, and its Parts.
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
                " an array that is whole on every device."
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


def mesh_sizes(count: int, cuts: Iterable[Partition]) -> tuple[tuple[int, ...], tuple[Parts, ...]]:
    """The axis sizes of the coarsest mesh of `count` devices that has these cuts, in order.

    Returns:
        the sizes, and those Parts that the same order of devices cannot give: after cuts into 2
        and then 3 none into 3 and then 2 fits.

    >>> mesh_sizes(8, [Parts(2, 4), Parts(8, 1), None])
    ((2, 4), ())
    >>> mesh_sizes(6, [Parts(2, 3), Parts(3, 2)])
    ((2, 3), (Parts(3, 2),))
    """
    chain, left = {1, count}, []
    for cut in cuts:
        if cut is None:
            continue
        wider = sorted(chain | set(itertools.accumulate(cut, int.__mul__)))
        if all(b % a == 0 for a, b in itertools.pairwise(wider)):
            chain = set(wider)
        elif cut not in left:
            left.append(cut)
    steps = sorted(chain)
    return tuple(b // a for a, b in itertools.pairwise(steps)) or (1,), tuple(left)


def one_prime(count: int) -> bool:
    """Whether a number has at most one prime factor, as 8 has and 6 has not.

    >>> [n for n in range(1, 13) if not one_prime(n)]
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


def spec_over(cut: Partition, sizes: Sequence[int]) -> Spec | None:
    """The Spec over `mesh_over(sizes)` that cuts as asked; None where that mesh cannot.

    >>> str(spec_over(Parts(2, 4), (2, 2, 2)))
    "P('part0', ('part1', 'part2'))"
    >>> spec_over(Parts(4, 2), (2, 4)) is None
    True
    """
    if cut is None:
        return Spec()
    if cut.product != math.prod(sizes):
        return None
    dims, axis = [], 0
    for parts in cut:
        start, made = axis, 1
        while made < parts and axis < len(sizes):
            made, axis = made * sizes[axis], axis + 1
        if made != parts:
            return None
        dims.append(tuple(f"part{i}" for i in range(start, axis)))
    return Spec(tuple(dims))


def same_parts(
    local: Any, whole: Any, spread: Callable[[Any, str], tuple[Partition, ...]], what: str
) -> None:
    """Refuses local parts that differ from the global ones: one process holds all there is.

    Args:
        local: what was given for this process; None for nothing.
        whole: the parts over all devices.
        spread: from a prefix and its name to one entry a leaf.
        what: `"in_parts"` or `"out_parts"`.

    Raises:
        ProgramError: if they differ.

    >>> same_parts(None, Parts(2), lambda prefix, what: (prefix,), "in_parts")
    """
    if local is None:
        return
    mine, all_of = spread(local, f"local_{what}"), spread(whole, what)
    if mine != all_of:
        raise ProgramError(
            f"local_{what} says how the data of one process is cut, and {what} how the data of all"
            f" processes is. In a single process they are the same: got {listed(mine)} and"
            f" {listed(all_of)}, for {plural(len(mine), 'array')}. Leave local_{what} out."
        )
