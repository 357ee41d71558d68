"""Every row of MaxText's own sharding records, where they lie beside the repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardviz.axis_rules.audit import audit
from shardviz.axis_rules.resolution import resolve
from shardviz.axis_rules.rules import Rules
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec

FOLDER = Path(__file__).parents[2].parent / "shared" / "data" / "maxtext"
FILES = sorted(FOLDER.glob("*.json"))

# Activations that MaxText constrains with a PartitionSpec of its own and no logical names: no
# rule made them, so no rule table can reproduce them. They are counted here, and checked below.
WITHOUT_NAMES = {
    "deepseek2-16b__tpu7x-16__default": 8,
    "deepseek2-16b__tpu7x-16__pure-fsdp": 8,
    "deepseek2-16b__tpu7x-8__ep-as-cp__fsdp-1_expert2": 8,
    "deepseek2-16b__v6e-16__default__fsdp-1_expert4": 8,
    "gpt-oss-20b__tpu7x-16__default": 14,
    "qwen3-0.6b__tpu7x-16__default": 5,
}

pytestmark = pytest.mark.skipif(not FILES, reason="the folder shared/data/maxtext is not here")


def load(file: Path):
    record = json.loads(file.read_text())
    mesh = make_mesh([tuple(axis) for axis in record["mesh"]])
    return record, mesh, Rules.of([tuple(rule) for rule in record["rules"]])


def written(row) -> Spec:
    return Spec.of(*row["partition_spec"])


def label(row) -> str:
    return str(row.get("path", row.get("name")))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
@pytest.mark.parametrize(
    ("kind", "dialect"), [("params", "linen"), ("activations", "maxtext")], ids=lambda v: v
)
def test_every_row_made_by_rules_is_reproduced(file, kind, dialect):
    record, mesh, rules = load(file)
    named = [r for r in record[kind] if r["logical_axes"] is not None]
    assert len(named) >= 7
    wrong = []
    for row in named:
        found = resolve(tuple(row["logical_axes"]), rules, mesh=mesh, dialect=dialect)
        if not found.spec.equivalent(written(row)):
            wrong.append(f"{label(row)} {row['logical_axes']}: {found.spec}, not {written(row)}")
    assert wrong == []


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_rows_without_names_are_these_and_lay_out_as_written(file):
    record, mesh, rules = load(file)
    rows = [r for r in (*record["params"], *record["activations"]) if r["logical_axes"] is None]
    assert len(rows) == WITHOUT_NAMES[file.stem], [label(r) for r in rows]
    assert all("dtype" in r for r in rows), "only activations come without names"
    for row in rows:
        found = audit([(label(row), row["shape"])], rules, mesh).rows[0]
        assert found.resolution is None
        assert audit([found.array.replace(spec=written(row))], rules, mesh).problems == {}


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_the_audit_of_all_parameters_tells_the_same(file):
    record, mesh, rules = load(file)
    rows = [(r["path"], r["shape"], r["logical_axes"]) for r in record["params"]]
    found = audit(rows, rules, mesh)
    assert len(found.rows) == len(record["params"])
    assert dict(found.problems) == {}
    for row, written_row in zip(found.rows, record["params"], strict=True):
        assert row.spec is not None
        assert row.spec.equivalent(written(written_row))
