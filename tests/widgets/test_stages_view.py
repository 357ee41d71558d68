import dataclasses
import json

import pytest

from shardviz.base.collective import Collective
from shardviz.base.mesh import make_mesh
from shardviz.compiled.checks import Check
from shardviz.compiled.panel.collective_table import crosses_hosts
from shardviz.compiled.panel.report_view import headline_view
from shardviz.compiled.panel.stages_view import saved_stages, stages_view
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import roofline
from shardviz.compiled.words.roofline import time_text
from shardviz.explorer.planner import StageResults
from shardviz.hardware.chips import find_chip
from shardviz.plans.plan import Plan
from shardviz.plans.plan_values import PlannedOp, ShardingRule
from shardviz.programs.failure import Failure
from tests.widgets.stage_examples import (
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


def test_every_stage_says_its_sum_and_in_its_tooltip_the_rest():
    view = stages_view(RESULTS)
    assert [r["state"] for r in view["stages"]] == ["estimate", "live", "live", "none"]
    assert [r["text"] for r in view["stages"]] == [
        "5 collectives", "5", "3 · 4.4 MiB", "not run yet",
    ]  # fmt: skip
    planned = stage(view, "propagated")["title"].splitlines()
    # 6/4 of 256 + 512 + 1,024 KiB, 12 times 2 of 4 KiB in the loop, and 7/8 of 64 KiB.
    assert planned[:2] == ["3 all-reduce, 1 all-gather, 1 all-to-all", "2.7 MiB sent per device"]
    assert planned[2:] == ["2 values, 2 split", "in 35 ms"]
    assert stage(view, "compiled")["title"].endswith("in 41.5 s")
    assert REPORT.target in stage(view, "partitioned")["title"]


def ran(report: Report) -> dict:
    return stage(stages_view(dataclasses.replace(RESULTS, report=report)), "ran")


def test_what_ran_says_how_many_checks_passed():
    passed = tuple(Check(f"check {i}", True, "") for i in range(26))
    unknown, failed = Check("undecided", None, ""), Check("wrong", False, "oh")
    done = REPORT.replace(run_s=0.01, checks=passed)
    assert (ran(done)["state"], ran(done)["text"]) == ("live", "✓ 26 of 26")
    assert ran(done.replace(checks=(*passed, unknown)))["text"] == "✓ 26 of 27"
    wrong = ran(done.replace(checks=(*passed, failed)))
    assert (wrong["state"], wrong["text"]) == ("failed", "✗ 1 of 27 failed")
    stopped = stages_view(
        dataclasses.replace(RESULTS, report=REPORT.replace(error=Failure("run", "oh")))
    )
    assert stage(stopped, "ran") | {"text": ""} == {
        "name": "ran", "state": "failed", "text": "", "title": "oh",
    }  # fmt: skip
    assert stage(stopped, "compiled")["state"] == "live"
    too_large = REPORT.replace(error=Failure("memory", "oh"))
    assert (ran(too_large)["state"], ran(REPORT)["state"]) == ("none", "none")


def test_the_words_between_stages_say_what_changed():
    view = stages_view(RESULTS)
    assert mark(view, 0, 1)["tone"] == "more"
    assert mark(view, 1, 2)["text"] == "3 combined into 1"
    assert mark(view, -1, 0)["text"] == "1 value sharded"
    same = stages_view(dataclasses.replace(RESULTS, report=REPORT.replace(partitioned=PLANNED)))
    assert mark(same, 0, 1) | {"title": ""} == {
        "between": [0, 1], "text": "estimate was right", "tone": "same", "title": "",
    }  # fmt: skip


def test_every_collective_says_what_became_of_it():
    def became(stage: int) -> dict[int, str]:
        return {g["numbers"][0]: g["became"] for g in stages_view(RESULTS)["groups"][stage]}

    assert became(2) == {0: "3 into 1", 1: "as planned", 2: "was all-to-all"}
    assert became(1)[4] == "was all-to-all"
    assert became(0)[4] == "becomes all-gather"
    alone = stages_view(StageResults(PLAN, 0))
    assert {g["became"] for g in alone["groups"][0]} == {""}, "nothing is known of it yet"
    more = REPORT.replace(partitioned=(*PARTITIONED, ACROSS), collectives=None)
    view = stages_view(dataclasses.replace(RESULTS, report=more))
    assert next(g["became"] for g in view["groups"][1] if g["numbers"] == [5]) == "not estimated"


def test_collectives_are_sorted_by_bytes_and_each_is_there_once():
    twin = stages_view(StageResults(dataclasses.replace(PLAN, collectives=(LOOP,) * 4), 0, None))
    assert sorted(c["number"] for c in twin["collectives"][0]) == [0, 1, 2, 3]
    for some in stages_view(RESULTS)["groups"]:
        shares = [group["share"] for group in some]
        assert shares == sorted(shares, reverse=True)


def test_a_combined_collective_has_the_causes_of_its_members_the_largest_first():
    view = stages_view(RESULTS)
    together = next(c for c in view["collectives"][2] if c["number"] == 0)
    assert together["causes"] == [str(one.cause) for one in reversed(SUMS)]
    group = next(g for g in view["groups"][2] if g["numbers"] == [0])
    assert (group["tags"], group["what"]) == (["async"], "3 arrays combined, dot_general, backward")
    assert "3 arrays combined" in together["facts"]


def layer_sums(count: int) -> tuple[Collective, ...]:
    """The sums over model of two lines in each layer, and one larger sum over data."""
    sums = [
        Collective(
            "all-reduce",
            ("model",),
            1 << 20,
            "jit(f)/jvp(bsf,fe->bse)/dot_general",
            line,
            group_size=2,
        )
        for _ in range(count)
        for line in ("block.py:67", "block.py:59")
    ]
    return (*sums, dataclasses.replace(sums[0], mesh_axes=("data",), bytes_per_device=3 << 20))


def test_collectives_of_all_layers_share_a_row_with_their_lines_and_their_total():
    view = stages_view(StageResults(dataclasses.replace(PLAN, collectives=layer_sums(8)), 0))
    alike, other = view["groups"][0]
    assert (alike["times"], alike["lines"]) == ("× 16", "block.py:59, 67")
    assert (alike["total"], alike["what"]) == ("16 MiB", "einsum")
    assert (other["times"], other["total"], other["numbers"]) == ("", "3 MiB", [16])
    # A loop counts once, as often as it runs.
    loop = stages_view(RESULTS)["groups"][0][-1]
    assert (loop["times"], loop["total"], loop["tags"]) == ("× 12", "24 KiB", [])


def test_groups_count_collectives_that_are_not_sent():
    view = stages_view(StageResults(dataclasses.replace(PLAN, collectives=layer_sums(1000)), 0))
    alike, other = view["groups"][0]
    assert (alike["times"], alike["members"], alike["total"]) == ("× 2,000", 2000, "2 GiB")
    assert (len(alike["numbers"]), other["numbers"]) == (299, [2000])
    assert len(view["collectives"][0]) == 300
    assert view["left_out"] == [0, 0, 0]


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
    return [group["tags"] for (group,) in view["groups"]]


def test_hosts_are_those_of_the_hardware_or_else_those_that_were_typed():
    one, crossing = make_mesh(data=4, model=2), [["crosses hosts"]] * 3
    assert tags_on(HOSTS, one, "cpu:8") == crossing, "simulated devices have one process"
    assert tags_on(one, HOSTS, "tpu:v5e:2x4") == crossing, "described devices have their own"
    assert tags_on(HOSTS, one, "tpu:v5e:2x4") == [[]] * 3
    assert tags_on(HOSTS, None, "tpu:v5e:2x4") == [[]] * 3, "not known before the compile"


def test_an_estimate_of_another_program_is_not_compared():
    view = stages_view(dataclasses.replace(RESULTS, plan_revision=1))
    assert [m["between"] for m in view["marks"]] == [[-1, 0], [1, 2]]
    assert {tuple(c["between"]) for c in view["changes"]} == {(1, 2)}
    assert view["revisions"] == [1, 0, 0, 0]
    assert {g["became"] for g in view["groups"][0]} == {""}


def test_without_the_partitioners_answer_the_compiled_stage_is_compared_with_the_estimate():
    view = stages_view(dataclasses.replace(RESULTS, report=REPORT.replace(partitioned=None)))
    assert stage(view, "partitioned")["state"] == "none"
    assert [m["between"] for m in view["marks"]] == [[-1, 0], [0, 2]]


@pytest.mark.parametrize(
    ("results", "states"),
    [
        (StageResults(), ["none"] * 4),
        (StageResults(PLAN, 0), ["estimate", "none", "none", "none"]),
        (StageResults(REFUSED, 0), ["failed", "none", "none", "none"]),
        (StageResults(PLAN, 0, FAILED, 0), ["estimate", "failed", "failed", "none"]),
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
    assert view["left_out"] == [0, 0, 0]
    assert [group["members"] for group in view["groups"][2]] == [1000] * 3
    assert len(json.dumps(view)) < 900_000


def test_the_plan_of_another_program_leaves_the_headline_of_a_report_alone():
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
    same, other = (stages_view(StageResults(plan, 0, report, n)) for n in (0, 1))
    assert same["headline"]["parts"] == other["headline"]["parts"] != []


def test_the_headline_is_the_roofline():
    report = REPORT.replace(collectives=(GROUPED,), mesh=MESH)
    found = roofline(report, find_chip("v5e"))
    head = headline_view(found, report.replace(roofline=found), "TPU v5e", "")
    assert head["seconds"] == time_text(found.seconds)
    assert (found.bound, head["bound"]) == ("compute", "bound by arithmetic")
    parts = {part["name"]: part for part in head["parts"]}
    assert list(parts) == ["collectives", "memory", "compute"]
    for name, seconds in found.parts.items():
        assert parts[name]["seconds"] == time_text(seconds)
        assert parts[name]["share"] == pytest.approx(seconds / found.seconds)
    over = parts["collectives"]["over"]
    assert [axes for axes, _ in over] == [list(GROUPED.mesh_axes)]
    assert sum(share for _, share in over) == pytest.approx(1)
    assert parts["memory"]["over"] == []
    assert (head["memory"], head["over"]) == ("needs 24 GiB of 16 GiB", True)
    looped = roofline(report.replace(loops=1), find_chip("v5e"))
    assert looped.counts_loops_once
    assert "not known" in headline_view(looped, report, "", "")["bound"]


def test_without_rates_the_headline_says_what_to_do():
    simulated = stages_view(RESULTS)["headline"]
    assert simulated["parts"] == []
    assert "Target" in simulated["note"]
    waiting = StageResults(PLAN, 0, not_run="Press Compile: it takes a while.")
    # A report of the partitioner alone says nothing of the chip that is chosen.
    partitioned = Report("f", "cpu:8", partitioned=())
    assert headline_view(None, partitioned, "", waiting.not_run)["note"] == waiting.not_run
    assert stages_view(waiting)["headline"]["note"] == waiting.not_run
    assert saved_stages(stages_view(waiting))["headline"]["note"] == ""
