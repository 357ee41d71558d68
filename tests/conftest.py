"""Settings of all tests: 8 simulated CPU devices, and an attached GPU if requested.

`SHARDVIZ_GPU=1` lets jax find the GPU and runs the tests marked `gpu`. Without it jax sees only
the CPU, so the same tests run everywhere.
"""

from __future__ import annotations

import gc
import os
from importlib.metadata import version
from pathlib import Path

import pytest

GPU_ASKED = os.environ.get("SHARDVIZ_GPU", "") not in ("", "0")
if not GPU_ASKED:
    os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("MPLBACKEND", "Agg")

# Tests check the placement and the values of arrays, not the speed of machine code. Without LLVM's
# optimisations, compiles here, in workers, kernels and scripts take a fifth of the time. XLA's own
# passes are unchanged. LLVM compiles a module in one part, since each of 32 parts costs extra.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
QUICK_FLAGS: dict[str, object] = {}  # a flag that jaxlib does not know would end the process
if version("jaxlib").startswith(("0.10.", "0.11.", "0.12.")):
    QUICK_FLAGS["xla_cpu_parallel_codegen_split_count"] = 1
if version("jaxlib").startswith("0.10."):  # later versions have only one kind of emitters
    QUICK_FLAGS["xla_cpu_use_fusion_emitters"] = "false"
flags = os.environ.get("XLA_FLAGS", "")
added = [f"--{name}={value}" for name, value in QUICK_FLAGS.items() if name not in flags]
os.environ["XLA_FLAGS"] = " ".join([flags, *added]).strip()

# A process holds a million objects of jax and pytest until it ends. The garbage collector need not
# visit them after every 700 new objects.
gc.set_threshold(20_000, 20, 50)

import hypothesis  # noqa: E402
import jax  # noqa: E402  the platform is chosen when jax is imported

# This works only before the backend starts, which importing jax does not do.
jax.config.update("jax_num_cpu_devices", 8)

# The same examples on every run, without a database on disk.
hypothesis.settings.register_profile("shardviz", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("shardviz")


@pytest.fixture(scope="session")
def eight_devices() -> list[jax.Device]:
    devices = jax.devices("cpu")
    assert len(devices) >= 8, f"these tests need 8 CPU devices; {len(devices)} were started"
    return devices[:8]


# Approximate seconds of each group of tests, since the longest groups start first. Groups that are
# not listed are shorter.
SECONDS = {
    "tests/browser/": 200,
    "tests/stages/": 115,
    "notebooks/10_will_it_fit.ipynb": 70,
    "notebooks/17_how_far.ipynb": 25,
    "notebooks/18_overlap.ipynb": 30,
    "notebooks/13_one_block_four_tables.ipynb": 50,
    "tests/worker/test_forks.py": 65,
    "tests/worker/test_faults.py": 35,
    "tests/effects/test_prediction.py": 32,
    "tests/sharded_jit/test_random.py": 31,
    "tests/worker/test_worker.py": 30,
    "tests/program/test_rounding.py": 30,
    "tests/docs/test_docs.py": 40,
    "tests/exercises/": 40,
    "tests/layout/test_layout_equals_jax.py": 28,
    "tests/worker/test_exits.py": 25,
    "tests/plots/test_figures.py": 25,
    "tests/structure/test_light_import.py": 24,
    "tests/program/test_targets.py": 20,
    "tests/program/test_ways_to_call.py": 20,
    "tests/layout/test_rules_equal_flax.py": 19,
    "tests/widgets/test_jax_code.py": 19,
    "tests/layout/test_sharding_spec.py": 18,
    "tests/gallery/test_programs.py": 17,
    "notebooks/a1_compile_for_a_pod.ipynb": 40,
    "notebooks/": 15,
    "tests/layout/test_audit_trees.py": 15,
    "tests/plots/": 10,
    "tests/worker/": 10,
    "tests/program/": 5,
    "tests/": 3,
}
# The tests of these folders run in one process, since they share an expensive fixture: a browser
# and a JupyterLab, or XLA's dumps of 291 programs. Elsewhere each file is a group.
TOGETHER = ("tests/browser/", "tests/stages/")
# Each of these tests starts a new process, so it is a group.
APART = "tests/real_programs/"
# These modules import packages that need not be installed, and change their settings.
collect_ignore_glob = ["real_programs/[!t]*.py"]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """The number of processes for `-n auto`: one more than there are cores.

    The additional one is used while others wait for a browser or a worker. On one core all tests
    run in this process.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return cores + 1 if cores > 1 else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """With `-n`, each process runs one group of tests at a time, the longest groups first."""
    from xdist.scheduler import LoadScopeScheduling

    def seconds(scope: str) -> float:
        return next((s for start, s in SECONDS.items() if scope.startswith(start)), 1)

    class LongestFirst(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if file.startswith(APART):
                return nodeid
            return next((group for group in TOGETHER if file.startswith(group)), file)

        def _assign_work_unit(self, node) -> None:
            self.workqueue.move_to_end(max(self.workqueue, key=seconds), last=False)
            super()._assign_work_unit(node)

    return LongestFirst(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path):
    """Skips doctests of files without examples, to avoid importing half of all files."""
    nodes = yield
    if file_path.suffix != ".py" or ">>>" in file_path.read_text(encoding="utf-8"):
        return nodes
    return [node for node in nodes if type(node).__name__ != "DoctestModule"]


def pytest_collection_finish() -> None:
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if GPU_ASKED:
        return
    skip = pytest.mark.skip(reason="needs an attached GPU: set SHARDVIZ_GPU=1 where there is one")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
