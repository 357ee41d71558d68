"""Real compiles for machines that are not there: a pod of 1,024 TPUs, two hosts of GPUs."""

from __future__ import annotations

import time

import pytest

from shardviz.compiled.report import Report
from shardviz.hardware.topology import Topology
from shardviz.runs.backend.targets import missing
from shardviz.runs.backend.worker.run import compile_program
from shardviz.runs.cache import ExecutableCache
from tests.worker.pods import PODS, block


@pytest.mark.parametrize(
    "target", [pytest.param(t, marks=pytest.mark.long if "gpu" in t else ()) for t in PODS]
)
def test_a_transformer_block_compiles_for_a_pod(target, capsys):
    if error := missing(target.partition(":")[0]):
        pytest.skip(str(error))
    stages: list[str] = []
    seen: list[Report] = []
    made, begun = block(PODS[target]), time.perf_counter()
    report = compile_program(
        made, target, cache=ExecutableCache(), progress=stages.append, preview=seen.append
    )
    with capsys.disabled():
        print(f"\n{target}: {time.perf_counter() - begun:.1f} s, compile {report.compile_s} s")
    assert report.error is None, report.error
    assert (report.ok, report.notes) == (True, ())
    assert stages[-1] == "compile"
    chip = Topology.parse(target).chip
    assert report.memory.capacity == chip.device_bytes
    assert 0 < report.memory.arguments < report.memory.capacity
    # The partitioner answered long before the compiler was done.
    assert 0 < report.partition_s < report.compile_s / 2
    assert [len(r.partitioned) for r in seen] == [len(report.partitioned)]
    kinds = {(c.kind, c.mesh_axes) for c in report.partitioned}
    assert ("all-reduce", ("model",)) in kinds
    assert any("data" in axes for _, axes in kinds)
    for one in (*report.partitioned, *report.collectives):
        assert one.mesh_axes, one
        assert "call_exported" not in one.op
    assert {c.phase for c in report.partitioned} == {"forward", "backward"}
    assert all(c.source for c in report.partitioned)
    for name, layout in report.in_layouts.items():
        assert layout.bytes_per_device > 0, name
