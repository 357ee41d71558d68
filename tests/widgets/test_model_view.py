"""The view Model: kinds of leaves, what they take, and edits that touch kinds alone."""

from __future__ import annotations

import json

import pytest

from shardviz.axis_rules.audit import audit
from shardviz.axis_rules.panel.model_panel import ModelPanel
from shardviz.axis_rules.panel.model_view import Leaves, leaves_view, model_view
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import ShardvizError
from shardviz.base.format import bytes_text, count_text
from shardviz.base.mesh import make_mesh
from shardviz.explorer.explorer import Explorer
from shardviz.explorer.planner import StageResults
from shardviz.explorer.session_view import program_view
from shardviz.explorer.state import open_state, session_on, session_state
from shardviz.plans.plan import Plan
from shardviz.programs.constraints import LOGICAL, NO_MESH, Constraint
from shardviz.programs.program import Program
from shardviz.runs.cache import ExecutableCache

RULES = Rules.of(("embed", "data"), ("mlp", "model"))
MESH = make_mesh(data=4, model=2)


def layers(count: int) -> list[ArraySpec]:
    return [
        ArraySpec(f"params/layers_{i}/{name}", shape, tuple(names.split()))
        for i in range(count)
        for name, shape, names in (
            ("wi", (512, 2048), "embed mlp"),
            ("wo", (2048, 512), "mlp embd"),
            ("scale", (510,), "embed"),
        )
    ]


def audited(count: int = 4):
    return audit(layers(count), RULES, MESH)


def test_leaves_of_one_kind_are_resolved_once_and_layers_are_folded():
    leaves = Leaves.of_rows(audited().rows)
    view = leaves_view(leaves)
    assert len(view["paths"]) == 12
    assert view["kinds"] == [0, 1, 2] * 4
    assert [name for name, _ in view["folds"]] == [
        "params/layers_{0..3}/wi", "params/layers_{0..3}/wo", "params/layers_{0..3}/scale",
    ]  # fmt: skip
    assert view["words"] == "12 arrays · 8.4 M parameters"


def test_arrays_of_a_program_are_grouped_as_in_a_train_state():
    weights = ("w", "b")
    names = [f"0.params.{n}" for n in weights] + [f"1.0.opt.mu.{n}" for n in weights]
    arrays = [ArraySpec(n, (64, 64), ("embed", "mlp")) for n in (*names, "tokens")]
    made = Program(max, tuple(arrays), MESH, rules=RULES)
    leaves = Leaves.of_rows(made.requests)
    assert leaves_view(leaves)["roles"] == [*["parameters"] * 2, *["optimizer state"] * 2, ""]
    assert leaves_view(leaves)["words"] == f"5 arrays · {count_text(2 * 64 * 64)} parameters"
    parts = dict(model_view(made, "", leaves, None)["parts"])
    assert list(parts) == ["parameters", "optimizer state", "tokens"]


def test_bytes_and_waste_are_those_of_the_audit():
    found = audited()
    session = session_on(found)
    view = model_view(session.program, session.now.target, Leaves.of_rows(found.rows), None)
    per_kind = {row["spec"]: row for row in view["kinds"]}
    assert per_kind["P('data', 'model')"]["bytes"] == found.rows[0].bytes_per_device
    assert per_kind["P('data', 'model')"]["copies"] == 0
    split = per_kind["P('model', None)"]
    assert split["copies"] == 2048 * 512 * 4 // 2 - 2048 * 512 * 4 // 8
    assert "embd" in split["note"]
    assert "embed" in split["note"]
    assert "510 is not divisible by 4" in per_kind["P('data')"]["problem"]
    total = sum(r.bytes_per_device or 0 for r in found.rows)
    assert sum(row["bytes"] * 4 for row in view["kinds"]) == total
    assert view["capacity"] == 0
    session.edit("target", "tpu:v5e:2x4")
    view = model_view(session.program, session.now.target, Leaves.of_rows(found.rows), None)
    assert all(part in view["words"] for part in ("16 GiB", "TPU v5e 2×4"))


