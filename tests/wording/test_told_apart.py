"""Two byte counts that a sentence compares never look equal if they differ."""

from __future__ import annotations

import re

import pytest

import shardviz as sv
from shardviz.advise.candidates import HardlyLess, MovedElsewhere, NoLessMemory
from shardviz.axis_rules.fit import Fit
from shardviz.base.collective import Collective
from shardviz.base.format import told_apart
from shardviz.plans.plan import Plan
from shardviz.programs.failure import TookTooMuchMemory

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize("size", [1000, MIB, GIB, 16 * GIB, 5 << 40])
@pytest.mark.parametrize("more", [1, 17, 12345])
def test_digits_tell_sizes_apart(size, more):
    first, second = told_apart([size, size + more])
    assert first != second
    assert len(set(told_apart([size, size]))) == 1


def limited(limit: int, size: int) -> str:
    plan = Plan("f", sv.mesh("data=2"), (), (Collective("all-gather", ("data",), size),))
    with pytest.raises(sv.ContractError) as raised:
        sv.expect(plan).at_most(limit)
    return str(raised.value)


COMPARED = {
    "at most": lambda a, b: limited(a, b),
    "a chip": lambda a, b: str(Fit(b, a, "TPU v5e")),
    "free": lambda a, b: str(Fit(b, 4 * a, "TPU v5e", free=a)),
    "a worker": lambda a, b: str(TookTooMuchMemory(stage="run", used=b, limit=a)),
    "more sent": lambda a, b: str(MovedElsewhere((), b, a)),
    "hardly less": lambda a, b: str(HardlyLess((), a, b)),
    "no less memory": lambda a, b: str(NoLessMemory((), b, a)),
}


@pytest.mark.parametrize("sentence", COMPARED.values(), ids=COMPARED)
@pytest.mark.parametrize("size", [MIB, 16 * GIB])
def test_compared_sizes_differ_in_the_sentence(sentence, size):
    sizes = re.findall(r"[\d.,]+ [KMG]?i?B\b", sentence(size, size + 1))
    assert len(set(sizes[:2])) == 2, sizes
