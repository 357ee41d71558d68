"""Mistakes in one of two processes: each is a sentence with its number, and nothing hangs."""

from __future__ import annotations

import pytest

from tests.spmd.mistakes import CASES
from tests.spmd.processes import run_cases

# The case, and what process 0 says of it; both processes go on with the next one.
WORDS = {
    "branch_function": (
        "Process 1 is at sv.run('largest') (mistakes.py:",
        "and process 0 is at sv.run('total') (mistakes.py:",
        "look for a branch on jax.process_index()",
    ),
    "branch_kind": ("Process 1 is at sv.compile('total')", "process 0 is at sv.run('total')"),
    "branch_same_name": ("Process 1 runs another program than process 0", ": mul ("),
    "branch_order": ("Process 1 is at sv.run('largest')",),
    "branch_repeat": (
        "Process 1 has the options repeat=2, and process 0 has the options repeat=1",
    ),
    "skip_sum": ("Process 1 runs another program", "reduce_sum (", ") at mistakes.py:"),
    "skip_constraint": ("the same operations with",),
    "skip_psum": ("instead of psum", ") at mistakes.py:"),
    "skip_permute": ("ppermute (", ") at mistakes.py:"),
    "skip_gradient": ("without dot_general (", ") at mistakes.py:"),
    **dict.fromkeys(
        ("fetch_asarray", "fetch_device_get", "fetch_tolist", "fetch_item", "fetch_pickle"),
        (
            "each process can read its own shards only",
            "process_allgather(array, tiled=True)",
        ),
    ),
    "fetch_closure": ("Pass it to the function as an argument",),
    "batch_size": (
        "Process 1 has x as f32[8, 8] as P('data'), and process 0 has f32[16, 8]",
        "the local batch has another size there",
    ),
    "batch_width": ("Process 1 has x as f32[16, 4]", "another size"),
    "batch_dtype": ("Process 1 has x as i32[16, 8]", "another dtype there: convert it"),
    "batch_replicas": (
        "Process 1 holds other values of x[0:8, 0:8] than process 0",
        "must give the same local data",
    ),
    "batch_own_rows": (
        "Process 1 gives other values for x than process 0",
        "jax.make_array_from_process_local_data",
    ),
    "batch_refused": (
        "Process 1 failed in the stage 'program'",
        "x is f32[16, 8] in the program and f32[12, 8] in the values",
    ),
    "differ_mesh": ("Process 1 has the mesh data=2, model=4, and process 0 has data=4, model=2.",),
    "differ_order": (
        "Process 1 has the devices of the mesh in the order",
        "and process 0 has 0, 1, 2, 3,",
    ),
    "differ_spec": ("Process 1 has x as f32[16, 8] as P(None, 'model')", "a spec or rules"),
    "differ_constant": ("the same operations with", "values that the function closes over"),
    "differ_donation": ("Process 1 has the options donate=(0,)",),
    "differ_option": ("Process 1 has the options xla_cpu_enable_fast_math=True",),
    "fails_in_trace": (
        "Process 1 failed in the stage 'trace', so no process goes on",
        "no such file on this machine",
    ),
    "interrupted": ("Process 1 failed in the stage 'trace'", "KeyboardInterrupt"),
    "never_comes": (
        "Process 1 did not reach sv.run('total') within 2 s; process 0 waited for it",
        "SHARDVIZ_WAIT",
    ),
    "comes_late": (),
    "right_again": (),
}
# Those in which the two processes say different things.
OWN_WORDS = ("batch_refused", "fails_in_trace", "interrupted", "never_comes", "comes_late")


@pytest.fixture(scope="module")
def processes():
    return run_cases("tests.spmd.mistakes", 2, list(CASES))


def test_every_mistake_is_tested():
    assert list(WORDS) == list(CASES)


@pytest.mark.parametrize("name", WORDS)
def test_a_mistake_is_named(processes, name):
    here, there = (p.cases[name] for p in processes)
    for words in WORDS[name]:
        assert words in here
    assert (here == there) != (name in OWN_WORDS)
    if not WORDS[name]:
        assert here == ""


def test_who_comes_late_hears_that_the_others_have_gone(processes):
    assert "Process 1 did not reach sv.run('total')" in processes[1].cases["comes_late"]
    assert processes[1].cases["batch_refused"].startswith("program: x is f32[16, 8]")


def test_no_process_hangs_or_crashes(processes):
    assert [p.code for p in processes] == [0, 0]
