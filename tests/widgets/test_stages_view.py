import dataclasses
import json
from collections import Counter

import pytest

from shardviz.core.layout.mesh import make_mesh
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_values import PlannedOp, ShardingRule
from shardviz.core.program.report import Collective, Failure, Report
from shardviz.core.program.roofline import roofline
from shardviz.widgets.collective_table import crosses_hosts
from shardviz.widgets.planner import StageResults
from shardviz.widgets.stages_view import stages_view
from tests.widgets.stage_examples import (
    COMPILED,
    LOOP,
    MESH,
    PARTITIONED,
    PLAN,
    PLANNED,
    REFUSED,
    REPORT,
    RESULTS,
    SUMS,
)

FAILED = Report("f", "t", error=Failure("compile", "oh"))


def stage(view: dict, name: str) -> dict:
    return next(r for r in view["stages"] if r["name"] == name)


def mark(view: dict, *between: int) -> dict:
    return next(m for m in view["marks"] if m["between"] == list(between))


def test_every_stage_says_its_sum_its_time_and_its_state():
    view = stages_view(RESULTS)
    assert [r["state"] for r in view["stages"]] == ["estimate", "live", "live"]
    assert stage(view, "propagated")["text"] == "3 all-reduce, 1 all-gather, 1 all-to-all"
    assert stage(view, "propagated")["took"] == "35 ms"
    # 256 + 512 + 1,024 KiB, 12 times 4 KiB in the loop, and 64 KiB.
    assert stage(view, "propagated")["more"].startswith("1.9 MiB · 2 values, 2 split")
    assert stage(view, "compiled")["took"] == "41.5 s"
    assert stage(view, "partitioned")["more"].endswith(REPORT.target)


def test_the_marks_say_what_changed():
    view = stages_view(RESULTS)
    assert mark(view, 0, 1)["tone"] == "more"
    assert "3 combined into 1" in mark(view, 1, 2)["text"]
    assert mark(view, -1, 0)["text"] == "1 value got axes"
    same = stages_view(dataclasses.replace(RESULTS, report=REPORT.replace(partitioned=PLANNED)))
    assert mark(same, 0, 1) | {"title": ""} == {
        "between": [0, 1], "text": "as planned", "tone": "same", "title": "",
    }  # fmt: skip


def test_every_collective_is_in_exactly_one_row():
    view = stages_view(RESULTS)
    for i, known in enumerate((PLANNED, PARTITIONED, COMPILED)):
        seen = Counter(k for row in view["rows"] for k in row["cells"][i])
        assert seen == Counter(range(len(known)))
    together = next(row for row in view["rows"] if row["cells"][2] == [0])
    assert sorted(together["cells"][0]) == sorted(together["cells"][1]) == [0, 1, 2]


def test_rows_are_sorted_by_bytes_and_equal_collectives_have_one_each():
    twin = StageResults(dataclasses.replace(PLAN, collectives=(LOOP,) * 4), 0, None)
    assert Counter(k for r in stages_view(twin)["rows"] for k in r["cells"][0]) == Counter(range(4))
    shares = [row["share"] for row in stages_view(RESULTS)["rows"]]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1.0


def test_a_combined_collective_has_the_causes_of_its_members_the_largest_first():
    view = stages_view(RESULTS)
    together = next(c for c in view["collectives"][2] if c["number"] == 0)
    assert together["causes"] == [str(one.cause) for one in reversed(SUMS)]
    assert together["tags"] == ["async", "combined"]


HOSTS = make_mesh(data=4, model=2, processes=2)
ACROSS, WITHIN = Collective("all-reduce", ("data",), 8), Collective("all-gather", ("model",), 8)
SHIFT = Collective("collective-permute", ("data",), 8, groups=((0, 2), (4, 6)))
UNKNOWN = Collective("all-reduce", (), 8)
GROUPED = Collective("all-reduce", (), 8, groups=((0, 1, 2, 3), (4, 5, 6, 7)))


@pytest.mark.parametrize(
    ("one", "crosses"),
    [(ACROSS, True), (WITHIN, False), (SHIFT, False), (UNKNOWN, None), (GROUPED, False),
     (dataclasses.replace(SHIFT, groups=((2, 4),)), True)],
)  # fmt: skip
def test_whether_a_collective_goes_from_host_to_host(one, crosses):
    assert crosses_hosts(one, HOSTS) is crosses
    assert crosses_hosts(one, make_mesh(data=4, model=2)) is False
    assert crosses_hosts(one, None) is None


