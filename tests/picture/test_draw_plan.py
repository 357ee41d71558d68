from __future__ import annotations

import dataclasses

import pytest

from shardviz.base.collective import Collective
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.compiled.comparison import compare
from shardviz.compiled.stages import STAGES, Stages
from shardviz.draw.picture import Picture
from shardviz.draw.tables import MOST_PARTS, NOT_SPLIT_GROUP, spec_bars
from shardviz.pictures import draw, to_text
from shardviz.plans.draw.plan import value_rows
from shardviz.plans.plan_folds import call_paths
from shardviz.plans.plan_values import PlannedOp, bytes_per_device
from tests.picture.values import ON_STAGES, PLAN, PROGRAM
from tests.widgets.plans import REFUSED, layers


def words(picture: Picture) -> list[str]:
    return [label.text for label in picture.labels]


@pytest.mark.parametrize(
    ("spec", "rank", "bars"),
    [
        ("data, None", 2, [(4, 0), (1, NOT_SPLIT_GROUP)]),
        ("None, (data, model)", 2, [(1, NOT_SPLIT_GROUP), (4, 0), (2, 1)]),
        ("", 0, []),
        ("data", 3, [(4, 0), (1, NOT_SPLIT_GROUP), (1, NOT_SPLIT_GROUP)]),
        ("None, None, None, None, model", 5, [(1, NOT_SPLIT_GROUP)] * 4 + [(2, 1)]),
        ("wide", 1, [(MOST_PARTS, 2)]),
    ],
)
def test_a_bar_has_a_part_for_every_part_and_the_colour_of_its_axis(spec, rank, bars):
    mesh = make_mesh(data=4, model=2, wide=512)
    parts = spec_bars(Spec.parse(spec), rank, mesh, 100)
    assert [(p.group) for p in parts] == [group for count, group in bars for _ in range(count)]
    ends = [(p.x, p.x + p.width, p.y, p.y + p.height) for p in parts]
    assert all(0 <= x < end <= 100.001 and 0 <= y < low <= 9.001 for x, end, y, low in ends)


def test_a_plan_has_a_row_a_value_with_its_type_origin_cost_and_line():
    said = words(draw(PLAN))
    for op in PLAN.ops:
        assert sum(text == op.name or text.startswith(f"{op.name}  (") for text in said) == 1
    assert "reduce_1  (loop body × 12)" in said
    wanted = ("data from x, model from w_1", "all-reduce 1 MiB × 12 over model")
    assert {"f32[64, 512]", *wanted, "block.py:31"} <= set(said)


def test_a_long_plan_is_shortened_counted_and_keeps_what_moves_data():
    plan = layers(30)
    kept = {row.op.name for row in value_rows(plan, 40)}
    assert len(kept) == 40
    assert {c.value for c in plan.collectives} <= kept
    assert f"and {len(plan.ops) - 40} more values" in words(draw(plan, limit=40))
    assert len(draw(plan, limit=1000).alt) > len(draw(plan, limit=40).alt)


def test_of_a_long_plan_the_largest_come_first_as_in_its_text():
    plan = layers(30)
    rows = value_rows(plan, 40)
    moved = [sum(c.bytes_in_all for c in row.collectives) for row in rows]
    assert moved == sorted(moved, reverse=True)
    rest = [bytes_per_device(row.op, plan.mesh) for row in rows if not row.collectives]
    assert rest == sorted(rest, reverse=True)
    assert rest[-1] >= max(
        bytes_per_device(op, plan.mesh)
        for op in plan.ops
        if op.name not in {row.op.name for row in rows}
    )


def test_a_refused_program_shows_why():
    for text in ("\n".join(words(draw(REFUSED))), to_text(REFUSED, 200)):
        assert "✗ trace: Both sides contract over model. (block.py:31)" in text


def test_an_explanation_is_drawn_as_its_lines():
    explanation = layers(8).why("tanh_7")
    said = " ".join(" ".join(words(draw(explanation))).split())
    assert all(" ".join(line.split()) in said for line in explanation.summary)
    assert all(line in to_text(explanation, 400, full=True) for line in explanation.lines)


