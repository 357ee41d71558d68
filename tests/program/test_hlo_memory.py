"""What a program needs on each device against what the device has, in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardviz.core.program.report import Memory, capacity_words, needed

GIB = 1 << 30
WORDS = {
    "nothing said": (Memory(), ""),
    "nothing needed": (Memory(arguments=0, capacity=GIB),
                       "It needs 0 B on each device and a device has 1 GiB: it fits, and takes"
                       " less than 1 % of it."),
    "fits": (Memory(arguments=GIB, temporaries=3 * GIB, capacity=16 * GIB),
             "It needs 4 GiB on each device and a device has 16 GiB: it fits, and takes 25 % of"
             " it. Most of it, 3 GiB, is temporaries."),
    "over": (Memory(arguments=40 * GIB, outputs=8 * GIB, capacity=16 * GIB),
             "It needs 48 GiB on each device and a device has 16 GiB: 3 times over. Most of it,"
             " 40 GiB, is arguments."),
    "barely over": (Memory(arguments=16 * GIB + 1, capacity=16 * GIB),
                    "It needs 16 GiB on each device and a device has 16 GiB: 1.01 times over. Most"
                    " of it, 16 GiB, is arguments."),
    "donated": (Memory(arguments=2 * GIB, outputs=2 * GIB, aliased=2 * GIB, capacity=4 * GIB),
                "It needs 2 GiB on each device and a device has 4 GiB: it fits, and takes 50 % of"
                " it. Most of it, 2 GiB, is arguments."),
    "no capacity": (Memory(outputs=GIB), "It needs 1 GiB on each device; how much a device has is"
                                         " not known. Most of it, 1 GiB, is outputs."),
    "code": (Memory(arguments=1, generated_code=GIB, capacity=0),
             "It needs 1 GiB on each device and a device has 0 B: it does not fit. Most of it,"
             " 1 GiB, is code."),
}  # fmt: skip


@pytest.mark.parametrize(("memory", "words"), WORDS.values(), ids=WORDS)
def test_in_words(memory, words):
    assert capacity_words(memory) == words


sizes = st.none() | st.integers(0, 1 << 50)


@given(sizes, sizes, sizes, sizes, sizes)
def test_it_fits_exactly_where_the_sum_does(arguments, outputs, temporaries, code, capacity):
    memory = Memory(arguments, outputs, temporaries, 0, code, capacity)
    total, words = needed(memory), capacity_words(memory)
    if total is None or capacity is None:
        assert "fits" not in words
        assert "over" not in words
    else:
        assert ("it fits" in words) == (total <= capacity)
        assert ("times over" in words or "does not fit" in words) == (total > capacity)
