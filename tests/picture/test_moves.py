"""How often collectives run, and what of a large difference or a long path is said in words."""

from __future__ import annotations

import dataclasses

import pytest

from shardviz.base.cause import ValueName
from shardviz.base.collective import Collective, Member
from shardviz.base.partition_spec import Spec
from shardviz.compiled.draw.report import draw_collectives, draw_report
from shardviz.compiled.report import Report
from shardviz.compiled.stages import Stages
from shardviz.pictures import draw, to_text
from shardviz.plans.plan import Plan
from shardviz.plans.plan_values import PlannedOp
from tests.picture.values import MESH, PROGRAM

LOOPED = Collective(
    "all-reduce",
    ("model",),
    256,
    "jit(f)/while/dot",
    "f.py:3",
    trips=10,
    value="dot",
    group_size=2,
)
ONCE = Collective("all-gather", ("data",), 1024, value="x", group_size=4)
UNKNOWN = Collective("all-to-all", (), 64, trips=None)
REPORT = Report("f", "cpu × 8", collectives=(ONCE, LOOPED, UNKNOWN))


def plan(*moves: Collective, values: int = 1, spec: str = "data") -> Plan:
    ops = tuple(
        PlannedOp(f"v{i}", "op", "dot", shape=(8,), dtype="float32", spec=Spec.parse(spec))
        for i in range(values)
    )
    return Plan("f", MESH, ops, collectives=moves)


def labels(picture) -> list[str]:
    inside = [v for _, _, p in picture.panels for v in labels(p)]
    return [v.text for v in picture.labels] + inside


TIMES = {"a loop": (LOOPED, "256 B × 10", 2560), "once": (ONCE, "768 B", 768),
         "unknown": (UNKNOWN, "result of 64 B × ?", 64)}  # fmt: skip


@pytest.mark.parametrize(("one", "words", "total"), TIMES.values(), ids=TIMES.keys())
def test_bytes_are_said_with_how_often(one, words, total):
    assert (one.amount, one.drawn_bytes) == (words, total)


SAID = {
    "report in words": lambda: to_text(REPORT),
    "report": lambda: "\n".join(labels(draw(REPORT))),
    "difference in words": lambda: to_text(plan().diff(plan(LOOPED))),
    "difference": lambda: "\n".join(labels(draw(plan().diff(plan(LOOPED))))),
    "stages": lambda: "\n".join(labels(draw(Stages(PROGRAM, plan(LOOPED))))),
    "plan": lambda: to_text(plan(dataclasses.replace(LOOPED, value="v0"))),
}


@pytest.mark.parametrize("name", SAID)
def test_a_collective_of_a_loop_counts_its_turns(name):
    assert "256 B × 10" in SAID[name]()


def test_the_longest_bar_and_the_first_line_are_of_the_most_bytes_in_all():
    assert to_text(REPORT).splitlines()[2].startswith("  256 B × 10 all-reduce over model")
    picture = draw_collectives(REPORT.collectives)
    assert picture.tiles.width.tolist()[:2] == [150.0, 150.0 * 768 / 2560]


def test_a_large_difference_begins_with_its_collectives():
    many = [
        Collective("all-gather", ("data",), 200 + 2 * i, value=f"v{i}", group_size=2)
        for i in range(50)
    ]
    found = plan(values=900).diff(plan(*many, values=900, spec="model"))
    lines = to_text(found).splitlines()
    assert lines[0] == "50 collectives gained; 900 values changed."
    assert lines[1] == "Each device sent 0 B before, and sends 6.1 KiB now."
    assert lines[2].startswith("Gained: all-gather that sends 149 B over data")
    assert lines[42] == "and 10 more collectives"
    assert lines[43].startswith("v0: P('data') -> P('model')")
    assert lines[-1].startswith("and 8")
    assert lines[-1].endswith("more values")
    assert len(lines) <= 62


def test_a_combined_collective_lists_its_largest_arrays():
    sizes = [1 << (20 - i) for i in range(14)]
    members = tuple(
        Member(
            f"jit(f)/transpose(jvp())/layer_{i}/dot_general",
            f"f.py:{i}",
            n,
            operand=ValueName("operation", f"dot_{i}"),
        )
        for i, n in enumerate(sizes)
    )
    one = Collective(
        "all-reduce", ("data",), sum(sizes), members[0].op, "f.py:0", members=members, group_size=2
    )
    words = to_text(Report("f", "cpu", collectives=(one,)), 200)
    assert "and 13 more\n" in words
    named = "1 MiB of dot_0 (f.py:0), 512 KiB of dot_1 (f.py:1), 256 KiB of dot_2 (f.py:2)"
    assert f"    {named} and 11 more" in words
    assert one.words == "all-reduce that sends 2 MiB over data (f.py:0 and 13 more)"
    picture = draw_report(Report("f", "cpu", collectives=(one,)))
    assert any("and 13 more" in label.text for panel in picture.panels for label in panel[2].labels)
