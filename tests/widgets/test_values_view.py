from __future__ import annotations

import dataclasses
import json

import pytest

from shardviz.base.collective import Collective
from shardviz.base.partition_spec import Spec
from shardviz.plans.panel.values_view import BACKWARD, NOT_COVERED, explanation_view, values_view
from shardviz.plans.plan import Plan
from shardviz.plans.plan_notes import Unused
from shardviz.plans.plan_values import Origin, PlannedOp
from tests.widgets.plans import MESH, layers

PLANS = {
    "three layers": layers(3),
    "no values": Plan("empty", MESH),
    "parts of axes, marks and a scalar": Plan(
        "odd",
        MESH,
        (
            PlannedOp("s", "op", shape=(), dtype="key<fry>"),
            PlannedOp(
                "v", "op", shape=(8, 4), dtype="float32",
                spec=Spec.of(("data:(1)2", "model"), None, unreduced=("data:(2)2",)),
                origins={"data:(1)2": Origin("data:(1)2", "constraint", "v", "f.py:3")},
                operands=("s", "gone"), notes=(Unused(),),
            ),
            PlannedOp("five", "result", shape=(2, 2, 2, 2, 2), spec=Spec.of(None, "model")),
        ),
    ),
}  # fmt: skip


def decoded(view: dict, number: int) -> dict:
    """One value of a view, read as the page reads it."""
    text, columns = view["text"], view["columns"]
    spec, dims, unreduced = view["specs"][columns["spec"][number]]
    return {
        "name": text[columns["name"][number]],
        "kind": view["kinds"][columns["kind"][number]],
        "opcode": text[columns["opcode"][number]],
        "shape": tuple(view["types"][columns["type"][number]][1:]),
        "spec": spec,
        "dims": tuple(tuple(axis[2] for axis in dim) for dim in dims),
        "unreduced": dict(unreduced),
        "source": text[columns["source"][number]],
        "region": text[columns["region"][number]],
        "trips": view["trips"].get(number),
        "backward": bool(columns["flags"][number] & BACKWARD),
        "covered": not columns["flags"][number] & NOT_COVERED,
        "note": text[view["valueNotes"][number]] if number in view["valueNotes"] else "",
        "origins": {
            axis: (view["originKinds"][kind], text[name], text[source])
            for axis, kind, name, source in view["origins"][columns["origins"][number]]
        },
        "operands": [text[columns["name"][o]] for o in view["operands"][number]],
    }


@pytest.mark.parametrize("name", PLANS)
def test_every_value_can_be_read_back(name):
    plan = PLANS[name]
    view = values_view(plan)
    assert view["count"] == len(plan.ops)
    for number, op in enumerate(plan.ops):
        not_split = [()] * (len(op.shape) - len(op.spec.dims))
        assert decoded(view, number) == {
            "name": op.name,
            "kind": op.kind,
            "opcode": op.opcode,
            "shape": op.shape,
            "spec": str(op.spec),
            "dims": (*op.spec.dims, *not_split),
            "unreduced": dict.fromkeys(op.spec.unreduced, op.spec.unreduced_kind),
            "source": op.source,
            "region": op.region,
            "trips": op.trips,
            "backward": op.backward,
            "covered": op.covered,
            "note": op.note,
            "origins": {a: (o.kind, o.name, o.source) for a, o in op.origins.items()},
            "operands": [o for o in op.operands if o in plan.by_name],
        }


def test_two_thousand_values_stay_below_220_kb():
    plan = layers(400)
    assert len(plan.ops) > 2000
    assert len(json.dumps(values_view(plan))) < 220_000


def test_what_is_estimated_to_move_is_listed_at_the_value_that_causes_it():
    plan = layers(2)
    stray = Collective("all-gather", ("data", "model"), 4096, group_size=2)
    view = values_view(dataclasses.replace(plan, collectives=(*plan.collectives, stray)))
    text = view["text"]

    def read(moves):
        return [
            (text[kind], [text[a] for a in axes], text[size], trips, text[cause])
            for kind, axes, size, trips, cause in moves
        ]

    at = [op.name for op in plan.ops].index("reduce_1")
    cause = "reduce_1 sums over dimension 1, which is split over model."
    assert read(view["moves"][at]) == [("all-reduce", ["model"], "1 MiB", 12, cause)]
    assert read(view["moves"][-1]) == [("all-gather", ["data", "model"], "2 KiB", 1, "")]
    assert len(view["moves"]) == 3


def test_an_explanation_is_that_of_the_plan():
    plan = layers(3)
    explanation = explanation_view(plan, "dot_general_1")
    assert explanation["lines"] == list(plan.why("dot_general_1").lines)
    assert explanation["rule"] == plan.op("dot_general_1").rule == "[i] -> [i]"
    assert explanation["stack"] == ["block.py:31", "train.py:9"]
    assert explanation["error"] == ""
