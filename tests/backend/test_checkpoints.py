"""Checkpoints that orbax writes: what is read of their metadata, and what restoring them reads."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shardviz as sv
from tests.structure.isolation import REPO, loaded_by, printed

pytest.importorskip("orbax.checkpoint")
pytest.importorskip("flax")

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import tensorstore as ts
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardviz.move.backend.checkpoints import read_checkpoint
from shardviz.move.restore import process_chunks
from tests.backend.checkpoint_cases import CASES, counted, grid, put, save

# jax warns of random keys, orbax of checkpoints that it restores without shardings.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    """What was predicted and counted for every case and number of devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.backend.checkpoint_cases", tmp_path_factory.mktemp("cases")],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(REPO), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {(row["case"], row["devices"]): row for row in rows}


@pytest.mark.parametrize("devices", [2, 16])
@pytest.mark.parametrize("case", CASES)
def test_predicted_reads_are_those_that_orbax_makes(counts, case, devices):
    row = counts[case, devices]
    seen = row["counted"]
    assert row["reads"] == seen["asked"]
    for path, reads in row["alone"].items():
        assert reads == row["by_array"][path], path
    # Each array's metadata is one read more; a chunk for several shards is fetched once or more.
    fetched = (seen["ocdbt"] if row["ocdbt"] else seen["files"]) - row["arrays"]
    assert row["chunks"] <= fetched <= row["reads"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, eight_devices):
    """Four of the cases and two more, saved by this process."""
    root = tmp_path_factory.mktemp("checkpoints")
    for name in ("dtypes, numbers and keys", "train state", "manager", "zarr, columns", "zarr3"):
        save(CASES[name], root / name.partition(",")[0].replace(" ", "_"))
    tree = {"w": put(grid(4, 2, kind=AxisType.Explicit), (32, 16), ("data", "model"))}
    odd = {"text": "hello", "none": None, "empty": {}, "a/b": [jnp.ones(3)], "x.y": (jnp.ones(2),)}
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(root / "odd", {**tree, **odd})
    return root


@pytest.mark.parametrize("name", ["dtypes", "train_state", "zarr", "zarr3", "odd"])
def test_metadata_is_that_of_orbax(folder, name):
    found = read_checkpoint(folder / name)
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.metadata(folder / name).item_metadata.tree
    theirs = {}
    leaf = lambda v: not isinstance(v, (dict, list, tuple))  # noqa: E731
    for keys, value in jax.tree_util.tree_flatten_with_path(tree, is_leaf=leaf)[0]:
        parts = [str(getattr(k, "key", getattr(k, "idx", ""))) for k in keys]
        if getattr(value, "shape", None) is not None:
            theirs["/".join(parts)] = value
    assert {a.path for a in found.arrays} == set(theirs)
    assert len(theirs) >= 1
    for array in found.arrays:
        other = theirs[array.path]
        assert (array.shape, array.dtype) == (tuple(other.shape), np.dtype(other.dtype).name)
        if other.storage is not None:
            assert array.chunk_shape == tuple(other.storage.chunk_shape)
        sharding = other.sharding
        spec = None if sharding is None else getattr(sharding, "partition_spec", None)
        if spec is None:
            assert array.spec is None
        else:
            assert array.spec.to_jax() == P(*(tuple(e) if isinstance(e, list) else e for e in spec))
            assert array.mesh.axis_sizes == tuple(sharding.shape)
            assert array.mesh.axis_types == tuple(t.name for t in sharding.axis_types)


def test_reading_imports_neither_jax_nor_orbax(folder):
    path = str(folder / "odd")
    code = f"import shardviz as sv\nsv.text(sv.restore({path!r}, mesh='data=4, model=4'))"
    assert loaded_by(code, ["jax", "orbax", "tensorstore", "flax"]) == {"tensorstore"}


def test_target_with_shardings_starts_no_backend(folder):
    code = f"""
import jax, shardviz as sv
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P
sv.restore({str(folder / "odd")!r}, P(), sv.mesh(data=2, processes=2))
from jax._src import xla_bridge
print(bool(xla_bridge._backends))
"""
    assert printed(code).splitlines()[-1] == "False"


