"""Notations of replica groups, and the mesh axes they run over."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardviz.core.program.hlo.replica_groups import (
    axes_of_groups,
    axes_of_pairs,
    read_groups,
    read_pairs,
)

NOTATIONS = {
    "written out": ("{{0,1},{2,3},{4,5},{6,7}}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
    "one by one": ("{{0},{1},{2},{3},{4},{5},{6},{7}}", [[i] for i in range(8)]),
    "empty": ("{}", [list(range(8))]),
    "iota": ("[2,4]<=[8]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
    "iota without its bounds": ("[2,4]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
    "iota, transposed": ("[2,4]<=[4,2]T(1,0)", [[0, 2, 4, 6], [1, 3, 5, 7]]),
    "iota of three": ("[4,2]<=[2,2,2]T(0,2,1)", [[0, 2], [1, 3], [4, 6], [5, 7]]),
    "mesh, minor axis": ("mesh['a'=4,'b'=2] {'b'}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
    "mesh, major axis": ("mesh['a'=4,'b'=2] {'a'}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
    "mesh, both, swapped": ("mesh['a'=4,'b'=2] {'b','a'}", [[0, 2, 4, 6, 1, 3, 5, 7]]),
    "mesh without quotes": ("mesh[a=4,b=2] {b}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
    "mesh with an axis of 1": ("mesh['a'=4,'b'=2,'c'=1] {'c'}", [[i] for i in range(8)]),
    "minor sub-axis": ("mesh['p'=2,'q'=4] {'q':(2)2}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
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


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[2,4]<=[3]", "mesh", "mesh[", "mesh['a'=4], device_ids=(0,1) {'a'}",
     "mesh['a'=6] {'a':(4)3}"],
)  # fmt: skip
def test_what_cannot_be_read_has_no_groups(text):
    assert read_groups(text, 8) == ()


def test_pairs_are_read_in_order():
    assert read_pairs("{{0,2},{2,0},{1,3}}") == ((0, 2), (2, 0), (1, 3))


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
    assert axes_of_groups(groups, names, sizes) == moving


@given(meshes_with_axes())
def test_mesh_notation_says_what_loops_say(case):
    names, sizes, chosen = case
    axes = ",".join(f"'{n}'={s}" for n, s in zip(names, sizes, strict=True))
    text = f"mesh[{axes}] {{{','.join(repr(n) for n in chosen)}}}"
    assert read_groups(text, math.prod(sizes)) == groups_by_loop(names, sizes, chosen)


@pytest.mark.parametrize(
    "groups",
    [((0, 1, 2), (3, 4, 5)), ((0, 3), (1, 2), (4, 7), (5, 6)), ((0, 1), (2, 3)), (), ((0, 99),) * 4,
     ((0,), (1, 2, 3, 4, 5, 6, 7))],
    ids=["of three", "diagonal", "half of the mesh", "none", "outside", "unequal"],
)  # fmt: skip
def test_groups_along_no_axes_have_none(groups):
    assert axes_of_groups(groups, ("a", "b"), (4, 2)) == ()


def test_a_permutation_runs_along_the_axes_it_changes():
    assert axes_of_pairs(((0, 1), (1, 0)), ("a", "b"), (4, 2)) == ("b",)
    assert axes_of_pairs(((0, 3), (1, 2)), ("a", "b"), (4, 2)) == ("a", "b")
    assert axes_of_pairs(((5, 5),), ("a", "b"), (4, 2)) == ()
