"""sv.audit of trees of other people's libraries: bytes, what is unknown, and the same program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.layout.audit_trees import KINDS

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}


@pytest.fixture(scope="module")
def found() -> dict[str, dict]:
    """Every kind, in one Python of its own: some libraries change settings when imported."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.layout.audit_trees"],
        cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True,
        timeout=500, check=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-2000:]
    return {line.pop("kind"): line for line in lines}


@pytest.mark.parametrize("kind", KINDS)
def test_an_audit_says_what_jax_and_the_library_say(found, kind):
    row = found[kind]
    if "missing" in row:
        pytest.skip(row["missing"])
    assert "error" not in row
    assert row["problems"] == {}
    assert row["each"] == row["each_wanted"]
    assert row["bytes"] == row["wanted"]
    assert row["unknown"] == row["unknown_wanted"]
    assert row["arrays"] > 0
    assert row["said"] == (row["unknown"] > 0), "what is unknown is said to be unknown"


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_reads_the_tree_as_the_audit_does(found, kind):
    row = found[kind]
    if "missing" in row:
        pytest.skip(row["missing"])
    assert row["program"] == ""
    assert row["program_audit"] == ""


@pytest.mark.parametrize("kind", KINDS)
def test_specs_and_pairs_are_those_of_the_library_leaf_by_leaf(found, kind):
    row = found[kind]
    if "missing" in row:
        pytest.skip(row["missing"])
    assert row.get("specs", "{}") == "{}"
    assert row.get("partners", "{}") == "{}"


def test_libraries_of_the_tests_are_tried(found):
    always = [kind for kind, (library, _) in KINDS.items() if library in ("jax", "flax")]
    assert all("missing" not in found[kind] for kind in always)
    assert len(always) >= 8


def test_real_models_are_compared_leaf_by_leaf(found):
    assert sum("specs" in row and "partners" in row for row in found.values()) >= 5
