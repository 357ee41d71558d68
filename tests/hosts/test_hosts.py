"""Programs on two processes: values, boxes, and what the report says of each."""

from __future__ import annotations

import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardviz as sv
from shardviz.base.errors import MeshError
from shardviz.compiled.checks import IdleProcesses, OutputsStay
from shardviz.compiled.measured import NotMeasured
from shardviz.runs.backend.hosts import run
from tests.docs.pages import says, spelled
from tests.hosts.programs import AXES, CASES, QUICK, orders, wrong

BY_NAME = {case.name: case for case in CASES}
X = sv.array("x", (16, 8), spec="data, model")


def on_engine(hosts, rank: int, code: str) -> None:
    """Executes code in the Python of an engine, as a person may."""
    hosts._engines.client[hosts._engines.ids[rank]].execute(code, block=True)


def total(x):
    return x.sum(), x * 2


def test_each_process_has_its_own_devices(two):
    assert two.name == "2 hosts x 4, local"
    assert [p.rank for p in two.processes] == [0, 1]
    assert len({p.pid for p in two.processes} | {os.getpid()}) == 3
    assert two.devices == 8
    assert two.device_ids[:4] == (0, 1, 2, 3)
    assert min(two.device_ids[4:]) >= 2048  # ids are names
    mesh = two.mesh(data=4, model=2)
    assert mesh.device_ids.ravel().tolist() == list(two.device_ids)
    assert mesh.process_indices.ravel().tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize("order", ["in order", "interleaved"])
@pytest.mark.parametrize("name", QUICK)
def test_values_and_boxes_are_right_on_every_process(two, name, order):
    case = BY_NAME[name]
    values = case.values()
    report = sv.run(case.program(orders(two.device_ids)[order]), *values, target=two)
    assert wrong(case, report, values) == []
    assert [p.rank for p in report.processes] == [0, 1]


def test_several_processes_run_without_a_profile(two):
    program = sv.program(total, X, mesh=two.mesh(data=4, model=2))
    report = sv.run(program, target=two, measure=True)
    assert (report.ok, report.measured) == (True, None)
    assert NotMeasured("hosts") in report.notes


TOO_FEW_ROWS = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
rows = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
try:
    jax.make_array_from_process_local_data(rows, np.ones((8, 512)), (64, 512))
except ValueError as error:
    said = str(error)
"""


def test_the_message_of_a_loader_with_too_few_rows_is_that_on_the_page(two):
    on_engine(two, 0, TOO_FEW_ROWS)
    said = two.client[0].pull("said", block=True)
    shown = spelled("howto/loader-rows.md").removeprefix("ValueError: ")
    # The page has a process of a mesh of its own, with other numbers.
    says(re.sub(r"\d+ elements", "... elements", shown), said)


def test_a_mesh_on_one_process_leaves_the_other_alone(two):
    report = sv.run(sv.program(total, X, mesh="data=2, model=2"), target=two)
    assert report.ok, report.error
    assert [p.rank for p in report.processes] == [0]
    (note,) = report.notes
    assert note == IdleProcesses(devices=4, processes=(1,))


def test_the_report_says_what_each_process_did(two):
    report = sv.run(sv.program(total, X, mesh=two.mesh(AXES)), target=two)
    for rank, process in enumerate(report.processes):
        assert process.pid == two.processes[rank].pid
        assert process.device_ids == two.processes[rank].device_ids
        assert {"place", "run", "check"} <= set(process.seconds)
        assert process.memory > 1 << 20
        assert process.ok
    assert report.run_s == max(p.seconds["run"] for p in report.processes)
    assert sv.text(report)
    assert sv.plot(report) is not None


def test_it_is_compiled_once_and_run_again_by_values_alone(two):
    program = sv.program(lambda x: x * 7, X, mesh=two.mesh(AXES), name="seven")
    first, second = (sv.run(program, target=two) for _ in range(2))
    assert (first.cache_hit, second.cache_hit) == (False, True)
    assert second.compile_s == 0.0
    assert np.array_equal(first.outputs, second.outputs)
    assert second.key == first.key != ""


def test_a_compile_runs_nothing(two):
    report = sv.compile(sv.program(total, X, mesh=two.mesh(AXES)), target=two)
    assert report.ok, report.error
    assert report.outputs is None
    assert report.run_s is None
    assert {c.kind for c in report.collectives} == {"all-reduce"}
    assert report.partitioned


def test_text_chooses_running_processes(two):
    report = sv.run(sv.program(total, X, mesh=AXES), target="2 hosts x 4, local")
    assert [p.pid for p in report.processes] == [p.pid for p in two.processes]
    assert "2 hosts x 4, local" in [t.name for t in sv.targets()]
    assert "2 hosts x 4, local" in sv.text(sv.targets())


LOUD = """
import os, warnings
from shardviz.runs.backend.hosts import engine
own = engine.HereForKernel.run
def loud(self, *arguments):
    print("from Python")
    os.write(2, b"from C\\n[Gloo] Rank 1 is connected to 1 peer ranks. Expected\\n")
    warnings.warn("careful")
    return own(self, *arguments)