def test_what_an_edit_changes_stands_before_and_after():
    before, after = layers(1), layers(2)
    moved = before.op("tanh").spec
    ops = tuple(
        PlannedOp("tanh", "op", "tanh", op.op, shape=op.shape, spec=Spec.parse("None, model"))
        if op.name == "tanh"
        else op
        for op in before.ops
    )
    said = words(draw(before.diff(dataclasses.replace(before, ops=ops, collectives=()))))
    assert f"tanh: {moved} -> P(None, 'model')" in said
    assert "Lost: all-reduce that sends 1 MiB over model for reduce (block.py:30)" in said
    grown = words(draw(before.diff(after)))
    assert any(text.startswith("New: tanh_1") for text in grown)
    assert any(text.startswith("Gained: all-reduce that sends 1 MiB") for text in grown)


def test_a_comparison_has_a_bar_for_every_change_true_to_length():
    before = [Collective("all-reduce", ("data",), 1 << 20, op="a")]
    after = [Collective("all-reduce", ("data",), 1 << 20, op="a"),
             Collective("all-gather", ("model",), 1 << 19, op="b")]  # fmt: skip
    found = compare(before, after)
    tiles = draw(found).tiles
    added, kept = map(str, found.ordered)
    lengths = dict(zip((added, kept), tiles.width.tolist(), strict=True))
    assert lengths[kept] == 2 * lengths[added]
    assert {added, kept} <= set(words(draw(found)))


def test_stages_are_one_below_the_other_with_what_changed_between_them():
    stages = Stages(PROGRAM, PLAN, ON_STAGES)
    picture = draw(stages)
    said = words(picture)
    lines = [next(i for i, text in enumerate(said) if text.startswith(n)) for n in STAGES]
    assert lines == sorted(lines)
    assert stages.between("partitioned", "compiled").short in " ".join(said)
    reached = [stage.without_error.collectives or () for stage in stages.all]
    assert len(picture.tiles) == sum(map(len, reached))


def _ops(*scopes: tuple[str, ...], **more) -> list[PlannedOp]:
    return [
        PlannedOp(f"v{i}", "op", scope=("jit(f)", *scope), operands=("x",), **more)
        for i, scope in enumerate(scopes)
    ]


SCOPES = {
    "a module": (("jvp(mlp)",), ("mlp",)),
    "a nested call": (("jvp(block)", "jit(relu)"), ("block", "relu")),
    "a layer in a scan": (("jvp(model)", "while", "body", "closed_call", "layer"),
                          ("model", "loop", "layer")),
    "made again for the backward pass": (("model", "checkpoint", "rematted_computation", "layer"),
                                         ("model", "computed again", "layer")),
    "jax's own helpers": (("model", "jit(_where)"), ("model",)),
}  # fmt: skip


@pytest.mark.parametrize("name", SCOPES)
def test_calls_are_named_as_the_program_names_them(name):
    scope, path = SCOPES[name]
    rest = PlannedOp("z", "op", scope=("jit(f)", "head"), operands=("x",))
    assert call_paths([*_ops(*[scope] * 5), rest])[:5] == [path] * 5


def test_calls_of_a_program_without_names_are_its_functions():
    def called(name, count, stack, calls):
        return [PlannedOp(f"{name}{i}", "op", stack=stack, calls=calls, operands=("x",))
                for i in range(count)]  # fmt: skip

    first = called("a", 4, ("mlp.py:9", "f.py:17", "f.py:3"), ("f", "block", "mlp"))
    second = called("b", 4, ("mlp.py:9", "f.py:18", "f.py:3"), ("f", "block", "mlp"))
    listed = called("c", 4, ("n.py:2", "f.py:19", "f.py:3"),
                    ("block", "<listcomp>", "norm"))  # fmt: skip
    outside = called("d", 1, ("f.py:20", "f.py:3"), ("f", "block"))
    assert call_paths([*first, *second, *outside]) == [("mlp",)] * 4 + [("mlp (2)",)] * 4 + [()]
    assert call_paths([*listed, *called("e", 1, ("f.py:20",), ("block",))]) == [
        *[("norm",)] * 4, ()
    ]  # fmt: skip
