"""Notations of replica groups, and the mesh axes they run over."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardviz.base.replica_groups import axes_of_pairs, replicas_of
from shardviz.compiled.read_groups import groups_of, pairs_of
from tests.program.hlo import parsed


def summed(groups):
    """An all-reduce with replica groups in one of XLA's notations."""
    text = f"ROOT %r = f32[8] all-reduce(%p), replica_groups={groups}, to_apply=%add"
    return parsed(f"%p = f32[8] parameter(0)\n{text}").entry.root


def read_groups(text, devices):
    return groups_of(summed(text).attributes, devices)


NOTATIONS = {
    "written out": ("{{0,1},{2,3},{4,5},{6,7}}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
    "empty": ("{}", [list(range(8))]),
    "iota": ("[2,4]<=[8]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
    "iota, transposed": ("[2,4]<=[4,2]T(1,0)", [[0, 2, 4, 6], [1, 3, 5, 7]]),
    "mesh, major axis": ("mesh['a'=4,'b'=2] {'a'}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
    "mesh with an axis of 1": ("mesh['a'=4,'c'=1,'b'=2] {'c','b'}",
                               [[0, 1], [2, 3], [4, 5], [6, 7]]),
    "major sub-axis": ("mesh['p'=2,'q'=4] {'q':(1)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
    "listed devices": ("mesh['a'=4], device_ids=(3,1,2,0) {'a'}", [[3, 1, 2, 0]]),
    "iota devices": ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}",
                     [[0, 2, 4, 6], [1, 3, 5, 7]]),
    "two axes, one split": ("mesh['p'=2,'q'=8] {'p','q':(4)2}",
                            [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "groups"), NOTATIONS.values(), ids=NOTATIONS)
def test_every_notation_is_read(text, groups):
    assert [list(g) for g in read_groups(text, 8)] == groups


def test_pairs_are_read_in_order():
    text = "ROOT %r = f32[8] collective-permute(%p), source_target_pairs={{0,2},{2,0},{1,3}}"
    permute = parsed(f"%p = f32[8] parameter(0)\n{text}").entry.root
    assert pairs_of(permute) == ((0, 2), (2, 0), (1, 3))


def groups_by_loop(names, sizes, chosen):
    grid = np.arange(math.prod(sizes)).reshape(sizes)
    rest = [n for n in names if n not in chosen]
    groups = []
    for fixed in itertools.product(*[range(sizes[names.index(n)]) for n in rest]):
        at = dict(zip(rest, fixed, strict=True))
        groups.append(tuple(grid[tuple(at.get(n, slice(None)) for n in names)].ravel().tolist()))
    return tuple(groups)


@st.composite
def meshes_with_axes(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    names = [f"m{i}" for i in range(len(sizes))]
    chosen = [n for n in names if draw(st.booleans())]
    return names, tuple(sizes), chosen


@given(meshes_with_axes())
def test_groups_lead_back_to_their_axes(case):
    names, sizes, chosen = case
    groups = groups_by_loop(names, sizes, chosen)
    # Along an axis of size 1 nothing runs.
    moving = tuple(n for n in chosen if sizes[names.index(n)] > 1)
    assert replicas_of(groups, False, names, sizes).axes == moving


@settings(max_examples=50)
@given(meshes_with_axes())
def test_mesh_notation_says_what_loops_say(case):
    names, sizes, chosen = case
    expected = groups_by_loop(names, sizes, chosen)
    assume(len(expected[0]) > 1)  # XLA takes no others
    axes = ",".join(f"'{n}'={s}" for n, s in zip(names, sizes, strict=True))
    text = f"mesh[{axes}] {{{','.join(repr(n) for n in chosen)}}}"
    assert read_groups(text, math.prod(sizes)) == expected


def test_a_permutation_runs_along_the_axes_it_changes():
    assert axes_of_pairs(((0, 1), (1, 0)), ("a", "b"), (4, 2)) == ("b",)
    assert axes_of_pairs(((0, 3), (1, 2)), ("a", "b"), (4, 2)) == ("a", "b")
    assert axes_of_pairs(((5, 5),), ("a", "b"), (4, 2)) == ()


# Groups of the mesh a=4, b=2, and the axes, or parts of axes, that they run over.
PARTS = {
    "the major half of a": ([[0, 4], [2, 6], [1, 5], [3, 7]], ("a:(1)2",)),
    "the minor half of a": ([[0, 2], [4, 6], [1, 3], [5, 7]], ("a:(2)2",)),
    "half of a, all of b": ([[0, 1, 2, 3], [4, 5, 6, 7]], ("a:(2)2", "b")),
    "a half of a that has no name": ([[0, 6], [2, 4], [1, 7], [3, 5]], ("a",)),
    "diagonals": ([[0, 3], [1, 2], [4, 7], [5, 6]], ()),
    "of three": ([[0, 1, 2], [3, 4, 5]], ()),
    "half of the mesh": ([[0, 1], [2, 3]], ()),
    "none": ([], ()),
    "outside": ([[0, 99]] * 4, ()),
    "unequal": ([[0], [1, 2, 3, 4, 5, 6, 7]], ()),
    "now along a, now along b": ([[0, 2], [1, 3], [4, 5], [6, 7]], ()),
}


@pytest.mark.parametrize(("groups", "axes"), PARTS.values(), ids=PARTS)
def test_groups_may_run_over_a_part_of_an_axis(groups, axes):
    assert replicas_of(tuple(map(tuple, groups)), False, ("a", "b"), (4, 2)).axes == axes


SIZES = {
    "groups": (((0, 2, 4, 6), (1, 3, 5, 7)), False, ("a",), 4),
    "one group of all": ((tuple(range(8)),), False, ("a", "b"), 8),
    "a part": (((0, 2), (4, 6), (1, 3), (5, 7)), False, ("a:(2)2",), 2),
    "pairs": (((0, 2), (2, 4), (4, 6), (6, 0)), True, ("a",), 4),
    "pairs along both": (((0, 3), (3, 0)), True, ("a", "b"), 8),
    "groups of several sizes": (((0, 1), (2,)), False, (), 0),
    "no pairs": ((), True, (), 0),
}


@pytest.mark.parametrize(("groups", "paired", "axes", "size"), SIZES.values(), ids=SIZES)
def test_axes_and_sizes_of_groups(groups, paired, axes, size):
    found = replicas_of(groups, paired, ("a", "b"), (4, 2))
    assert (found.axes, found.size) == (axes, size)
