"""What a plan says of every value, held against what XLA wrote down after it had propagated."""

from __future__ import annotations

import dataclasses

import pytest

from shardviz.base.partition_spec import Spec
from tests.stages.programs import CASES
from tests.stages.propagated import CONSTANT, UNREAD, compare
from tests.stages.shardings import Blocks, of_spec, of_text, replicated

AXES, SIZES = ("a", "b"), (2, 2)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_value_is_split_as_xla_says(case, dumped):
    for mesh in case.meshes:
        entry = dumped[case.name, mesh]
        assert entry.plan.ok, entry.plan.error
        found = compare(entry)
        assert found.differences == [], mesh
        assert found.compared > 1


def test_hardly_a_value_was_left_out(dumped):
    found = [compare(entry) for entry in dumped.values()]
    compared = sum(f.compared + f.by_shape.total() for f in found)
    missed = [key for f in found for keys in f.ours_only.values() for key in keys]
    assert compared > 2000
    assert len(missed) < 0.04 * compared
    assert sum(key.shape != () for key in missed) < 0.01 * compared
    assert {kind for f in found for kind in f.ours_only} <= {UNREAD, CONSTANT, "pad"}
    # What is not there in our words: how XLA broadcasts, the parts of functions like `erfc`, and
    # what a loop only passes on, such as the stacked weights of a scan: ours reads it from outside.
    theirs = {key.opcode for f in found for key in f.theirs_only}
    assert theirs <= {"broadcast", "iota", "compare", "is-finite", "while"}
    assert sum(f.manual for f in found) > 0
    assert sum(f.by_shape.total() for f in found) < 0.1 * compared


def test_only_conflicts_on_one_operation_are_resharded_in_between(dumped):
    assert {name for (name, _), entry in dumped.items() if compare(entry).resharded} <= {
        "concatenate, split differently"
    }


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("dot_general", "P('model', 'data')"), ("dot_general", "P(None, None)"), ("w", "P('data')")],
)
def test_a_wrong_plan_is_found(name, wrong, dumped):
    entry = dumped["matmul, gradient by both", "data=4, model=2"]
    ops = [
        dataclasses.replace(op, spec=Spec.parse(wrong)) if op.name == name else op
        for op in entry.plan.ops
    ]
    changed = dataclasses.replace(entry, plan=dataclasses.replace(entry.plan, ops=tuple(ops)))
    assert len(compare(changed).differences) == 1


BLOCKS = {
    "replicated": ("", [1, 1], [(0, 0)] * 4),
    "one axis": ("a", [2, 1], [(0, 0), (0, 0), (1, 0), (1, 0)]),
    "two dimensions": ("b, a", [2, 2], [(0, 0), (1, 0), (0, 1), (1, 1)]),
    "two axes, major first": ("(b, a)", [4, 1], [(0, 0), (2, 0), (1, 0), (3, 0)]),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_a_spec(name):
    text, parts, held = BLOCKS[name]
    assert of_spec(Spec.parse(text), 2, AXES, SIZES) == Blocks(tuple(parts), tuple(held))


def test_blocks_of_parts_of_an_axis():
    halves = [of_spec(Spec(((f"a:({before})2",),)), 1, ("a",), (4,)) for before in (1, 2)]
    assert [h.held for h in halves] == [
        ((0,), (0,), (1,), (1,)),
        ((0,), (1,), (0,), (1,)),
    ]


def test_blocks_of_shardys_text():
    text = '<@mesh, [{"b", "a"}, {}]>'
    assert of_text(text, 2, AXES, SIZES) == of_spec(Spec.parse("(b, a)"), 2, AXES, SIZES)
    assert of_text("", 2, AXES, SIZES) == replicated(2, 4)
    part = '<@mesh, [{"a":(1)2, ?}, {?}], replicated={"b"}>'
    assert of_text(part, 2, ("a", "b"), (4, 2)).parts == (2, 1)
