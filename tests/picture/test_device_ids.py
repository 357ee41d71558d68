from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardviz.base.format import ids_text
from tests.picture.ids_reader import read_ids

WORDS = [
    ("none", [], "no device"),
    ("one", [7], "7"),
    ("two", [0, 1], "0, 1"),
    ("few", [0, 2, 4, 6], "0, 2, 4, 6"),
    ("few in a row", [4, 5, 6], "4–6"),
    ("a row", range(8), "0–7"),
    ("a row backwards", range(7, -1, -1), "7–0 step -1"),
    ("steps", range(1, 512, 2), "1–511 step 2"),
    ("two rows", [*range(4), *range(8, 12)], "0–3, 8–11"),
    ("rows", [8 * i + j for i in range(8) for j in (0, 1)], "0–1, 8–9 … 56–57"),
    ("pairs apart", [8 * i + j for i in range(8) for j in (0, 2)], "(0, 2), (8, 10) … (56, 58)"),
    (
        "three levels",
        [64 * i + 8 * j + k for i in range(4) for j in range(4) for k in range(3)],
        "(0–2, 8–10 … 24–26), (64–66, 72–74 … 88–90) … (192–194, 200–202 … 216–218)",
    ),
    ("no pattern", [3, 1, 4, 15, 9, 2], "3, 1, 4, 15, 9, 2"),
    ("half a pattern", [5, 9, 1, 2, 3, 4], "5, 9, 1–4"),
]


@pytest.mark.parametrize(("ids", "text"), [c[1:] for c in WORDS], ids=[c[0] for c in WORDS])
def test_ids_read_as_people_write_them(ids, text):
    assert ids_text(ids) == text
    assert read_ids(text) == list(ids)


@given(st.lists(st.integers(0, 5000), unique=True, max_size=60))
def test_no_id_is_lost_and_none_is_moved(ids):
    assert read_ids(ids_text(ids)) == ids


@given(
    st.lists(st.tuples(st.integers(2, 5), st.integers(1, 40)), min_size=1, max_size=4),
    st.integers(0, 9),
    st.data(),
)
def test_sums_of_steps_lose_no_id(levels, first, data):
    # Ids of devices along some axes of a mesh are such sums, here also with axes that overlap.
    steps = [[step * i for i in range(count)] for count, step in levels]
    ids = [first + sum(place) for place in itertools.product(*steps)]
    assert read_ids(ids_text(ids)) == ids
    cut = data.draw(st.integers(0, len(ids)))
    assert read_ids(ids_text(ids[:cut])) == ids[:cut]


@given(st.permutations(range(24)))
def test_any_order_of_a_mesh_is_kept(ids):
    assert read_ids(ids_text(np.reshape(ids, (2, 3, 4)))) == ids


@given(st.lists(st.integers(0, 3000), unique=True, max_size=40), st.integers(6, 30))
def test_a_limit_is_kept_and_what_is_cut_is_counted(ids, limit):
    text = ids_text(ids, limit)
    if text.endswith(" devices"):
        assert text == f"{len(ids):,} devices"
    else:
        assert read_ids(text) == ids
        assert len(text) <= max(limit, len("no device"))
