"""The worker compiles the very module that plain jit compiles."""

from __future__ import annotations

import pickle
import re
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding

import shardviz as sv
from shardviz.base.mesh import make_mesh
from shardviz.programs.backend.bridge import abstract_mesh
from shardviz.programs.backend.trace import argument_structs
from shardviz.programs.program import Program
from shardviz.runs.backend.runner import Job
from shardviz.runs.backend.targets import choose, device_mesh
from shardviz.runs.backend.worker.child import HereForKernel, sent_program
from shardviz.runs.backend.worker.export import (
    BESIDE,
    ExportedProgram,
    NotExportable,
    ProgramCallbacks,
    export_program,
    module_of,
    trace_for_export,
)
from shardviz.runs.backend.worker.run import run_program
from shardviz.runs.cache import ExecutableCache
from tests.program.helpers import array, program
from tests.stages import random_programs
from tests.worker import test_worker

_RESULT = re.compile(r'jax.result_info = "[^"]*"(?:, )?')  # how the function nests its results
X = array("x", (8, 16, 16), "a, None, b")
Y = array("y", (8, 16, 16), "None, b")


def of_callback(x, y):
    return jax.pure_callback(np.sin, x, x) + y


def of_ordered_callback(x, y):
    io_callback(lambda v: None, None, x.sum(), ordered=True)
    return io_callback(lambda v: v, y, y, ordered=True)


def second_of_two(x, y):
    return jnp.sin(y)


def nothing(x, y):
    return {}


SQUARE = array("x", (16, 16), "a, b")


@custom_partitioning
def doubled(x):
    return x * 2


doubled.def_partition(
    partition=lambda mesh, shapes, result: (
        mesh,
        lambda x: x * 2,
        result.sharding,
        tuple(s.sharding for s in shapes),
    ),
    infer_sharding_from_operands=lambda mesh, shapes, result: shapes[0].sharding,
    sharding_rule="i j -> i j",
)


def of_types(x):
    return {"one": jnp.sin(x) @ jnp.ones((16, 8)), "two": x.sum(0)}


EXPLICIT = make_mesh({"a": 4, "b": 2}, axis_types="Explicit")
MIXED = make_mesh({"a": 4, "b": 2}, axis_types=("Explicit", "Auto"))
ROWS = array("x", (16, 16), "a")
OWN = {
    "an argument that nothing reads": program(second_of_two, X, Y),
    "no results": program(nothing, X, Y),
    "a callback": program(of_callback, X, Y),
    "ordered callbacks": program(of_ordered_callback, X, Y),
    "Explicit axes, several results": program(of_types, ROWS, mesh=EXPLICIT),
    "Explicit and Auto axes": program(of_types, ROWS, mesh=MIXED),
    "results that are arguments": program(lambda x, y: (y, x, y), X, Y, donate=0),
}
SEEDS = (0, 17, 139)


def exported(program: Program, run: bool = False) -> ExportedProgram:
    """A program, sent to another process and read there."""
    traced = trace_for_export(program)
    return pickle.loads(
        pickle.dumps(export_program(program, traced, "cpu", run=run, callbacks=ProgramCallbacks()))
    )


def in_worker(program: Program) -> str:
    """The module that the worker compiles."""
    sent = exported(program)
    mesh = device_mesh(program.mesh, choose(f"cpu:{program.mesh.size}", program.mesh.size))
    job = Job(sent_program(sent, ""), cache=ExecutableCache())
    runner = HereForKernel(job, sent, None, mesh)
    return runner.lower(runner.trace()).text


def under_plain_jit(program: Program) -> str:
    """The module that plain jit compiles."""
    mesh = device_mesh(program.mesh, choose(f"cpu:{program.mesh.size}", program.mesh.size))
    options: dict[str, Any] = {"donate_argnums": tuple(program.options.get("donate", ()))}
    if program.out_specs is not None:
        options["out_shardings"] = NamedSharding(mesh, program.out_specs.to_jax())
    leaves = argument_structs(program, mesh)
    arguments = leaves if program.tree is None else program.tree.unflatten(leaves)
    jitted = jax.jit(program.fn, **options)
    if program.fn is of_types:
        return jitted.lower(*arguments).as_text()
    with jax.set_mesh(mesh):  # which some of them ask for
        return jitted.lower(*arguments).as_text()


def same(program: Program) -> None:
    ours, theirs = (
        _RESULT.sub("", text) for text in (in_worker(program), under_plain_jit(program))
    )
    assert ours == theirs


@pytest.mark.parametrize("name", [*test_worker.PROGRAMS, *OWN])
@pytest.mark.usefixtures("eight_devices")
def test_the_module_is_that_of_plain_jit(name):
    same({**test_worker.PROGRAMS, **OWN}[name])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.usefixtures("eight_devices")
def test_so_is_that_of_random_programs(seed):
    case = random_programs.program(seed)
    same(case.program(case.meshes[0]))


@pytest.mark.parametrize("name", BESIDE)
def test_what_is_not_in_the_module_is_refused(name):
    arguments = {"host_callbacks": [], "keepalive": [], name: [1]}
    lowered = SimpleNamespace(_lowering=SimpleNamespace(compile_args=arguments))
    with pytest.raises(NotExportable, match=f"{re.escape(BESIDE[name])}.*target='attached'"):
        module_of(lowered, make_mesh(a=2))


@pytest.mark.usefixtures("eight_devices")
def test_what_is_partitioned_by_python_runs_here_alone():
    made = program(doubled, SQUARE)
    report = run_program(made, cache=ExecutableCache())
    assert report.error.stage == "lower"
    assert run_program(made, target="attached", cache=ExecutableCache()).ok


def test_types_of_results_are_kept_beside_arguments_that_are_changed():
    nnx = pytest.importorskip("flax.nnx")

    class Scale(nnx.Module):
        def __init__(self, w):
            self.w, self.calls = nnx.Param(w), nnx.Variable(jnp.zeros(()))

        def __call__(self, x):
            self.calls[...] += 1
            return x * self.w[...], x.T

    def typed(axes, *dims):
        sharding = NamedSharding(abstract_mesh(EXPLICIT), jax.P(*dims))
        return jax.ShapeDtypeStruct(axes, "float32", sharding=sharding)

    model = nnx.eval_shape(Scale, typed((16, 8), "a", "b"))
    program = sv.program(
        nnx.jit(lambda m, x: m(x)), model, typed((16, 8), "a", None), mesh=EXPLICIT
    )
    results = re.search(r"@main\(.*\) -> \((.*)\) {", in_worker(program))
    assert results is not None
    found = [
        (part.split(">")[0], *re.findall(r"<@mesh, \[(.*?)\]>", part))
        for part in results[1].split("tensor<")[1:]
    ]
    assert found == [
        ("f32", ""),
        ("16x8xf32", '{"a"}, {"b"}'),
        ("16x8xf32", '{"a"}, {"b"}'),
        ("8x16xf32", '{}, {"a"}'),
    ]
