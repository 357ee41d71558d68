"""Values as plain data: `to_dict` for JSON, and columns for pandas."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardviz as sv
from shardviz.base.plain import MOST_NUMBERS
from shardviz.pictures import draw

X = sv.array("x", (64, 8), "batch embed")
W = sv.array("w", (8, 64), "embed mlp")
RULES = [("batch", "data"), ("mlp", "model")]
PROGRAM = sv.program(lambda x, w: jnp.tanh(x @ w).sum(), X, W, mesh="data=2, model=2", rules=RULES)


def _raises(x):
    raise RuntimeError("no way")


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    stages = sv.stages(PROGRAM, target="cpu:4")
    plan, report = stages.plan, stages.report
    audit = sv.audit([X, W], RULES, "data=2, model=2", target="tpu:v5e:2x2")
    failed = sv.program(_raises, X, mesh="data=2")
    big = sv.mesh("data=1024, model=1024")
    on = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return {
        "mesh": sv.mesh("data=2"),
        "big mesh": big,
        "spec": sv.Spec.parse("data, P.UNCONSTRAINED"),
        "array": X,
        "rules": sv.rules(*RULES),
        "resolution": sv.resolve("batch embed", RULES, mesh="data=2", shape=(64, 8)),
        "layout": sv.layout((8, 4), "data", "data=2"),
        "layout of a million devices": sv.layout((1024, 1024), "data, model", big),
        "audit": audit,
        "row": audit.rows[0],
        "program": PROGRAM,
        "plan": plan,
        "value of a plan": plan.ops[0],
        "why": plan.why("w"),
        "plan difference": plan.diff(plan),
        "report": report,
        "run": sv.run(PROGRAM, target="cpu:4"),
        "memory": report.memory,
        "peak": report.memory.peak,
        "buffer": report.memory.peak.buffers[0],
        "collective": report.collectives[0],
        "stages": stages,
        "stage": stages.compiled,
        "comparison": stages.between("propagated", "compiled"),
        "failed plan": sv.plan(failed),
        "failed report": sv.compile(failed, target="cpu:2"),
        "failure": sv.plan(failed).error,
        "lock": sv.lock(plan),
        "changes": sv.changes(report),
        "remedies": sv.remedies(audit.rows[0], "split"),
        "reshard": sv.reshard([sv.array("x", (8, 8), spec="x")], "x=2", "x=4"),
        "movement": sv.movement(report, 0),
        "topology": sv.topology("tpu:v5e:2x2"),
        "targets": sv.targets(),
        "effects": sv.effects(PROGRAM),
        "rows of a process": sv.process_rows(sv.layout((8, 4), "data", sv.mesh("data=2"))),
        "mesh context": sv.mesh_context(),
        "on jax's mesh": sv.layout((4,), jax.sharding.NamedSharding(on, jax.P("x"))),
        "picture": draw(plan),
    }  # fmt: skip


def test_every_value_is_plain_data(values):
    for name, value in values.items():
        entries = value.to_dict()
        assert isinstance(entries, dict), name
        assert entries, name
        text = json.dumps(entries, allow_nan=False)
        assert "0x" not in text.replace("0x0", ""), name
        assert json.loads(text) == entries, name


def test_it_has_the_attributes(values):
    report, plan = values["report"].to_dict(), values["plan"].to_dict()
    assert report["ok"] is True
    assert report["compile_s"] == values["report"].compile_s
    collective = report["collectives"][0]
    assert (collective["kind"], collective["sent_bytes"]) == (
        values["collective"].kind,
        values["collective"].sent_bytes,
    )
    assert report["memory"]["peak"]["bytes"] == values["peak"].bytes
    assert [op["name"] for op in plan["ops"]] == [op.name for op in values["plan"].ops]
    assert plan["ops"][0]["spec"] == str(values["plan"].ops[0].spec)
    layout = values["layout"].to_dict()
    assert layout["bytes_per_device"] == 64
    assert layout["starts"] == [[0, 0], [4, 0]]
    assert (layout["mesh"], layout["spec"]) == ("data=2", "P('data')")
    assert values["row"].to_dict()["path"] == "x"
    assert not {"outputs", "of", "fn"} & values["run"].to_dict().keys()


def test_failed_values_have_what_they_reached(values):
    report = values["failed report"].to_dict()
    assert report["ok"] is False
    assert "no way" in report["error"]["message"]
    assert not {"collectives", "memory", "roofline", "fit"} & report.keys()


def test_arrays_of_millions_of_devices_are_left_out(values):
    for name in ("big mesh", "layout of a million devices"):
        entries = values[name].to_dict()
        assert entries["device_ids"] is None
        assert len(json.dumps(entries)) < MOST_NUMBERS


def test_rows_become_plain_columns(values):
    tables = {
        "plan.collectives": values["plan"].collectives,
        "report.collectives": values["report"].collectives,
        "plan.ops": values["plan"].ops,
        "audit.rows": values["audit"].rows,
    }
    for name, rows in tables.items():
        # pandas.DataFrame applies this to a sequence of dataclasses.
        assert dataclasses.is_dataclass(rows[0]), name
        records = list(map(dataclasses.asdict, rows))
        for record in records:
            assert record.keys() == records[0].keys()
            for column, entry in record.items():
                assert entry is None or type(entry) in (str, int, float, bool), (name, column)
    (record, *_) = map(dataclasses.asdict, values["report"].collectives)
    assert record["sent_bytes"] == values["report"].collectives[0].sent_bytes


def test_rows_can_still_be_copied(values):
    for row in (values["collective"], values["value of a plan"], values["row"]):
        changed = dataclasses.replace(row)
        assert changed == row
        assert copy.copy(row) == row
    cause = values["collective"]
    assert dataclasses.replace(cause, name="y").members == cause.members
    assert pickle.loads(pickle.dumps(cause)) == cause
    assert "members" in {field.name for field in dataclasses.fields(type(cause))}


def test_numbers_of_numpy_are_numbers():
    lengths = np.arange(3)
    assert sv.array("x", tuple(lengths + 1)).to_dict()["shape"] == [1, 2, 3]
