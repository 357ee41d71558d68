"""Mistakes in one of two processes: each is a sentence with its number, and nothing hangs."""

from __future__ import annotations

import pytest

from tests.spmd.mistakes import CASES
from tests.spmd.processes import run_cases

# The field in which process 1 differs, as both processes say.
DIFFERS = {
    "branch_function": "call",
    "branch_kind": "call",
    "branch_same_name": "lowered program",
    "branch_order": "call",
    "branch_repeat": "options",
    "skip_sum": "lowered program",
    "skip_psum": "lowered program",
    "batch_size": "argument x",
    "batch_dtype": "argument x",
    "batch_replicas": "values of x[0:8, 0:8]",
    "batch_own_rows": "values of x",
    "batch_kinds": "values of x",
    "differ_mesh": "mesh",
    "differ_order": "order of devices",
    "differ_spec": "argument x",
    "differ_constant": "lowered program",
    "differ_donation": "options",
    "differ_option": "options",
}
# What process 0 says of those in which the two say different things, or of jax's own errors.
WORDS = {
    "fetch_asarray": ("process_allgather(array, tiled=True)",),
    "fetch_closure": ("process_allgather(array, tiled=True)",),
    "batch_refused": ("Process 1", "'program'", "f32[16, 8]", "f32[12, 8]"),
    "fails_in_trace": ("Process 1", "'trace'", "no such file on this machine"),
    "interrupted": ("Process 1", "'trace'", "KeyboardInterrupt"),
    "never_comes": ("Process 1", "sv.run('total')", "2 s", "process 0", "SHARDVIZ_WAIT"),
}


@pytest.fixture(scope="module")
def processes():
    return run_cases("tests.spmd.mistakes", 2, list(CASES))


def test_every_mistake_is_tested():
    assert {*DIFFERS, *WORDS, "comes_late", "right_again"} == CASES.keys()


@pytest.mark.parametrize("name", DIFFERS)
def test_who_differs_is_named_with_what(processes, name):
    here, there = (p.cases[name] for p in processes)
    assert here == there
    assert f"Process 1 differs from process 0 in the {DIFFERS[name]}:" in here


@pytest.mark.parametrize("name", WORDS)
def test_who_fails_or_is_missing_is_named(processes, name):
    for words in WORDS[name]:
        assert words in processes[0].cases[name]


def test_what_each_says_itself_and_the_lines_that_called(processes):
    here, there = (p.cases for p in processes)
    assert "sv.run('largest') (mistakes.py:" in here["branch_function"]
    assert "sv.run('total') (mistakes.py:" in here["branch_function"]
    assert there["batch_refused"].startswith("program: x is f32[16, 8]")
    assert "Process 1 did not reach sv.run('total')" in there["comes_late"]
    assert (here["comes_late"], here["right_again"], there["right_again"]) == ("", "", "")


def test_no_process_hangs_or_crashes(processes):
    assert [p.code for p in processes] == [0, 0]
