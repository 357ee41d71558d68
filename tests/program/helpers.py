"""What the tests of programs share: meshes, programs and runs in few words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from shardviz.axis_rules.dialects import Dialect
from shardviz.base.array_spec import ArraySpec
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.compiled.report import Report
from shardviz.programs.backend.build_program import build_program
from shardviz.programs.notes import Note
from shardviz.programs.program import Program
from shardviz.runs.backend.worker.run import run_program
from shardviz.runs.cache import ExecutableCache

MESH = make_mesh(a=4, b=2)


def array(name: str, shape: Any, spec: str | None = None, dtype: str = "float32") -> ArraySpec:
    return ArraySpec(name, shape, None, dtype, None if spec is None else Spec.parse(spec))


def program(
    fn: Callable[..., Any],
    *arrays: Any,
    mesh: MeshSpec = MESH,
    out_specs: Any = None,
    donate: Any = (),
    **options: Any,
) -> Program:
    made = build_program(fn, arrays, mesh, None, Dialect.LINEN, None, out_specs, donate, "")
    return made.replace(options={**made.options, **options}) if options else made


def run(made: Program, *values: Any, **options: Any) -> Report:
    options.setdefault("cache", ExecutableCache())
    return run_program(made, *values, **options)


def run_here(made: Program, *values: Any, **options: Any) -> Report:
    """As `run`, on the devices of this process and not in a worker."""
    return run(made, *values, target="attached", **options)


def checks(report: Report) -> dict[str, bool | None]:
    return {c.name: c.ok for c in report.checks}


def detail(report: Report, name: str) -> str:
    return next(c.detail for c in report.checks if c.name == name)


def in_new_python(code: str, **environment: str) -> str:
    """What a fresh Python prints that runs `code` on the CPU, with nothing started before."""
    clean = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**clean, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


_FORKS = """
import json, os, sys
import jax, jax.numpy, shardviz.runs.backend.targets
found = {}
for name, code in json.load(sys.stdin).items():
    read, write = os.pipe()
    if not (pid := os.fork()):
        os.dup2(write, 1)
        os.dup2(write, 2)
        exec(code, {})
        sys.stdout.flush()
        os._exit(0)
    os.close(write)
    with open(read) as said:
        text = said.read()
    found[name] = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text.strip()]
json.dump(found, sys.stdout)
"""


def each_in_new_jax(codes: Mapping[str, str]) -> dict[str, tuple[int, str]]:
    """The exit code and what is printed of each: in a fork of a Python that has imported jax.

    Nothing of jax has been started there. To import it takes ten times as long as most codes.
    """
    clean = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    done = subprocess.run(
        [sys.executable, "-c", _FORKS],
        input=json.dumps({name: textwrap.dedent(code) for name, code in codes.items()}),
        env={**clean, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return {name: (status, text) for name, (status, text) in json.loads(done.stdout).items()}


def sentences(*notes: Note) -> tuple[str, ...]:
    """The words of these notes."""
    return tuple(map(str, notes))
