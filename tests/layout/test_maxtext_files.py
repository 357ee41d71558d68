"""MaxText's files: the mesh of a configuration, and the records of its shardings."""

from __future__ import annotations

import json
from typing import Any

import jax
import pytest

import shardviz as sv

CONFIG = """
# Parallelism
mesh_axes: ['data', 'stage', 'fsdp', 'tensor', 'expert']
logical_axis_rules: [['embed', ['fsdp']], ['mlp', ['tensor']]]
dcn_data_parallelism: {dcn}
dcn_fsdp_parallelism: 1
ici_data_parallelism: 1
ici_fsdp_parallelism: {fsdp}
ici_tensor_parallelism: 2
compile_topology_num_slices: {slices}
per_device_batch_size: 12.0
"""
#: dcn, fsdp, slices, devices -> the sizes of data, fsdp and tensor, or None
MESHES: dict[tuple[int, int, int, int], tuple[int, int, int] | None] = {
    (1, 4, -1, 8): (1, 4, 2),
    (-1, -1, -1, 8): (1, 4, 2),
    (-1, -1, 2, 32): (2, 8, 2),
    (2, 8, 2, 32): (2, 8, 2),
    (-1, -1, -1, 7): None,
    (-1, 0, -1, 8): None,
}


@pytest.mark.parametrize("case", MESHES)
def test_a_configuration_has_a_mesh(case, tmp_path):
    dcn, fsdp, slices, devices = case
    file = tmp_path / "base.yml"
    file.write_text(CONFIG.format(dcn=dcn, fsdp=fsdp, slices=slices))
    target = f"gpu:h100:{devices // 8 or 1}x{min(devices, 8)}"
    rows = [("w", (64, 64), "embed mlp")]
    if MESHES[case] is None:
        with pytest.raises(sv.ShardvizError):
            sv.audit(rows, file, file, target=target)
        return
    found = sv.audit(rows, file, file, target=target)
    assert tuple(found.mesh.shape[axis] for axis in ("data", "fsdp", "tensor")) == MESHES[case]
    assert str(found["w"].spec) == "P('fsdp', 'tensor')"


def test_the_size_that_is_left(eight_devices, tmp_path):
    assert sv.mesh("data=-1, model=2").shape == {"data": jax.device_count() // 2, "model": 2}
    assert sv.mesh([("data", -1)], device_ids=range(4)).shape == {"data": 4}
    file = tmp_path / "conf.yaml"
    file.write_text("mesh_axes: [fsdp]\nici_fsdp_parallelism: -1")
    assert sv.mesh(str(file)) == sv.mesh(file) == sv.mesh(fsdp=jax.device_count())
    for wrong in ("data=-1, model=-1", "data=-1, model=3", "data=-2"):
        with pytest.raises(sv.ShardvizError):
            sv.mesh(wrong)
    file.write_text("model_name: llama")
    for path in (file, tmp_path / "none.yml"):
        with pytest.raises(sv.ShardvizError):
            sv.mesh(path)


MESH = {"axis_names": ["data", "fsdp"], "shape": {"data": 1, "fsdp": 4}}
WEIGHTS: dict[str, tuple[list[int], list[Any], list[Any]]] = {
    "['model']/['decoder']/['wi']/['kernel']/.value": ([64, 2, 8], ["embed", None, "mlp"],
                                                       ["fsdp", None, None]),
    "['model']/['rngs']/['key']/.value": ([], [], []),
    "['optimizer']/['opt_state']/[0]/['mu']/['decoder']/['wi']/['kernel']/.value": (
        [64, 2, 8], ["embed", None, "mlp"], [["data", "fsdp"], None, None]),
}  # fmt: skip
PATHS = ["model/decoder/wi/kernel", "model/rngs/key", "optimizer/opt_state/0/mu/decoder/wi/kernel"]


def test_records_of_shardings_are_audited(tmp_path):
    named, logical = {}, {}
    for path, (shape, names, spec) in WEIGHTS.items():
        named[path] = {"mesh": MESH, "partition_spec": spec, "shape": shape}
        logical[path] = {"partition_spec": names, "shape": shape}
    file = tmp_path / "named_shardings.json"
    file.write_text(json.dumps(named))
    found = sv.audit(named)
    assert [row.path for row in found.rows] == PATHS
    assert found.mesh.shape == MESH["shape"]
    assert [str(row.spec) for row in found.rows] == [
        "P('fsdp', None, None)", "P()", "P(('data', 'fsdp'), None, None)"]  # fmt: skip
    assert found.rows[2].partner == PATHS[0]
    for path in (file, str(file)):
        assert [(row.path, row.spec) for row in sv.audit(path).rows] == [
            (row.path, row.spec) for row in found.rows
        ]
    by_rules = sv.audit(logical, [("embed", "fsdp"), ("mlp", "data")], "data=1, fsdp=4")
    assert by_rules.rows[0].names == ("embed", None, "mlp")
    assert str(by_rules.rows[0].spec) == "P('fsdp', None, 'data')"
    # A record of names that are mesh axes already.
    axes = {"['w']": {"partition_spec": ["fsdp", None], "shape": [8, 8]}}
    assert str(sv.audit(axes, (), "fsdp=4")["w"].spec) == "P('fsdp', None)"
    file.write_text("[" * 100_000)
    with pytest.raises(sv.ShardvizError):
        sv.audit(file)
