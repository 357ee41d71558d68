"""Compiling with XLA's dump: what is read, where it goes, and what happens where there is none."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from shardviz.base.array_spec import ArraySpec
from shardviz.base.mesh import make_mesh
from shardviz.compiled.read_collectives import read_collectives
from shardviz.programs.notes import NoDump, NoDumpFolder, OwnDump
from shardviz.programs.program import Program
from shardviz.runs.backend import partitioner
from shardviz.runs.backend.partitioner import (
    ONE_DEVICE,
    compile_with_dump,
    partitioned_module,
)
from shardviz.runs.backend.worker.run import compile_program
from shardviz.runs.cache import ExecutableCache


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch, eight_devices):
    """Temporary folders go where the test can see that they are removed."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(partitioner, "dump_root", lambda: str(tmp_path / "temporary"))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    yield
    assert list((tmp_path / "temporary").iterdir()) == []


def total(x, w):
    return jnp.sum(x @ w)


def lowered(fn=total, size=4):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:size]), ("x",))
    x = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=jax.NamedSharding(mesh, jax.P("x")))
    w = jax.ShapeDtypeStruct((16, 4), jnp.float32, sharding=jax.NamedSharding(mesh, jax.P()))
    return jax.jit(lambda x, w: fn(x, w)).lower(x, w)


def program(mesh="x=4", **options):
    arrays = (ArraySpec("x", (8, 16), spec="x"), ArraySpec("w", (16, 4)))
    return Program(total, arrays, make_mesh(mesh), options=options)


def kinds(dumped):
    return [(c.kind, c.mesh_axes) for c in read_collectives(dumped.partitioned, ("x",), (4,))]


def test_the_partitioners_module_is_read():
    dumped = compile_with_dump(lowered())
    assert dumped.reason is None
    assert kinds(dumped) == [("all-reduce", ("x",))]
    assert 0 <= dumped.partition_s <= dumped.seconds


def test_a_report_holds_what_the_partitioner_put_in():
    report = compile_program(program(), cache=ExecutableCache())
    (found,) = report.partitioned
    assert (found.kind, found.mesh_axes, found.bytes_per_device) == ("all-reduce", ("x",), 4)
    assert found.source.startswith("test_partitioner.py:")
    assert 0 <= report.partition_s <= report.compile_s
    assert report.notes == ()


def test_one_device_has_nothing_to_partition():
    dumped = compile_with_dump(lowered(size=1))
    assert (dumped.partitioned, dumped.reason) == (None, ONE_DEVICE)
    report = compile_program(program("x=1"), cache=ExecutableCache())
    assert (report.partitioned, report.partition_s, report.notes) == ((), None, ())


def test_an_error_of_the_compiler_is_raised_and_the_folder_removed():
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_option"):
        compile_with_dump(lowered(), {"no_such_option": True})


@pytest.fixture
def a_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("this is no folder")
    return str(path / "dump")


def test_a_dump_that_cannot_be_written_is_no_refusal_of_the_program(a_file):
    report = compile_program(program(xla_dump_to=a_file), cache=ExecutableCache())
    assert report.error is None
    (note,) = report.notes
    assert (type(note), note.folder) == (NoDumpFolder, a_file)
    assert report.partitioned is None
    assert report.memory is not None


def test_a_folder_that_is_nearly_full_is_not_used(monkeypatch):
    monkeypatch.setattr(partitioner, "_LEAST_FREE", 2**70)
    dumped = compile_with_dump(lowered())
    assert dumped.compiled is not None
    assert isinstance(dumped.reason, NoDumpFolder)


def test_a_persons_own_folder_is_used_with_the_text_that_they_asked_for(tmp_path):
    mine = tmp_path / "mine"
    dumped = compile_with_dump(lowered(), {"xla_dump_to": str(mine)})
    assert kinds(dumped) == [("all-reduce", ("x",))]
    names = [p.name for p in mine.iterdir() if "before_optimizations" in p.name]
    assert sorted(name.rpartition(".")[2] for name in names) == ["pb", "txt"]
    again = compile_with_dump(lowered(lambda x, w: x @ w), {"xla_dump_to": str(mine)})
    assert kinds(again) == []


