"""Programs of other libraries: what shardviz says of each equals what jax does, 0 differences."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import pytest

from tests.real_programs.count_collectives import count_collectives
from tests.real_programs.registry import MODULES

ROOT = Path(__file__).parents[2]
# What is compared is settled before LLVM sees it; without its passes compiles are quick.
FLAGS = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    " --xla_llvm_disable_expensive_passes=true"
)


def rows_of(module: str) -> list[dict]:
    """What a process of its own found out about every program of a module."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.real_programs.compare", module],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": FLAGS, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return [json.loads(line[1:]) for line in ended.stdout.split("\n") if line[:1] == "\x1e"]


def names_in(module: str) -> list[str]:
    text = (Path(__file__).parent / f"{module}.py").read_text()
    return re.findall(r"^@PROGRAMS\ndef (\w+)", text, re.M)


@pytest.mark.parametrize("module", MODULES)
def test_plan_compile_and_run_differ_in_nothing_from_jax(module):
    for library in MODULES[module]:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed: pip install shardviz[foreign]")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # jax 0.10 still has it
        outdated = module == "named_axes" and not hasattr(jax.core, "is_constant_dim")
    if outdated:
        pytest.skip("haliax 1.4 needs jax.core.is_constant_dim, which this jax has not")
    rows = rows_of(module)
    for row in rows:
        print(json.dumps(row))
    assert [row["name"] for row in rows] == names_in(module)
    assert {row["name"]: row["differences"] for row in rows if row["differences"]} == {}


def test_there_are_enough_programs():
    assert sum(len(names_in(module)) for module in MODULES) >= 50
    modules = {p.stem for p in Path(__file__).parent.glob("*.py") if names_in(p.stem)}
    assert modules == set(MODULES)


TEXT = """
ENTRY %main {
  %a = f32[8,16]{1,0} parameter(0)
  %all-reduce.1 = (f32[8]{0}, bf16[4,2]{1,0:T(8)}) all-reduce(%b, %c), replica_groups={{0,1}}
  %reduce-scatter = f32[4,16]{1,0} reduce-scatter(%a), dimensions={0}, to_apply=%add
  %ag = (f32[2]{0}, f32[8]{0}) all-gather-start(f32[2]{0} %d), metadata={op_name="all-to-all("}
  %done = f32[8]{0} all-gather-done(%ag)
  %cp = (u8[4]{0}, u8[4]{0}, u32[], u32[]) collective-permute-start(%e)
  ROOT %all-to-all = (s32[1,3]{1,0}, /*index=1*/s32[1,3]{1,0}) all-to-all(%f, %g)
  %fusion = f32[8]{0} fusion(%all-reduce.1), calls=%all-reduce.2
}
"""


def test_the_counter_reads_bytes_of_results_and_of_scattered_operands():
    assert count_collectives(TEXT) == {
        ("all-reduce", 48): 1,
        ("reduce-scatter", 512): 1,
        ("all-gather", 32): 1,
        ("collective-permute", 4): 1,
        ("all-to-all", 24): 1,
    }