def test_each_process_needs_its_chunks_and_no_others(folder, tmp_path):
    """What a process reads of its boxes, in a copy without all chunks that it is not to need."""
    mesh = sv.mesh("data=4, model=2", processes=4)
    plan = sv.restore(folder / "zarr", [("w", ("data", "model"))], mesh)
    (row,) = plan.rows
    pairs = process_chunks(row.layout, row.saved.chunk_shape, plan.process_numbers)
    for process in range(4):
        mine = set(pairs.chunk[pairs.process == process].tolist())
        chunks = int(np.prod(row.saved.chunk_counts))
        assert 0 < len(mine) < chunks
        copy = tmp_path / str(process)
        shutil.copytree(folder / "zarr", copy)
        for number in set(range(chunks)) - mine:
            at = np.unravel_index(number, row.saved.chunk_counts)
            (copy / "w" / ".".join(map(str, at))).unlink()
        before = counted()["asked"]
        _read_boxes(copy, row.layout, range(process * 2, process * 2 + 2))
        assert counted()["asked"] - before == row.reads.reads[process]
        at = np.unravel_index(max(mine), row.saved.chunk_counts)
        (copy / "w" / ".".join(map(str, at))).unlink()
        with pytest.raises(ValueError, match="missing"):
            _read_boxes(copy, row.layout, range(process * 2, process * 2 + 2))


def _read_boxes(folder, layout, devices):
    spec = {"driver": "zarr", "kvstore": f"file://{folder}/w/", "fill_missing_data_reads": False}
    array = ts.open(spec, context=ts.Context()).result()
    for box in {tuple((s.start, s.stop) for s in layout.box(d)) for d in devices}:
        array[tuple(slice(*ends) for ends in box)].read().result()


def test_a_manager_gives_its_last_step_or_the_one_that_is_named(folder):
    last = sv.restore(folder / "manager", P(), "data=2")
    assert (last.checkpoint.step, last.checkpoint.item) == (7, "default")
    assert sv.text(last).startswith("step 7 of manager, default: 6 arrays")
    first = sv.restore(folder / "manager", P(), "data=2", step=1)
    assert first.checkpoint.step == 1
    alone = sv.restore(folder / "manager" / "1", P(), "data=2")
    assert alone.checkpoint.step == 1


def test_it_is_restored_as_saved_by_default(folder):
    here = sv.restore(folder / "odd")
    assert {r.path: str(r.spec) for r in here.rows}["w"] == "P(('data', 'model'))"
    assert here.mesh.axis_types == ("Explicit", "Explicit")
    assert here.notes == ("one process",)
    other = sv.restore(folder / "odd", mesh="data=2, rest=2")
    assert other.problems["w"].code == "layout"


def test_a_tree_of_specs_counts_for_all_below_it(folder):
    mesh = sv.mesh("data=2, model=2")
    found = sv.restore(
        folder / "manager", {"layers": P("data"), "head": {"w": P()}, "no": P()}, mesh
    )
    specs = {r.path: str(r.spec) for r in found.rows}
    assert specs["layers/1/up"] == specs["layers/0/bias"] == "P('data')"
    assert specs["head/w"] == "P()"
    assert found.missing == ("no",)
    assert found.not_wanted == ("count",)
    assert not found.works


def test_shardings_bring_their_mesh(folder):
    mesh = grid(2, 2)
    found = sv.restore(folder / "zarr", {"w": NamedSharding(mesh, P("model"))})
    assert found.mesh == sv.mesh(mesh)
    assert found.processes[0].bytes_needed == 64 * 64 * 4


def _abstract(tree, mesh):
    def one(value):
        spec = P(None, "model") if jnp.ndim(value) == 2 else P()
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(jnp.shape(value), jnp.result_type(value), sharding=sharding)

    return jax.tree.map(one, tree)


def test_a_train_state_is_matched_with_the_boxes_of_flax(folder):
    target = _abstract(CASES["train state"].tree(grid(4, 2)), grid(1, 2))
    found = sv.restore(folder / "train_state", target)
    assert found.works, (found.problems, found.missing, found.not_wanted)
    specs = {r.path: str(r.spec) for r in found.rows}
    assert specs["params/kernel/value"] == "P(None, 'model')"
    assert specs["opt_state/0/mu/kernel/value"] == "P(None, 'model')"
    assert specs["step"] == "P()"


def test_random_keys_are_wanted_as_keys(folder):
    mesh = grid(4, 2)
    tree = CASES["dtypes, numbers and keys"].tree(mesh)
    whole = NamedSharding(mesh, P())

    def one(value):
        sharding = NamedSharding(mesh, P("data")) if jnp.ndim(value) == 1 else whole
        dtype = value.dtype if hasattr(value, "dtype") else "float32"
        return jax.ShapeDtypeStruct(jnp.shape(value), dtype, sharding=sharding)

    found = sv.restore(folder / "dtypes", jax.tree.map(one, tree))
    (row,) = [r for r in found.rows if r.path == "keys"]
    assert row.problem is None
    assert row.layout.shard_shape == (4, 2)
    assert row.reads.reads.tolist() == [4]


