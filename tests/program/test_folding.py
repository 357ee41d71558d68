"""What layers have in common, folded: every item once, and no byte lost."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardviz.base.collective import Collective, Member
from shardviz.base.format import fold
from shardviz.plans.plan_folds import (
    fold_collectives,
    fold_line,
    path_in_words,
)

# names: the names of their folds
FOLDED = {
    "layers": ([f"blocks_{n}/Mlp_0" for n in range(32)], ["blocks_{0..31}/Mlp_0"]),
    "layers with several inside": (
        [f"blocks_{n}/Dense_{m}" for n in range(4) for m in (0, 1)],
        ["blocks_{0..3}/Dense_{0..1}"],
    ),
    "one is missing": (["a_0/b_0", "a_0/b_1", "a_1/b_0"], ["a_{0..1}/b_0", "a_0/b_1"]),
    "gaps": (["a1", "a2", "a3", "a7"], ["a{1..3,7}"]),
    "leading zeros": (["a01", "a02"], ["a{01,02}"]),
    "equal numbers written differently": (["a1", "a01"], ["a{01,1}"]),
    "no numbers, twice": (["x", "x"], ["x"]),
    "one twice and one once": (["x0", "x1", "x0"], ["x{0..1}"]),
    "nothing in common": (["x1", "y1"], ["x1", "y1"]),
    "braces of its own": (["{0..1}"], ["{0..1}"]),
    "none": ([], []),
}


@pytest.mark.parametrize("case", FOLDED)
def test_names_that_differ_in_numbers_are_one(case):
    names, folded = FOLDED[case]
    assert [one.name for one in fold(names, str)] == folded


NAMES = st.lists(
    st.text("a/_{}0129", max_size=6)
    | st.builds("b_{}/c_{}".format, st.integers(0, 4), st.integers(0, 2)),
    max_size=30,
)  # fmt: skip


@given(NAMES)
def test_a_fold_has_every_combination_of_its_numbers_and_no_other(names):
    folds = fold(names, str)
    assert Counter(name for one in folds for name in one.items) == Counter(names)
    for one in folds:
        assert {"".join(parts) for parts in itertools.product(*one.parts)} == set(one.items)


COLLECTIVES = st.lists(
    st.builds(
        Collective,
        kind=st.sampled_from(["all-reduce", "all-gather"]),
        mesh_axes=st.sampled_from([("x",), ("x", "y")]),
        bytes_per_device=st.sampled_from([4, 64]),
        op=st.builds("jit(f)/{}(jvp(blocks_{}))/dot".format, st.sampled_from(["vmap", "transpose"]),
                     st.integers(0, 5)),
        source=st.sampled_from(["f.py:1", "f.py:2"]),
        trips=st.sampled_from([1, 12, None]),
        members=st.sampled_from([(), (Member("jit(f)/a", "f.py:1", 2), Member("b", "", 2))]),
    ),
    max_size=30,
)  # fmt: skip


@given(COLLECTIVES)
def test_every_collective_is_in_one_fold_and_no_byte_is_lost(collectives):
    folds = fold_collectives(collectives)
    assert sorted(id(c) for one in folds for c in one.items) == sorted(map(id, collectives))
    for one in folds:
        first = one.items[0]
        assert all(
            (c.kind, c.mesh_axes, c.bytes_in_all, c.source, c.phase)
            == (first.kind, first.mesh_axes, first.bytes_in_all, first.source, first.phase)
            for c in one.items
        )
        unfolded = {"".join(parts) for parts in itertools.product(*one.parts)}
        assert unfolded == {path_in_words(c.op) for c in one.items}
    sums = [sum(c.drawn_bytes for c in one.items) for one in folds]
    assert sum(sums) == sum(c.drawn_bytes for c in collectives)
    assert sums == sorted(sums, reverse=True)


def test_layers_of_a_loop_without_names_fold_by_their_line():
    first = Collective("all-gather", ("data",), 64, "jit(f)/dot_general", "f.py:3", group_size=4)
    layers, other = [first] * 32, dataclasses.replace(first, source="f.py:4")
    assert [fold_line(one) for one in fold_collectives([*layers, other])] == [
        "32 × 48 B all-gather over data · f.py:3 · dot_general",
        "48 B all-gather over data · f.py:4 · jit(f)/dot_general",
    ]
