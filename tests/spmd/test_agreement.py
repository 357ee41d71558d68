"""What processes do not agree on, in words; and what jax says where they are the cause."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from jax._src import distributed

from shardviz.core.backend import rendezvous
from shardviz.core.backend.failures import explain
from shardviz.core.errors import ProgramError
from shardviz.core.layout.layout import lay_out
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.agreement import (
    Account,
    Difference,
    ProgramDetails,
    broken_blocks,
    difference,
    failed,
    missing,
    processes,
    program_difference,
    silent,
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
# What process 2 of 4 has instead, and how the sentence begins.
DIFFERENT = {
    "call": ({"call": "sv.run('eval')"}, "Process 2 is at sv.run('eval'), and the others are at"),
    "versions": ({"versions": "jax 0.12"}, "Process 2 has jax 0.12, and the others have jax 0.10"),
    "platform": ({"platform": "H100"}, "Process 2 has devices of H100, and the others have cpu."),
    "mesh": ({"mesh": "data=4"}, "Process 2 has the mesh data=4, and the others have data=8."),
    "devices": ({"devices": (7, *range(7))}, "Process 2 has the devices of the mesh in the order"),
    "an argument": (
        {"arguments": {**SAME.arguments, "y": "f32[2] as P()"}},
        "Process 2 has y as f32[2] as P(), and the others have f32[] as P().",
    ),
    "one argument less": (
        {"arguments": {"x": SAME.arguments["x"]}},
        "Process 2 has no argument y, unlike the others.",
    ),
    "one argument more": (
        {"arguments": {**SAME.arguments, "z": "f32[] as P()"}},
        "Process 2 has an argument z, unlike the others.",
    ),
    "another order": (
        {"arguments": dict(reversed(list(SAME.arguments.items())))},
        "Process 2 has the arguments in another order than the others: y and x instead of x and y.",
    ),
    "options": ({"options": "the options a=1"}, "Process 2 has the options a=1, and the others"),
    "program": ({"program": "def"}, "Process 2 runs another program than the others."),
    "values": ({"values": {"x": "99"}}, "Process 2 gives other values for x than the others."),
    "a value of another kind": (
        {"values": {"x": {"0:8": "99"}}},
        "Process 2 gives an array over several processes for x, and the others a value of its own",
    ),
}


@pytest.mark.parametrize(("change", "words"), DIFFERENT.values(), ids=DIFFERENT)
def test_the_process_that_differs_is_named(change, words):
    accounts = [replace(SAME, process=i) for i in range(4)]
    assert difference(accounts) is None
    accounts[2] = replace(accounts[2], **change)
    found = difference([Account.read(a.text) for a in accounts])
    assert found is not None
    assert found.sentence.startswith(words)
    assert (found.odd, found.others) == ((2,), (0, 1, 3))


def test_of_two_the_second_differs():
    found = difference([SAME, replace(SAME, process=1, mesh="data=4")])
    assert found is not None
    assert found.sentence.startswith("Process 1 has the mesh data=4, and process 0 has data=8.")


def test_several_that_differ_are_all_named():
    accounts = [replace(SAME, process=i, mesh="data=4" if i in (1, 3) else "m=8") for i in range(6)]
    found = difference(accounts)
    assert found is not None
    assert found.sentence.startswith("Processes 1 and 3 have the mesh data=4, and the others have")


def test_a_shard_that_two_processes_hold():
    one, two = {"0:8": "a", "8:16": "b"}, {"0:8": "a", "8:16": "c"}
    accounts = [replace(SAME, process=i, values={"x": v}) for i, v in enumerate((one, one, two))]
    found = difference(accounts)
    assert found is not None
    assert found.sentence.startswith(
        "Process 2 holds other values of x[8:16] than processes 0 and 1, and all of them hold"
    )
    accounts[2] = replace(accounts[2], values={"x": {"16:24": "d"}})
    assert difference(accounts) is None


def details(*operations, collectives=(), constants=()):
    rows = tuple((name, "f32[8]", f"f.py:{line}", "") for name, line in operations)
    return ProgramDetails(rows, collectives, constants)


SUM = ("all-reduce", "data", "f.py:3")
PROGRAMS = {
    "an operation less": (
        details(("sin", 1)),
        details(("sin", 1), ("cos", 2)),
        "it has no cos at f.py:2",
    ),
    "two operations more": (
        details(("sin", 1), ("exp", 2), ("log", 3), ("cos", 4)),
        details(("sin", 1), ("cos", 4)),
        "it has exp at f.py:2 and 1 operation after it more",
    ),
    "another operation": (
        details(("sin", 1)),
        details(("cos", 1)),
        "at f.py:1 it has sin instead of cos",
    ),
    "a collective less": (
        details(("sin", 1)),
        details(("sin", 1), collectives=(SUM,)),
        "it has no all-reduce over data at f.py:3",
    ),
    "a collective more": (
        details(("sin", 1), collectives=(SUM, SUM)),
        details(("sin", 1), collectives=(SUM,)),
        "it has an all-reduce over data at f.py:3 more",
    ),
    "other constants": (
        details(("sin", 1), constants=(("f32[8]", "a"),)),
        details(("sin", 1), constants=(("f32[8]", "b"),)),
        "it has other values in f32[8], which the function closes over",
    ),
    "nothing that is known": (
        details(("sin", 1)),
        details(("sin", 1)),
        "something else than its operations differs in the lowered program",
    ),
}


@pytest.mark.parametrize(("odd", "others", "words"), PROGRAMS.values(), ids=PROGRAMS)
def test_what_differs_in_programs(odd, others, words):
    found = program_difference(
        Difference("program", "", (1,), (0,)),
        ProgramDetails.read(odd.text),
        ProgramDetails.read(others.text),
    )
    assert found.sentence.startswith(f"Process 1 runs another program than process 0: {words}.")


def test_names_of_processes():
    assert processes([3]) == "Process 3"
    assert processes([2, 0, 1]) == "Processes 0, 1 and 2"
    assert processes(range(1, 64)) == "Processes 1–63"


def test_who_is_missing():
    assert missing("sv.run('f')", [1, 2], [0], 30).startswith(
        "Processes 1 and 2 did not reach sv.run('f') within 30 s; process 0 waited for them, and"
    )
    assert missing("sv.run('f')", [1], [0, 2], 5, ended=False) == (
        "Process 1 has not reached sv.run('f') within 5 s; the others wait for it."
    )
    busy = missing("sv.run('f')", [1], [0], 30, "in the stage 'trace' at f.py:3")
    assert "It is still in the stage 'trace' at f.py:3: look at its output." in busy
    assert silent([1, 2], "", 5).startswith("Processes 1 and 2 have given no sign for 5 s: they")
    assert failed(1, "run", "No.").startswith("Process 1 failed in the stage 'run'")


BLOCKS = {
    "one block each, in order": ((0, 1, 2, 3), "data", ""),
    "all rows in every process": ((0, 2, 1, 3), "model", ""),
    "the other way round": ((2, 3, 0, 1), "data", "process 0 holds rows 4:8 of x"),
    "in turn": ((0, 2, 1, 3), "data", "process 0 holds rows 0:2 + 4:6 of x"),
}


@pytest.mark.parametrize(("order", "axis", "words"), BLOCKS.values(), ids=BLOCKS)
def test_an_order_that_parts_the_rows_of_a_process(order, axis, words):
    ids = np.array(order).reshape(4, 1)
    axes = {"axis_names": ("data", "model"), "axis_sizes": (4, 1)}
    mesh = MeshSpec(**axes, device_ids=ids, process_indices=ids // 2)
    found = broken_blocks({"x": lay_out((8, 4), Spec.parse(axis), mesh)})
    assert words in found
    assert found.startswith("The order of the mesh's devices parts the rows") == bool(words)


# What jax 0.10.2 and 0.12.0.1 print, in short.
SAID = {
    "killed": (
        "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n1\nThe tasks"
        " have crashed.",
        "Process 1 died, hangs or was stopped: it sent no heartbeat",
    ),
    "two killed": (
        "tasks are unhealthy (stopped sending heartbeats):\n1\n3\nThe tasks have crashed.",
        "Processes 1 and 3 died, hang or were stopped: they sent no heartbeat",
    ),
    "killed, older words": (
        "tasks are unhealthy (stopped sending heartbeats):\n/job:jax_worker/replica:0/task:2\nThe",
        "Process 2 died",
    ),
    "left by an error": (
        "DEADLINE_EXCEEDED: Barrier timed out. Id: Shutdown::3::0.\n# of tasks that reached the"
        " barrier: 1/2.\nThe first task at the barrier: 1. Some timed out task names:\n0\n [type",
        "Process 0 did not come to the end of the script in time. Most often it waits in a",
    ),
    "the coordinator killed": (
        "UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was",
        "Process 0, which coordinates the others, has ended",
    ),
    "the coordinator stopped": (
        "DEADLINE_EXCEEDED: Deadline Exceeded\n\nRPC: /xla.coordination.CoordinationService/"
        "Heartbeat",
        "Process 0, which coordinates the others, has ended, hangs or cannot be reached",
    ),
    "never started": (
        "DEADLINE_EXCEEDED: Deadline Exceeded\n\nRPC: /xla.coordination.CoordinationService/"
        "RegisterTask",
        "Not all processes came to jax.distributed.initialize in time.",
    ),
    "one id twice": (
        "ALREADY_EXISTS: Aborted connect attempt as there is a request from a newer incarnation.",
        "Two processes have the same process_id",
    ),
    "a local batch": (
        "Invalid host data, each dimension should match either global or process shape. In"
        " dimension 0, the process data has 4 elements. Process addresses 8 elements and"
        " global_shape=(16,).",
        "The local batch has another size than the devices of this process hold: 4 along dimension"
        " 0, and 8 are needed.",
    ),
    "numpy arrays that differ": (
        "<class 'numpy.ndarray'> passed to device_put is not the same on each process.",
        "A numpy array or number stands for all of an array",
    ),
    "numpy to jit": (
        "Passing non-trivial shardings for numpy inputs is not allowed.",
        "jax.jit takes no numpy array that it would have to split over several processes.",
    ),
    "other devices": (
        "For a cross-host reshard in multi-controller JAX, input and target sharding should have",
        "An array over several processes can go to another order of the same devices only",
    ),
    "too late": (
        "jax.distributed.initialize() must be called before any JAX calls that might initialise",
        "jax had started before jax.distributed.initialize was called.",
    ),
    "memory": ("RESOURCE_EXHAUSTED: Out of memory allocating 3 bytes", "Memory ran out in this"),
    "anything else": ("ValueError: shapes differ", ""),
}


@pytest.mark.parametrize(("text", "words"), SAID.values(), ids=SAID)
def test_what_jax_says_of_several_processes(text, words):
    found = explain(text)
    assert found.startswith(words)
    assert bool(found) == bool(words)


def test_seconds_to_wait(monkeypatch):
    monkeypatch.delenv(rendezvous.WAIT, raising=False)
    assert rendezvous.seconds_to_wait() == 30
    monkeypatch.setenv(rendezvous.WAIT, "2.5")
    assert rendezvous.seconds_to_wait() == 2.5
    for text in ("soon", "-1", "nan", "inf"):
        monkeypatch.setenv(rendezvous.WAIT, text)
        with pytest.raises(ProgramError, match="how many seconds to wait for other processes"):
            rendezvous.seconds_to_wait()


def test_a_store_that_jax_has_no_more_is_none(monkeypatch):
    assert rendezvous.store() is None  # nobody called jax.distributed.initialize
    monkeypatch.setattr(distributed.global_state, "client", object())
    assert rendezvous.store() is None
