"""Everything compiled once, for all tests of the stages."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.stages.dumps import Entry

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def dumped(tmp_path_factory) -> Mapping[tuple[str, str], Entry]:
    """Case and mesh to what the package said of it, and what XLA wrote down."""
    path = tmp_path_factory.mktemp("stages") / "dumps.pickle"
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.stages.dumps", str(path)],
        cwd=ROOT, env={**environment, "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    return pickle.loads(path.read_bytes())
