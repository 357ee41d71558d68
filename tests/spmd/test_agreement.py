"""What processes do not agree on, in words; and what jax says where they are the cause."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardviz.core.backend.failures import meaning_of
from shardviz.core.backend.run import rendezvous
from shardviz.core.errors import ProgramError
from shardviz.core.layout.layout import lay_out
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.agreement import (
    Account,
    broken_blocks,
    difference,
    first_other_operation,
)

SAME = Account(
    0,
    "sv.run('step')",
    "jax 0.10.2 with jaxlib 0.10.2",
    "cpu",
    "data=8",
    tuple(range(8)),
    {"x": "f32[16, 8] as P('data')", "y": "f32[] as P()"},
    "no options",
    "abc",
    {"x": "1234"},
)
# What process 2 of 4 has instead, and the code of the difference.
DIFFERENT = {
    "call": ({"call": "sv.run('eval')"}, "call"),
    "versions": ({"versions": "jax 0.12"}, "versions"),
    "platform": ({"platform": "H100"}, "platform"),
    "mesh": ({"mesh": "data=4"}, "mesh"),
    "devices": ({"devices": (7, *range(7))}, "devices"),
    "an argument": ({"arguments": {**SAME.arguments, "y": "f32[2] as P()"}}, "arguments"),
    "one argument less": ({"arguments": {"x": SAME.arguments["x"]}}, "arguments"),
    "one argument more": ({"arguments": {**SAME.arguments, "z": "f32[] as P()"}}, "arguments"),
    "another order": ({"arguments": dict(reversed(list(SAME.arguments.items())))}, "arguments"),
    "options": ({"options": "the options a=1"}, "options"),
    "program": ({"program": "def"}, "program"),
    "values": ({"values": {"x": "99"}}, "values"),
    "a value of another kind": ({"values": {"x": {"0:8": "99"}}}, "value kinds"),
}


@pytest.mark.parametrize(("change", "code"), DIFFERENT.values(), ids=DIFFERENT)
def test_the_process_that_differs_is_named(change, code):
    accounts = [replace(SAME, process=i) for i in range(4)]
    assert difference(accounts) is None
    accounts[2] = replace(accounts[2], **change)
    found = difference([Account.read(a.text) for a in accounts])
    assert found is not None
    assert (found.what, found.odd, found.others) == (code, (2,), (0, 1, 3))
    assert str(found).startswith("Process 2 ")


def test_of_two_the_second_differs():
    found = difference([SAME, replace(SAME, process=1, mesh="data=4")])
    assert found is not None
    assert (found.odd, found.others) == ((1,), (0,))


def test_several_that_differ_are_all_named():
    accounts = [replace(SAME, process=i, mesh="data=4" if i in (1, 3) else "m=8") for i in range(6)]
    found = difference(accounts)
    assert found is not None
    assert (found.odd, found.others) == ((1, 3), (0, 2, 4, 5))


def test_a_shard_that_two_processes_hold():
    one, two = {"0:8": "a", "8:16": "b"}, {"0:8": "a", "8:16": "c"}
    accounts = [replace(SAME, process=i, values={"x": v}) for i, v in enumerate((one, one, two))]
    found = difference(accounts)
    assert found is not None
    assert (found.what, found.name, found.odd) == ("shards", "x[8:16]", (2,))
    accounts[2] = replace(accounts[2], values={"x": {"16:24": "d"}})
    assert difference(accounts) is None


def rows(*operations):
    return [(name, "f32[8]", f"f.py:{line}") for name, line in operations]


PROGRAMS = {
    "an operation less": ([("sin", 1)], [("sin", 1), ("cos", 2)], (None, "cos")),
    "two operations more": (
        [("sin", 1), ("exp", 2), ("log", 3), ("cos", 4)],
        [("sin", 1), ("cos", 4)],
        ("exp", None),
    ),
    "another operation": ([("sin", 1)], [("cos", 1)], ("sin", "cos")),
}


@pytest.mark.parametrize(("odd", "others", "names"), PROGRAMS.values(), ids=PROGRAMS)
def test_the_first_operation_that_differs(odd, others, names):
    found = first_other_operation(rows(*odd), rows(*others))
    assert found is not None
    assert tuple(operation and operation[0] for operation in found) == names


def test_the_same_operations_have_no_first_that_differs():
    assert first_other_operation(rows(("sin", 1)), rows(("sin", 1))) is None


BLOCKS = {
    "one block each, in order": ((0, 1, 2, 3), "data", None),
    "all rows in every process": ((0, 2, 1, 3), "model", None),
    "the other way round": ((2, 3, 0, 1), "data", ((4, 8),)),
    "in turn": ((0, 2, 1, 3), "data", ((0, 2), (4, 6))),
}


@pytest.mark.parametrize(("order", "axis", "rows"), BLOCKS.values(), ids=BLOCKS)
def test_an_order_that_parts_the_rows_of_a_process(order, axis, rows):
    ids = np.array(order).reshape(4, 1)
    axes = {"axis_names": ("data", "model"), "axis_sizes": (4, 1)}
    mesh = MeshSpec(**axes, device_ids=ids, process_indices=ids // 2)
    found = broken_blocks({"x": lay_out((8, 4), Spec.parse(axis), mesh)})
    if rows is None:
        assert found is None
    else:
        assert found is not None
        assert found.arrays == (("x", 0, rows),)


# What jax 0.10.2 and 0.12.0.1 print, in short.
SAID = {
    "killed": (
        "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n1\n3\nThe"
        " tasks have crashed.",
        ("process lost", (1, 3)),
    ),
    "killed, older words": (
        "tasks are unhealthy (stopped sending heartbeats):\n/job:jax_worker/replica:0/task:2\nThe",
        ("process lost", (2,)),
    ),
    "left by an error": (
        "DEADLINE_EXCEEDED: Barrier timed out. Id: Shutdown::3::0.\n# of tasks that reached the"
        " barrier: 1/2.\nThe first task at the barrier: 1. Some timed out task names:\n0\n [type",
        ("process lost", (0,)),
    ),
    "the coordinator stopped": (
        "DEADLINE_EXCEEDED: Deadline Exceeded\n\nRPC: /xla.coordination.CoordinationService/"
        "Heartbeat",
        ("coordinator lost", ()),
    ),
    "never started": (
        "DEADLINE_EXCEEDED: Deadline Exceeded\n\nRPC: /xla.coordination.CoordinationService/"
        "RegisterTask",
        ("not joined", ()),
    ),
    "numpy arrays that differ": (
        "<class 'numpy.ndarray'> passed to device_put is not the same on each process.",
        ("local data", ()),
    ),
    "memory": ("RESOURCE_EXHAUSTED: Out of memory allocating 3 bytes", ("no memory", ())),
    "anything else": ("ValueError: shapes differ", None),
}


@pytest.mark.parametrize(("text", "expected"), SAID.values(), ids=SAID)
def test_what_jax_says_of_several_processes(text, expected):
    found = meaning_of(text)
    assert (found and (found.code, found.processes)) == expected


def test_seconds_to_wait(monkeypatch):
    monkeypatch.delenv(rendezvous.WAIT, raising=False)
    assert rendezvous.seconds_to_wait() == 30
    monkeypatch.setenv(rendezvous.WAIT, "2.5")
    assert rendezvous.seconds_to_wait() == 2.5
    for text in ("soon", "-1", "nan", "inf"):
        monkeypatch.setenv(rendezvous.WAIT, text)
        with pytest.raises(ProgramError, match="how many seconds to wait for other processes"):
            rendezvous.seconds_to_wait()
