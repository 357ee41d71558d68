"""The same script in two processes: each runs and checks its own part, and all agree."""

from __future__ import annotations

import pytest

from tests.spmd.processes import run_cases
from tests.spmd.same_script import ORDERS, SHARDS
from tests.spmd.shards import apart, assembled, mistakes

RUNS = (
    "made_up",
    "made_up_interleaved",
    "numpy_values",
    "spread_values",
    "replicated_values",
    "donated_values",
)
SAME = ("layout", "audit", "cached", "values_without_a_run")
OTHERS = ("random_keys", "host_callback", "stages", "own_part_only", "simulated")
PROGRAMS = tuple(f"run-{n}-{order}" for n in (0, 40, 61) for order in ORDERS)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return {count: tmp_path_factory.mktemp(f"shards-{count}") for count in (1, 2)}


@pytest.fixture(scope="module")
def processes(shards):
    cases = [*RUNS, *SAME, *OTHERS, *PROGRAMS]
    return run_cases("tests.spmd.same_script", 2, cases, environment={SHARDS: str(shards[2])})


@pytest.fixture(scope="module")
def one(shards):
    run_cases("tests.spmd.same_script", 1, PROGRAMS, environment={SHARDS: str(shards[1])})
    return shards[1]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_checked_in_each_process(processes, name):
    for rank, ended in enumerate(processes):
        found = ended.cases[name]
        assert found["error"] == ""
        assert found["ok"]
        titles = [title for title, ok, _ in found["checks"] if ok]
        assert f"x: indices of 4 shards in process {rank}" in titles
        # Only where each process has all of the values is there something to compare with.
        spread = name in ("spread_values", "donated_values")
        assert ("output: values" in titles) != spread
        assert ["OwnShards", {"process": rank, "processes": 2}] in found["notes"]
        assert found["target"] == "CPU × 8, attached"
        assert found["processes"] == [0, 1]


@pytest.mark.parametrize("name", SAME)
def test_all_processes_find_the_same(processes, name):
    first, second = (p.cases[name] for p in processes)
    assert first == second
    assert first


def test_values_of_a_layout_over_processes(processes):
    assert "│ 2048 · 2049 │" in processes[1].cases["layout"]
    assert processes[0].cases["cached"] == [False, True]


def test_donated_arrays_are_the_runs_own(processes):
    for ended in processes:
        assert not ended.cases["donated_values"]["deleted"]
        assert ended.cases["donated_values"]["unchanged"]


def test_further_ways_to_run(processes):
    for ended in processes:
        assert all(found["ok"] for found in ended.cases["random_keys"])
        for name in ("host_callback", "stages", "simulated"):
            assert ended.cases[name]["ok"], name


def test_a_process_without_devices_says_so(processes):
    first, second = (p.cases["own_part_only"] for p in processes)
    assert first["ok"]
    assert second["error"].startswith("target: Process 1 ")


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_those_of_one_process(processes, one, shards, name):
    assert mistakes(processes, name) == []
    _, number, order = name.split("-")
    found, reference = (assembled(folder, f"{number} {order}") for folder in (shards[2], one))
    assert apart(found, reference) < 1e-5


def test_nothing_is_printed_and_no_process_crashes(processes):
    for ended in processes:
        assert ended.code == 0
        assert not [line for line in ended.log.splitlines() if line.startswith("shardviz")]
