"""A plan never ends the process: what has done so before, in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardviz.plans.backend.build_plan import plan_program
from shardviz.plans.explanation import NotSplitLine, RequestedLine, SplitLine
from tests.propagation.planning import plan, program, spec
from tests.propagation.survival import PROGRAMS, X

ROOT = Path(__file__).parents[2]
HAS_ALIKE = importlib.util.find_spec("jax.experimental.shard_alike") is not None


@pytest.fixture(scope="module")
def survived():
    """Name of a program to what became of its plan."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.propagation.survival"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr[-4000:]
    return dict(line.rsplit(": ", 1) for line in ran.stdout.splitlines() if ": " in line)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_shard_map_anywhere_is_planned(name, survived):
    assert survived[name] == "planned"


def test_what_a_shard_map_takes_says_so(survived, eight_devices):
    made = plan(PROGRAMS["shard_map in a scan"], x=X)
    assert spec(made.op("shard_map")) == "P('data', None)"
    facts = made.why("reshard").facts
    (split,) = (fact for fact in facts if isinstance(fact, SplitLine))
    (not_split,) = (fact for fact in facts if isinstance(fact, NotSplitLine))
    assert (split.axis, split.origin.kind) == ("data", "manual")
    assert (not_split.dim, type(not_split)) == (1, RequestedLine)
    (moved,) = made.collectives
    assert moved.cause.code == "shard_map"
    assert moved.cause.source.startswith("survival.py:")


@pytest.mark.skipif(not HAS_ALIKE, reason="this jax has no shard_alike any more")
def test_values_that_are_split_alike_are_refused(eight_devices):
    from jax.experimental.shard_alike import shard_alike

    error = plan_program(program(lambda x: shard_alike(x, x * 2)[1], x=X)).error
    assert error is not None
    assert "shard_alike" in error.message
