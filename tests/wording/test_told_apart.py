"""Two byte counts that a sentence compares never look equal if they differ."""

from __future__ import annotations

import re

import pytest

import shardviz as sv
from shardviz.advise.candidates import HardlyLess, MoreTime, MovedElsewhere, NoLessMemory
from shardviz.advise.lock import Lock, LockedCollective
from shardviz.axis_rules.fit import Fit
from shardviz.base.collective import Collective
from shardviz.base.format import told_apart
from shardviz.compiled.checks import TooBigForOneDevice
from shardviz.compiled.words.roofline import time_text
from shardviz.compiled.words.stages import memory_needed, planned_memory
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
    "hardly less memory": lambda a, b: str(NoLessMemory((), a, b)),
    "a lock": lambda a, b: str(locked(b).diff(locked(a))).partition("Gained")[2],
    "by the plan": lambda a, b: planned_memory(Fit(2 * a, b, "TPU v5e"), a).replace("need 2", ""),
    "for one device": lambda a, b: str(TooBigForOneDevice(b, a)),
    "of a chip": lambda a, b: memory_needed(Fit(a, b)),
}


def locked(size: int) -> Lock:
    gather = LockedCollective("all-gather", ("data",), size, 1, 1, "f")
    return Lock("f", "data=2", {}, (gather,))


@pytest.mark.parametrize("sentence", COMPARED.values(), ids=COMPARED)
@pytest.mark.parametrize("size", [MIB, 16 * GIB])
def test_compared_sizes_differ_in_the_sentence(sentence, size):
    sizes = re.findall(r"[\d.,]+ [KMG]?i?B\b", sentence(size, size + 1))
    assert len(set(sizes[:2])) == 2, sizes


@pytest.mark.parametrize("seconds", [1.5e-6, 0.0123456, 41.5])
@pytest.mark.parametrize("times", [lambda a, b: " ".join(told_apart([a, b], time_text, 3)),
                                   lambda a, b: str(MoreTime((), b, a))])  # fmt: skip
def test_digits_tell_times_apart_unless_only_rounding_differs(seconds, times):
    number = r"[\d.]+ [mµn]?s\b"
    assert len(set(re.findall(number, times(seconds, seconds * 1.00001)))) == 2
    assert len(set(re.findall(number, times(seconds, seconds * (1 + 1e-15))))) == 1