def tags_on(plan_mesh, report_mesh, target) -> list[list[str]]:
    plan = dataclasses.replace(PLAN, mesh=plan_mesh, collectives=(ACROSS,))
    report = REPORT.replace(mesh=report_mesh, partitioned=(ACROSS,), collectives=(ACROSS,))
    view = stages_view(StageResults(plan, 0, report, 0, target))
    return [row["tags"] for (row,) in view["collectives"]]


def test_hosts_are_those_of_the_hardware_or_else_those_that_were_typed():
    one, crossing = make_mesh(data=4, model=2), [["between hosts"]] * 3
    assert tags_on(HOSTS, one, "cpu:8") == crossing, "simulated devices have one process"
    assert tags_on(one, HOSTS, "tpu:v5e:2x4") == crossing, "described devices have their own"
    assert tags_on(HOSTS, one, "tpu:v5e:2x4") == [[]] * 3
    assert tags_on(HOSTS, None, "tpu:v5e:2x4") == [[]] * 3, "not known before the compile"


def test_an_estimate_of_another_program_is_not_compared():
    view = stages_view(dataclasses.replace(RESULTS, plan_revision=1))
    assert [m["between"] for m in view["marks"]] == [[-1, 0], [1, 2]]
    assert {tuple(c["between"]) for c in view["changes"]} == {(1, 2)}
    assert view["revisions"] == [1, 0, 0]
    for row in view["rows"]:  # nor are its bytes in a row with theirs
        estimate, *others = row["cells"]
        assert not estimate or not any(others), row


def test_without_the_partitioners_answer_the_compiled_stage_is_compared_with_the_estimate():
    view = stages_view(dataclasses.replace(RESULTS, report=REPORT.replace(partitioned=None)))
    assert stage(view, "partitioned")["state"] == "none"
    assert [m["between"] for m in view["marks"]] == [[-1, 0], [0, 2]]


@pytest.mark.parametrize(
    ("results", "states"),
    [
        (StageResults(), ["none", "none", "none"]),
        (StageResults(PLAN, 0), ["estimate", "none", "none"]),
        (StageResults(REFUSED, 0), ["failed", "none", "none"]),
        (StageResults(PLAN, 0, FAILED, 0), ["estimate", "failed", "failed"]),
    ],
    ids=["nothing", "a plan", "a refused plan", "a failed compile"],
)
def test_unknown_stages_say_so(results, states):
    view = stages_view(results)
    assert [r["state"] for r in view["stages"]] == states
    assert all(r["text"] for r in view["stages"])


def test_the_view_is_json_and_stays_small_for_thousands_of_collectives():
    many = dataclasses.replace(PLAN, collectives=SUMS * 1000)
    report = REPORT.replace(partitioned=SUMS * 1000, collectives=SUMS * 1000)
    view = stages_view(StageResults(many, 0, report, 0))
    assert view["left_out"] == [2700, 2700, 2700]
    assert len(json.dumps(view)) < 900_000


def test_operations_are_priced_with_the_plan_of_the_same_program():
    rule = ShardingRule(
        ((("i",), ("k",)), (("k",), ("j",))), ((("i",), ("j",)),),
        {"i": 64, "j": 16, "k": 32}, ("k",),
    )  # fmt: skip
    operands = {"x": (64, 32), "w": (32, 16)}
    arrays = [PlannedOp(n, "argument", shape=s, dtype="float32") for n, s in operands.items()]
    dot = PlannedOp(
        "y", "op", "dot_general", source="block.py:3", shape=(64, 16), dtype="float32",
        operands=tuple(operands), factors=rule,
    )  # fmt: skip
    plan = Plan("block", MESH, (*arrays, dot))
    report = Report(
        "block", "TPU v5e 4×4", cost={"flops": 1e9, "bytes accessed": 1e6}, compile_s=1.0
    )
    report = report.replace(roofline=roofline(report, "tpu:v5e:4x4"))
    same, other = (stages_view(StageResults(plan, 0, report, n))["memory"] for n in (0, 1))
    assert [(o["name"], o["source"], o["share"]) for o in same["operations"]] == [
        ("y", "block.py:3", 1.0)
    ]
    assert other["operations"] == []
    assert same["times"] == other["times"] != []