BROKEN = {
    "unfinished": lambda f: f.rename(f.with_name("5.orbax-checkpoint-tmp")),
    "never committed": lambda f: _never_committed(f),
    "leaves of another version": lambda f: _rewrite(
        f, "_METADATA", '{"tree_metadata": {"a": {"k": 1}}}'
    ),
    "an array that is gone": lambda f: shutil.rmtree(f / "w"),
    "no tree": lambda f: (f / "_METADATA").unlink(),
    "a file": lambda f: f / "_METADATA",
}


def _rewrite(folder, name, text):
    (folder / name).write_text(text)
    return folder


def _never_committed(folder):
    (folder / "commit_success.txt").unlink(missing_ok=True)
    return _rewrite(folder, "_CHECKPOINT_METADATA", '{"commit_timestamp_nsecs": null}')


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_read_is_one_sentence(folder, tmp_path, name):
    copy = tmp_path / "copy"
    shutil.copytree(folder / "zarr", copy)
    changed = BROKEN[name](copy)
    given = changed if isinstance(changed, Path) else copy
    with pytest.raises(sv.ShardvizError) as info:
        sv.restore(given, P(), "data=2")
    assert "\n" not in str(info.value)


WRONG = {
    "no path": ((3,), {}, "A checkpoint is named by the path of its folder; got 3."),
    "a bucket": (("gs://b/c",), {}, "Checkpoints are read from folders of this machine"),
    "no such step": (("manager",), {"step": 3}, "has no step 3; its steps are 1 and 7."),
    "a step of none": (("zarr",), {"step": 3}, "is one checkpoint and not a manager's folder"),
    "no mesh": (("zarr", P()), {}, "A restore needs a mesh; got none, and no sharding brings one"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_one_sentence(folder, name):
    given, options, words = WRONG[name]
    path = folder / given[0] if given[0] in ("manager", "zarr") else given[0]
    with pytest.raises(sv.ShardvizError) as info:
        sv.restore(path, *given[1:], **options)
    assert words in str(info.value)


def test_rules_without_a_tree_are_refused_and_patterns_decide(folder):
    for rules in ({"a": "tensor"}, [("embed", "data")]):
        with pytest.raises(sv.ShardvizError, match="a checkpoint keeps no logical names"):
            sv.restore(folder / "zarr", mesh="data=2", rules=rules)
    patterns = [(".*", P())]
    expected = sv.restore(folder / "zarr", patterns, "data=2")
    result = sv.restore(folder / "zarr", mesh="data=2", rules=patterns)
    assert [row.spec for row in result.rows] == [row.spec for row in expected.rows]


def test_without_the_file_of_shardings_specs_are_needed(folder, tmp_path):
    shutil.copytree(folder / "zarr", tmp_path / "copy")
    (tmp_path / "copy" / "_sharding").unlink()
    with pytest.raises(sv.ShardvizError, match="does not say how its arrays were split: its file"):
        sv.restore(tmp_path / "copy", mesh="data=2")
    found = sv.restore(tmp_path / "copy", P("data"), "data=2")
    assert found.works
    assert found.rows[0].saved.spec is None
    assert found.notes == ("no shardings",)
    assert "unknown → P('data')" in sv.text(found, width=200)


def test_steps_with_a_prefix_and_leading_zeros_are_found(tmp_path):
    options = ocp.CheckpointManagerOptions(step_prefix="ckpt", step_format_fixed_length=8)
    with ocp.CheckpointManager(tmp_path / "m", options=options) as manager:
        manager.save(12, args=ocp.args.StandardSave({"a": jnp.ones((8, 8))}))
    found = sv.restore(tmp_path / "m", P("data"), "data=2", step=12)
    assert (found.checkpoint.step, found.rows[0].saved.kind) == (12, "one device")


def test_checkpoints_of_orbax_version_1_are_read(tmp_path):
    v1 = pytest.importorskip("orbax.checkpoint.experimental.v1")
    v1.save_pytree(tmp_path / "v1", {"a": jnp.ones((8, 8)), "b": {"c": np.ones(3)}})
    found = sv.restore(tmp_path / "v1", [("a", ("data",)), (".*", ())], "data=2")
    assert found.works
    assert found.checkpoint.step is None
    assert {r.path: r.saved.kind for r in found.rows} == {"a": "one device", "b/c": "numpy"}
