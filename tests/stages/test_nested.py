"""Plans of nested functions, and of random programs, held against XLA's propagation."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stages import nested, programs, random_programs
from tests.stages.propagated import CONSTANT, UNREAD, compare

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Case and mesh to what the package said of it, and what XLA had propagated."""
    path = tmp_path_factory.mktemp("nested") / "dumps.pickle"
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.stages.dumps", str(path), "propagated"],
        cwd=ROOT, env={**environment, "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    return pickle.loads(path.read_bytes())


@pytest.mark.parametrize("case", nested.CASES, ids=lambda c: c.name)
def test_every_value_is_split_as_xla_says(case, ended):
    for mesh in case.meshes:
        entry = ended[case.name, mesh]
        assert entry.plan.ok, entry.plan.error
        found = compare(entry)
        assert found.differences == [], mesh
        assert found.compared > 1


@pytest.mark.parametrize("seed", random_programs.TESTED)
def test_every_value_of_a_random_program_is_split_as_xla_says(seed, ended):
    case = random_programs.program(seed)
    entry = ended[case.name, case.meshes[0]]
    assert entry.plan.ok, entry.plan.error
    assert compare(entry).differences == []


def test_there_are_enough_programs():
    cases = (*programs.CASES, *nested.CASES)
    assert len(cases) >= 110
    assert len({case.name for case in cases}) == len(cases)
    assert all(len(case.meshes) > 1 for case in cases)


def test_hardly_a_value_was_left_out(ended):
    found = [compare(entry) for entry in ended.values()]
    compared = sum(f.compared for f in found)
    assert compared > 2500
    assert sum(f.by_shape.total() for f in found) < 0.15 * compared
    assert sum(f.by_shape.total() - f.by_shape[CONSTANT] for f in found) < 0.01 * compared
    assert {kind for f in found for kind in f.ours_only} == {UNREAD, CONSTANT}
    assert sum(len(keys) for f in found for keys in f.ours_only.values()) < 0.05 * compared
    assert sum(len(f.resharded) for f in found) < 0.01 * compared
