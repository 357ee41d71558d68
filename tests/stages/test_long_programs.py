"""A train step of 16 layers: thousands of values, and what is said of them in a screenful."""

from __future__ import annotations

import pytest

import shardviz as sv
from shardviz.plans.explanation import MOST_SENTENCES, StepLine
from shardviz.plans.plan_folds import fold_collectives
from tests.stages.train_step import train_program

LAYERS, WIDTH, MOST_LINES = 16, 80, 60


@pytest.fixture(scope="module")
def plan():
    made = sv.plan(train_program(LAYERS))
    assert made.ok, made.error
    return made


def test_the_text_of_its_plan_has_the_largest_first(plan):
    assert len(plan.ops) > 5_000
    lines = sv.text(plan, WIDTH).splitlines()
    assert len(lines) <= MOST_LINES
    words = " ".join(line.strip() for line in lines)
    assert f"{len(plan.ops):,} values" in words
    layers = f"blocks_{{0..{LAYERS - 1}}}"
    assert f"{LAYERS} × 4 KiB f32 all-reduce over model · train_step.py" in words
    assert f"{layers}/Mlp_0/" in words
    sizes = [c.items[0].drawn_bytes * len(c.items) for c in fold_collectives(plan.collectives)]
    assert sizes == sorted(sizes, reverse=True)


def test_all_of_its_plan_is_there_on_request(plan):
    text = sv.text(plan, 300, full=True)
    assert all(f"{op.name}  " in text for op in plan.ops[:: len(plan.ops) // 50])
    assert text.count("\n") >= len(plan.ops)


def test_why_takes_a_dozen_lines_with_the_origin_and_the_value(plan):
    for op in plan.ops[:: len(plan.ops) // 40]:
        assert len(str(plan.why(op)).splitlines()) <= MOST_SENTENCES == 12
    logits = next(op for op in plan.ops if op.op == "jit(train_step)/jvp(bte,ve->btv)/dot_general")
    why = plan.why(logits)
    assert len(why.lines) > 30
    words = why.summary
    assert words[0].startswith(f"{logits.name} is made by dot_general at train_step.py:")
    assert any(line.endswith("split over data, which came from argument tokens.") for line in words)
    left = next(line for line in words if line.endswith("that work element by element."))
    steps = [f for f in why.facts if isinstance(f, StepLine) and f.axis == "data"]
    hidden = [step for step in steps if str(step) not in words]
    assert int(left.split()[0]) == len(hidden) > 20
    assert {step.code for step in hidden} == {"elementwise"}
    # The step before the gap is the last at which the axis changed its place; the two after it
    # reach the value.
    kept = [step.target for step in steps if step not in hidden]
    assert kept[-3:] == ["gather", steps[-2].target, logits.name]
    assert sv.text(why, 500, full=True).count("\n") == len(why.lines)