def test_a_dump_that_xla_flags_ask_for_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to='{tmp_path / 'mine'}'")
    dumped = compile_with_dump(lowered())
    assert dumped.compiled is not None
    assert dumped.reason == OwnDump()


def test_jaxs_compilation_cache_still_hits_and_is_named(tmp_path):
    names = {
        "jax_compilation_cache_dir": str(tmp_path / "cache"),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in names}
    try:
        for name, value in names.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        first = compile_with_dump(lowered())
        jax.clear_caches()
        entries = sorted(p.name for p in (tmp_path / "cache").glob("*-cache"))
        second = compile_with_dump(lowered())
        assert sorted(p.name for p in (tmp_path / "cache").glob("*-cache")) == entries != []
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    assert first.reason is None
    assert second.reason == NoDump()


def names(module):
    return [instruction.name for instruction in module.instructions()]


def test_the_module_can_be_read_while_the_compile_runs(tmp_path):
    folder = tmp_path / "shared"
    seen = []
    done = threading.Event()

    def poll():
        while not seen and not done.is_set():
            if (module := partitioned_module(folder)) is not None:
                seen.append(module)

    watcher = threading.Thread(target=poll)
    watcher.start()
    dumped = compile_with_dump(lowered(), folder=str(folder))
    done.set()
    watcher.join(30)
    seen.append(partitioned_module(folder))
    assert names(seen[0]) == names(dumped.partitioned)
    assert any(p.suffix == ".pb" for p in folder.iterdir())


@pytest.fixture(scope="module")
def complete(tmp_path_factory, eight_devices):
    """The bytes of a module after partitioning."""
    folder = tmp_path_factory.mktemp("dump")
    compile_with_dump(lowered(), folder=str(folder))
    (path,) = folder.glob("*after_spmd-partitioning*.pb")
    return path.read_bytes()


FILE = "module_{:04}.{}.0002.p.after_spmd-partitioning.before_x.hlo.pb"


@pytest.mark.parametrize("length", [0, 50, -1])
def test_half_a_module_is_no_module(length, tmp_path, complete):
    path = tmp_path / FILE.format(1, "jit_f")
    path.write_bytes(complete)
    assert partitioned_module(tmp_path) is not None
    path.write_bytes(complete[:length])
    assert partitioned_module(tmp_path) is None


FILES = {
    "CPU": "module_0010.jit_f.0002.spmd-partitioner.after_spmd-partitioning.before_control.hlo.pb",
    "GPU": "module_2008.jit_f.0003.spmd-partitioner.after_spmd-partitioning.before_inliner.hlo.pb",
    "TPU": "module_0021.jit_f.cl_933746096.0006.xla-partitioner.after_tpu-spmd-partitioning"
    ".before_tpu-call-inliner.hlo.pb",
}
OTHERS = [
    "module_0021.jit_f.cl_9.0003.xla-partitioner.after_spmd-prepare.before_tpu-spmd-concat.hlo.pb",
    "module_0021.jit_f.cl_9.0005.xla-partitioner.after_dce.before_tpu-spmd-partitioning.hlo.pb",
    "module_0021.jit_f.cl_9.0008.Phase_2.after_simplification-4-spmd.before_algsimp.hlo.pb",
    "module_0010.jit_f.0001.spmd-partitioner.after_shardy-xla.before_spmd-partitioning.hlo.pb",
    "module_9999.jit_f.0002.spmd-partitioner.after_spmd-partitioning.before_control.txt",
]


@pytest.mark.parametrize("platform", FILES)
def test_the_file_of_each_compiler_among_its_others(platform, tmp_path, complete):
    for other in OTHERS:
        (tmp_path / other).write_bytes(b"")
    (tmp_path / FILES[platform]).write_bytes(complete)
    assert partitioned_module(tmp_path) is not None
