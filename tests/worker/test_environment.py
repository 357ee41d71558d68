"""A worker has an environment of its own: what is set for the kernel does not keep it from work."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from shardviz.programs.backend.worker.settings import Settings

SCRIPT = """
import json
import jax.numpy as jnp
import shardviz as sv

def f(x, w):
    return jnp.sum(jnp.tanh(x @ w), 0)

x, w = sv.array("x", (64, 256), spec="data"), sv.array("w", (256, 128), spec="None, model")
program = sv.program(f, x, w, mesh="data=4, model=2")
report = sv.run(program, target="cpu")
assert report.ok, report.error
found = [(c.kind, c.mesh_axes, c.bytes_per_device) for c in report.partitioned]
print(json.dumps([found, [c.kind for c in sv.lock(program).collectives]]))
"""


def environment_of(tmp_path, name):
    """The variables of each case; a flag after a word that is no flag is not read by XLA either."""
    flags = tmp_path / "flags"
    flags.write_text("--xla_dump_hlo_pass_re=layout --xla_cpu_enable_fast_math=false")
    return {
        "a cache on disk": {
            "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        },
        "settings": {
            "JAX_NUM_CPU_DEVICES": "3",
            "JAX_DISABLE_JIT": "1",
            "JAX_TRANSFER_GUARD": "disallow",
            "XLA_FLAGS": "--xla_cpu_enable_fast_math=false word",
        },
        "a file of flags": {"XLA_FLAGS": str(flags)},
    }[name]


def result(code: str, variables: dict[str, str]) -> tuple[list, list]:
    """What SCRIPT prints in a new process: the collectives of a run, and those of a lock."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found, locked = json.loads(done.stdout.splitlines()[-1])
    return found, locked


EXPECTED = [["all-reduce", ["data"], 256]], ["all-reduce"]


@pytest.mark.parametrize(
    ("name", "times"),
    [pytest.param("a cache on disk", 2, marks=pytest.mark.long), ("settings", 1)],
)
def test_what_is_set_for_the_kernel_changes_nothing_in_the_worker(name, times, tmp_path):
    for _ in range(times):
        assert result(SCRIPT, environment_of(tmp_path, name)) == EXPECTED


def test_a_file_of_flags_and_a_removed_working_folder_change_nothing_in_the_worker(tmp_path):
    removed = str(tmp_path / "removed")
    os.mkdir(removed)
    remove = f"import os; os.chdir({removed!r}); os.rmdir({removed!r})"
    # After its imports: numpy's own may fail in such a folder.
    code = SCRIPT.replace("\ndef f(", f"\n{remove}\ndef f(")
    assert result(code, environment_of(tmp_path, "a file of flags")) == EXPECTED


def test_what_changes_the_program_is_passed_on(tmp_path):
    own = {
        "PATH": "/bin",
        "JAX_ENABLE_X64": "1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_NUM_CPU_DEVICES": "3",
        "JAX_PLATFORMS": "cuda",
        "XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_a='b c' --xla_d=1 word --xla_e=2",
    }
    found = Settings("cpu", 8).environment(own)
    kept = {name: value for name, value in found.items() if own.get(name) == value}
    assert list(kept) == ["PATH", "JAX_ENABLE_X64", "JAX_DISABLE_MOST_OPTIMIZATIONS"]
    assert found["JAX_PLATFORMS"] == "cpu"
    count = "--xla_force_host_platform_device_count=8"
    assert found["XLA_FLAGS"] == f"--xla_a='b c' --xla_d=1 {count}"