def test_what_cannot_be_laid_out_is_said_to_be_left_out_of_every_sum():
    rules = [("embed", "nowhere"), ("mlp", "model")]
    found = audit([*layers(2), ("params/b", (2048,), "mlp")], rules, MESH)
    size = sum(row.array.bytes for row in found.rows if row.layout is None)
    assert (found.bytes_per_device, size) == (
        2 * 2048 * 512 * 4 // 2 + 4096,
        2 * 4 * (1 << 20) + 4080,
    )
    said = f", not counting 4 arrays ({bytes_text(size)} in total)"
    session = session_on(found)
    assert model_view(session.program, "", session.now.model, None)["words"].endswith(said)
    assert said in found.explain()
    assert [group.uncounted for group in (*found.groups, found.total)] == [4, 4]
    assert "4 of them not counted" in str(found.total)
    view = program_view(session_on([row.array for row in found.rows[:2]]).now)
    assert "not counted" not in view["requestedBytes"]
    session.edit("open", 0)
    assert program_view(session.now)["requestedBytes"] == "2 MiB per device, 1 not counted"
    good = audit(layers(1)[:1], RULES, MESH)
    assert "not counting" not in good.explain()


def test_the_explorer_opens_on_an_audit_and_a_leaf_opens_among_the_arrays():
    session = session_on(audited())
    assert [a.name for a in session.arrays] == ["params/layers_0/wo"]
    session.edit("open", 3)
    assert [a.name for a in session.arrays] == ["params/layers_0/wo", "params/layers_1/wi"]
    assert session.now.selected == 1
    session.edit("open", 1)
    assert len(session.arrays) == 2
    assert session.now.selected == 0
    with pytest.raises(ShardvizError, match="no arrays"):
        session_on(audit([], RULES, MESH))


def test_an_edit_of_a_rule_sends_the_kinds_and_no_paths():
    made = Explorer(session_on(audited(40)), ExecutableCache())

    def hear(**intent):
        made._receive(made, {"seq": 1, "client": "page", "intents": [intent]}, [])

    hear(kind="show", value="Layout")
    assert made.view["opens"] == "Model"
    hear(kind="show", value="Model")
    leaves, before = made.leaves, made.model_data
    hear(kind="edit", field="rules", value="embed -> model")
    assert made.leaves is leaves
    assert made.model_data != before
    assert len(made.model_data["kinds"]) == 3
    hear(kind="show", value="Layout")
    shown = made.model_data
    hear(kind="edit", field="rules", value="")
    assert made.model_data is shown
    made.close()


def test_constraints_say_what_became_of_them():
    session = session_on(audited())
    seen = Constraint(LOGICAL, "model.py:12", (8, 16), ("batch", "embed"), effect=NO_MESH)
    plan = Plan("step", MESH, (), constraints=(seen,))
    (row,) = model_view(session.program, "", Leaves.of_rows(audited().rows), plan)["constraints"]
    assert row["where"] == seen.where
    assert row["effect"] == "no mesh in sight"
    assert row["text"] == seen.sentence
    assert row["warns"]


def test_constraints_of_an_edited_program_wait_for_its_plan():
    session = session_on(audited())
    made = Explorer(session, ExecutableCache())
    seen = Constraint(LOGICAL, "model.py:12", (8, 16), ("batch", "embed"), effect=NO_MESH)
    plan = Plan("step", MESH, (), constraints=(seen,))
    made.planner.state = StageResults(plan, session.now.revision)
    panel = made.panel(ModelPanel)
    assert len(panel.saved()["model_data"]["constraints"]) == 1  # type: ignore[index]
    session.edit("mesh", "data=2, model=2")
    assert panel.saved()["model_data"]["constraints"] == []  # type: ignore[index]
    made.close()


def test_a_state_holds_the_model_and_opens_with_it():
    session = session_on(audited())
    state = json.loads(json.dumps(session_state(session)))
    again = open_state(state)
    assert again.now.model == session.now.model
    assert session_state(again) == state
    for wrong in ("x", {"leaves": "x"}, {"partners": {"a": 1}}):
        with pytest.raises(ShardvizError):
            open_state({**state, "model": wrong})
