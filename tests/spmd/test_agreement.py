"""What processes do not agree on, and how long they wait."""

from __future__ import annotations

import pytest

from shardviz.base.errors import ProgramError
from shardviz.runs.agreement import Account, difference
from shardviz.runs.backend import rendezvous

FIELDS = {"call": "sv.run('f')", "mesh": "x=8", "argument x": "f32[8]", "values of x": "12"}
# What some of four processes have instead: the field, who differs and from whom.
DIFFERENT = {
    "one": ({2: {"mesh": "x=4"}}, "mesh", (2,), (0, 1, 3)),
    "two alike": ({1: {"mesh": "x=4"}, 3: {"mesh": "x=4"}}, "mesh", (1, 3), (0, 2)),
    "two things": ({1: {"values of x": "1"}, 2: {"call": "g"}}, "call", (2,), (0, 1, 3)),
    "a shard that two hold": (
        {0: {"values of x[0:4]": "a"}, 3: {"values of x[0:4]": "b"}},
        "values of x[0:4]", (3,), (0,),
    ),
    "shards that one holds": ({0: {"values of x[0:4]": "a"}}, None, (), ()),
    "nothing": ({}, None, (), ()),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "field", "odd", "others"), DIFFERENT.values(), ids=DIFFERENT)
def test_the_processes_that_differ_are_named_with_what(changes, field, odd, others):
    accounts = [Account(i, {**FIELDS, **changes.get(i, {})}, "f.py:3") for i in range(4)]
    found = difference([Account.read(a.text) for a in accounts])
    if field is None:
        assert found is None
    else:
        assert (found.field, found.differing, found.reference) == (field, odd, others)
        assert found.line == "f.py:3"


def test_seconds_to_wait(monkeypatch):
    monkeypatch.delenv(rendezvous.WAIT, raising=False)
    assert rendezvous.seconds_to_wait() == 30
    monkeypatch.setenv(rendezvous.WAIT, "2.5")
    assert rendezvous.seconds_to_wait() == 2.5
    for text in ("soon", "-1", "nan", "inf"):
        monkeypatch.setenv(rendezvous.WAIT, text)
        with pytest.raises(ProgramError):
            rendezvous.seconds_to_wait()