engine.HereForKernel.run = loud
"""
QUIET = "engine.HereForKernel.run = own"


def test_what_an_engine_prints_is_in_the_report_by_its_rank(two):
    on_engine(two, 1, LOUD)
    try:
        report = sv.run(sv.program(total, X, mesh=two.mesh(AXES)), target=two)
    finally:
        on_engine(two, 1, QUIET)
    assert report.ok
    assert [p.output for p in report.processes] == ["", "from Python\nfrom C"]
    assert [p.warnings for p in report.processes] == [(), ("UserWarning: careful",)]


def test_large_results_stay_there(two, monkeypatch):
    monkeypatch.setattr(run, "MOST_GATHERED", 100)
    values = np.arange(128, dtype=np.float32).reshape(16, 8)
    report = sv.run(sv.program(lambda x: x + 1, X, mesh=two.mesh(AXES)), values, target=two)
    assert report.ok, report.error
    assert report.outputs == jax.ShapeDtypeStruct((16, 8), jnp.float32)
    assert [type(note) for note in report.notes] == [OutputsStay]


def test_random_keys_go_there_and_come_back(two):
    keys = jax.random.split(jax.random.key(7), 8)
    program = sv.program(
        lambda k: (jax.vmap(jax.random.uniform)(k), k),
        sv.array("k", (8,), spec="data", dtype="key<fry>"),
        mesh=two.mesh(AXES),
    )
    report = sv.run(program, keys, target=two)
    assert report.error is None, report.error
    drawn, back = report.outputs
    assert np.allclose(drawn, jax.vmap(jax.random.uniform)(keys))
    assert np.array_equal(jax.random.key_data(back), jax.random.key_data(keys))


@pytest.mark.parametrize(
    ("make", "stage"),
    [(lambda x: jax.pure_callback(np.sin, x, x), "lower"), (lambda x: x @ x, "trace")],
)
def test_what_cannot_run_there_is_an_error_and_hurts_nobody(two, make, stage):
    report = sv.run(sv.program(make, X, mesh=two.mesh(AXES)), target=two)
    assert report.error.stage == stage
    assert sv.run(sv.program(total, X, mesh=two.mesh(AXES)), target=two).ok


def test_a_mesh_that_is_too_large_hears_how_to_start_more(two):
    with pytest.raises(MeshError, match=r"sv\.hosts\(2, devices=8\)"):
        two.mesh(data=16)
    report = sv.run(sv.program(total, X, mesh="data=8, model=2"), target=two)
    assert "sv.hosts(2, devices=8)" in report.error.message


def test_programs_that_differ_are_refused_before_they_run(two):
    on_engine(two, 1, "import os; kept = os.environ.get('XLA_FLAGS', '')")
    on_engine(two, 1, "os.environ['XLA_FLAGS'] = '--xla_cpu_enable_fast_math=true'")
    try:
        program = sv.program(lambda x: jnp.sin(x), X, mesh=two.mesh(AXES), name="differs")
        report = sv.run(program, target=two)
    finally:
        on_engine(two, 1, "os.environ['XLA_FLAGS'] = kept")
    assert report.error.message.startswith("Process 1 compiled a different program than process 0")
    assert "Nothing ran." in report.error.message
    assert not report.has("run_s")
