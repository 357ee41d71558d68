"""What every test stands on: 8 simulated CPU devices, or an attached GPU if the person asks.

`SHARDVIZ_GPU=1` lets JAX find the GPU and runs the tests marked `gpu`; without it JAX sees the
CPU alone, so that the same tests run everywhere.
"""

from __future__ import annotations

import os

import pytest

GPU_ASKED = os.environ.get("SHARDVIZ_GPU", "") not in ("", "0")
if not GPU_ASKED:
    os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis  # noqa: E402
import jax  # noqa: E402  the platform is chosen when jax is imported

# Works only before the backend starts, and importing jax starts none.
jax.config.update("jax_num_cpu_devices", 8)

# The same examples on every run, and none kept on disk.
hypothesis.settings.register_profile("shardviz", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("shardviz")


@pytest.fixture(scope="session")
def eight_devices() -> list[jax.Device]:
    devices = jax.devices("cpu")
    assert len(devices) >= 8, f"these tests need 8 CPU devices; {len(devices)} were started"
    return devices[:8]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if GPU_ASKED:
        return
    skip = pytest.mark.skip(reason="needs an attached GPU: set SHARDVIZ_GPU=1 where there is one")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
