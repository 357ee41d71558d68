"""sv.report of the files that people attach to bug reports."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pytest
from jax.sharding import AxisType, Mesh

import shardviz as sv
from shardviz.compiled.report import Report
from shardviz.programs.backend.worker.process import workers
from shardviz.programs.notes import FileOfStages
from shardviz.runs.backend import read_files
from tests.program.programs_jax_compiled import CASES, arrays_of, end_this_process, facts, moved

NAMES = ("donated", "remat", "combined", "ring", "by hand")
MESH = "data=4, model=2"


class Files(NamedTuple):
    """One program, as jax has it and as files."""

    lowered: Any
    compiled: Any
    text: Path  # XLA's default dump
    proto: Path


@pytest.fixture(scope="module")
def dumped(eight_devices: list[Any], tmp_path_factory: Any) -> Mapping[str, Files]:
    types = (AxisType.Auto,) * 2
    mesh: Mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=types, devices=eight_devices)
    files = {}
    for name in NAMES:
        case = CASES[name]
        with jax.set_mesh(mesh):
            lowered = jax.jit(case.function, donate_argnums=case.donate).lower(
                *arrays_of(case, mesh)
            )
        text, proto = tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("proto")
        compiled = lowered.compile(compiler_options={"xla_dump_to": str(text)})
        options = {"xla_dump_hlo_as_proto": True, "xla_dump_hlo_pass_re": "spmd"}
        lowered.compile(compiler_options={"xla_dump_to": str(proto), **options})
        files[name] = Files(lowered, compiled, text, proto)
    return files


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def stages(report: Report) -> tuple[str, ...]:
    (note,) = [note for note in report.notes if isinstance(note, FileOfStages)]
    return note.stages


@pytest.mark.parametrize("form", ["text", "proto"])
@pytest.mark.parametrize("name", NAMES)
def test_a_dump_has_what_the_compiled_has(name: str, form: str, dumped: Mapping[str, Files]):
    files = dumped[name]
    folder = files.text if form == "text" else files.proto
    read, of_jax = sv.report(folder), sv.report(files.compiled)
    assert facts(read)["collectives"] == facts(of_jax)["collectives"]
    assert facts(read)["sources"] == facts(of_jax)["sources"]
    assert read.mesh is not None
    assert (read.mesh.shape, read.loops) == ({"data": 4, "model": 2}, of_jax.loops)
    assert read.memory.arguments == of_jax.memory.arguments
    assert read.memory.outputs == of_jax.memory.outputs
    assert read.memory.temporaries == of_jax.memory.temporaries
    assert read.memory.aliased == of_jax.memory.aliased
    assert (read.partitioned is None, read.memory.peak is None) == (form == "text",) * 2
    assert stages(read) == ("compiled",) if form == "text" else ("partitioned", "compiled")


@pytest.mark.parametrize("name", NAMES)
def test_a_final_module_needs_its_mesh_named(name: str, dumped: Mapping[str, Files]):
    files = dumped[name]
    of_jax = sv.report(files.compiled)
    assert of_jax.collectives is not None
    things = [
        only(files.text, "*cpu_after_optimizations.txt"),
        str(only(files.proto, "*cpu_after_optimizations.hlo.pb")),
        files.compiled.as_text(),
    ]
    for thing in things:
        unnamed, named = sv.report(thing), sv.report(thing, mesh=MESH)
        assert unnamed.collectives is not None
        assert named.collectives is not None
        assert list(map(moved, named.collectives)) == list(map(moved, of_jax.collectives))
        assert [c.bytes_in_all for c in unnamed.collectives] == [
            c.bytes_in_all for c in of_jax.collectives
        ]
        assert unnamed.mesh is not None
        assert unnamed.mesh.shape == {"device": 8}
        assert unnamed.program == of_jax.program
        assert sv.text(named)
        with pytest.raises(sv.ShardvizError, match="devices"):
            sv.report(thing, mesh="data=16")


@pytest.mark.parametrize("name", NAMES)
def test_the_module_after_the_partitioner(name: str, dumped: Mapping[str, Files]):
    report = sv.report(only(dumped[name].proto, "*after_spmd-part*.pb"), mesh=MESH)
    of_folder = sv.report(dumped[name].proto)
    assert stages(report) == ("partitioned",)
    assert report.collectives is None
    assert report.partitioned is not None
    assert report.partitioned == of_folder.partitioned
    assert "not compiled" in repr(report)
    assert report.partitioned[0].kind in sv.text(report)
    sv.plot(report)


@pytest.mark.parametrize("name", NAMES)
def test_before_the_partitioner_no_collectives_are_claimed(name: str, dumped: Mapping[str, Files]):
    files = dumped[name]
    things = [
        only(files.text, "*before_optimizations.txt"),
        only(files.proto, "*before_optimizations.hlo.pb"),
        files.lowered.as_text("hlo"),
    ]
    for thing in things:
        report = sv.report(thing)
        assert (report.collectives, report.partitioned) == (None, None)
        assert stages(report) == ()


@pytest.mark.parametrize("name", NAMES)
def test_stablehlo_has_the_plan_of_the_lowered(
    name: str, dumped: Mapping[str, Files], tmp_path: Path
):
    lowered = dumped[name].lowered
    planned, module = sv.plan(lowered), lowered.compiler_ir("stablehlo")
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    texts = {
        "plain.mlir": lowered.as_text().encode(),
        "lines.mlir": lowered.as_text(debug_info=True).encode(),
        "module.mlirbc": bytecode.getvalue(),
    }
    for file, data in texts.items():
        path = tmp_path / file
        path.write_bytes(data)
        report = sv.report(path)
        assert report.plan is not None
        assert report.plan.mesh == planned.mesh
        assert [(o.shape, o.spec) for o in report.plan.ops] == [
            (o.shape, o.spec) for o in planned.ops
        ]
        estimated = [(c.kind, c.mesh_axes, c.bytes_per_device) for c in planned.collectives]
        assert estimated == [
            (c.kind, c.mesh_axes, c.bytes_per_device) for c in report.plan.collectives
        ]
        if file != "plain.mlir":
            assert [o.name for o in report.plan.ops] == [o.name for o in planned.ops]
        assert stages(report) == ("requested", "propagated")
        sv.plot(report)


def test_of_several_programs_the_largest_is_read(dumped: Mapping[str, Files], tmp_path: Path):
    for name in ("ring", "remat"):
        for path in dumped[name].text.glob("*optimizations*.txt"):
            number = f"module_{NAMES.index(name):04}."
            (tmp_path / (number + path.name.partition(".")[2])).write_bytes(path.read_bytes())
    report = sv.report(tmp_path)
    assert report.program == "_deep"
    (note,) = [note for note in report.notes if isinstance(note, FileOfStages)]
    assert note.programs == 2


HAND = b"""HloModule hand
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY e {
  p = f32[8] parameter(0)
  ROOT r = f32[8] all-reduce(p), replica_groups={{0,1},{2,3}}, to_apply=add
}
"""
PMAP = HAND.replace(b"HloModule hand", b"HloModule pmap, replica_count=4").replace(
    b"{{0,1},{2,3}}", b"{}"
)
INLINE = b"""func.func @main(%a: tensor<8xf32>
  {sdy.sharding = #sdy.sharding<mesh<["x"=2]>, [{"x"}]>}) -> tensor<8xf32> {
  %0 = stablehlo.add %a, %a : tensor<8xf32>
  return %0 : tensor<8xf32>
}"""


@pytest.mark.parametrize(
    "data",
    [
        HAND,
        b"\xef\xbb\xbf" + HAND,
        HAND.replace(b"\n", b"\r\n"),
        b"I1127 service.cc:177] compiling\n" + HAND,
        HAND.partition(b"\n")[2],
    ],
    ids=["plain", "byte order mark", "crlf", "after a log", "without a header"],
)
def test_text_that_was_written_by_hand(data: bytes, tmp_path: Path):
    path = tmp_path / "hlo.txt"
    path.write_bytes(data)
    report = sv.report(path, mesh="x=2, y=2")
    assert report.partitioned is not None
    (collective,) = report.partitioned
    assert collective.mesh_axes == ("y",)


def test_shardings_of_a_module_before_the_partitioner_are_seen(tmp_path: Path):
    path = tmp_path / "hlo.txt"
    path.write_text(
        "HloModule old\nENTRY e { p = f32[2] parameter(0), sharding={devices=[2]0,1}"
        " ROOT n = f32[2] negate(p), sharding={replicated} }"
    )
    report = sv.report(path)
    assert (report.partitioned, report.collectives) == (None, None)
    assert stages(report) == ()


def test_devices_without_a_mesh_are_counted(tmp_path: Path):
    path = tmp_path / "pmap.mlir"
    path.write_bytes(
        b"module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 4 : i32} {"
        b"func.func @main(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> } }"
        b" // stablehlo."
    )
    report = sv.report(path)
    assert report.program == "f"
    assert report.mesh is not None
    assert report.mesh.shape == {"device": 4}


def test_replicas_of_pmap_are_devices(tmp_path: Path):
    path = tmp_path / "hlo.txt"
    path.write_bytes(PMAP)
    report = sv.report(path)
    assert report.partitioned is not None
    assert [(c.mesh_axes, c.group_size) for c in report.partitioned] == [(("device",), 4)]


@pytest.mark.parametrize("function", [b"@main", b"@model"])
def test_a_mesh_inside_the_shardings_is_found(function: bytes, tmp_path: Path):
    path = tmp_path / "inline.mlir"
    path.write_bytes(INLINE.replace(b"@main", function))
    report = sv.report(path)
    assert report.mesh is not None
    assert report.mesh.shape == {"x": 2}
    assert report.in_layouts["argument[0]"].shard_shape == (4,)


def junk(dumped: Mapping[str, Files]) -> dict[str, bytes]:
    files = dumped["remat"]
    proto = only(files.proto, "*cpu_after_optimizations.hlo.pb").read_bytes()
    text = files.compiled.as_text().encode()
    stablehlo = files.lowered.as_text().encode()
    damaged = bytearray(proto)
    for at in range(0, len(damaged), 97):
        damaged[at] ^= 255
    return {
        "empty.txt": b"",
        "prose.txt": b"It is slow.\n",
        "code.py": b"import os; os.abort()\n",
        "half.txt": text[: len(text) // 2],
        "twice.txt": text + text,
        "half.pb": proto[: len(proto) // 2],
        "damaged.pb": bytes(damaged),
        "half.mlir": stablehlo[: len(stablehlo) // 2],
        "half.mlirbc": b"ML\xefR\rMLIR",
        "no_main.mlir": INLINE.replace(b"@main", b"@f") + INLINE.replace(b"@main", b"@g"),
        "gspmd.mlir": INLINE.replace(
            b'sdy.sharding = #sdy.sharding<mesh<["x"=2]>, [{"x"}]>',
            b'mhlo.sharding = "{devices=[2]<=[2]}"',
        ),
        "old.mlir": b"func.func @main() { %0 = mhlo.nothing : tensor<f32> }",
        "archive.zip": b"PK\x03\x04" + bytes(64),
        "archive.gz": b"\x1f\x8b\x08" + bytes(64),
        "picture.png": b"\x89PNG\r\n\x1a\n" + bytes(64),
        "code.pkl": pickle.dumps(os.getcwd),
    }


def test_what_is_no_module_is_refused(dumped: Mapping[str, Files], tmp_path: Path):
    for name, data in junk(dumped).items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(sv.ShardvizError, match=r"\w"):
            sv.report(path)
    os.mkfifo(tmp_path / "pipe")
    for thing in (tmp_path / "none", tmp_path / "pipe", "/dev/zero", tmp_path, "a\0b", "x" * 5000):
        with pytest.raises(sv.ShardvizError, match=r"\w"):
            sv.report(thing)
    with pytest.raises(sv.ShardvizError, match="mesh"):
        sv.report(dumped["ring"].compiled, mesh=MESH)  # pyright: ignore


def test_a_file_that_is_too_large_is_not_read(monkeypatch: Any, tmp_path: Path):
    path = tmp_path / "large.txt"
    path.write_bytes(HAND)
    monkeypatch.setattr(read_files, "MOST", len(HAND) - 1)
    with pytest.raises(sv.ShardvizError, match="more than"):
        sv.report(path)


def test_a_parser_that_ends_its_process_spares_this_one(monkeypatch: Any, tmp_path: Path):
    path = tmp_path / "hlo.txt"
    path.write_bytes(HAND)
    call = workers.call

    def ends(settings: Any, function: Any, *arguments: Any) -> Any:
        return call(settings, end_this_process, *arguments)

    monkeypatch.setattr(workers, "call", ends)
    with pytest.raises(sv.ShardvizError, match="ends the process"):
        sv.report(path)
