"""The four stages: collectives of two stages matched, and what is not known."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from itertools import groupby
from typing import Any

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardviz.base.array_spec import ArraySpec
from shardviz.base.cause import UNKNOWN, Gathered, ValueName
from shardviz.base.collective import Collective
from shardviz.base.collective_kind import COLLECTIVE_KINDS
from shardviz.base.errors import ProgramError
from shardviz.base.mesh import make_mesh
from shardviz.compiled.comparison import CHANGES, compare
from shardviz.compiled.inherited import inherited
from shardviz.compiled.report import Report
from shardviz.compiled.stages import STAGES, Stages
from shardviz.plans.plan import Plan
from shardviz.plans.plan_values import PlannedOp
from shardviz.programs.failure import Failure
from shardviz.programs.program import Program
from tests.propagation.planning import plan

KB = 1024
W_IN = ValueName("argument", "w_in")
CAUSE = Gathered("all-gather", ("data",), operand=W_IN)


def one(kind="all-reduce", axes=("data",), kilobytes=1, **more):
    more = {"op": "jit(f)/dot_general", "source": "f.py:3", "group_size": 4, **more}
    return Collective(kind, axes, kilobytes * KB, **more)


def loop(trips: int | None = 10, **more):
    return one(in_loop=True, trips=trips, **more)


def sums(count, **more):
    return [one(op=f"jit(f)/op{i}", source=f"f.py:{i}", shape="f32[256]", **more)
            for i in range(count)]  # fmt: skip


TUPLE = one(kilobytes=3, op="jit(f)/op0", shape="(f32[256], f32[256], f32[256])")
FLAT = one(kilobytes=3, op="", source="", shape="f32[768]")

# Case: before, after, and the kinds of its changes in order.
CASES = {
    "nothing": ([], [], []),
    "kept": ([one()], [one()], ["kept"]),
    "kept, its operation lost": ([one()], [one(op="", source="")], ["kept"]),
    "kept, distinguished by operation": (
        [one(op="a"), one(op="b")], [one(op="b"), one(op="a")], ["kept", "kept"]),
    "asynchronous": ([one()], [one(is_async=True)], ["made asynchronous"]),
    "combined, end to end": (sums(3), [FLAT], ["combined"]),
    "combined, and one beside": (
        [*sums(3), one(kilobytes=8)], [TUPLE, one(kilobytes=8)], ["combined", "kept"]),
    "combined and asynchronous": (sums(3), [replace(TUPLE, is_async=True)], ["combined"]),
    "combined and hoisted": (
        [loop(op=f"op{i}", shape="f32[256]") for i in range(3)], [TUPLE], ["combined"]),
    "sums over one axis each": (
        [one(), one(axes=("model",))], [one(axes=("data", "model"))], ["combined"]),
    "hoisted": ([loop()], [one()], ["hoisted"]),
    "hoisted, for all iterations at once": ([loop()], [one(kilobytes=10)], ["hoisted"]),
    "unrolled outside": ([loop(2)], [one(), one()], ["split"]),
    "split by axis": (
        [one(axes=("data", "model"))], [one(axes=("data",)), one(axes=("model",))], ["split"]),
    "scattered": ([one()], [one("reduce-scatter")], ["changed"]),
    "sent round": (
        [one("all-gather", kilobytes=4)], [loop(3, kind="collective-permute")], ["changed"]),
    "another type": ([one(shape="bf16[512]")], [one(kilobytes=2, shape="f32[512]")], ["changed"]),
    "removed, a twin stays": ([one(), one()], [one()], ["kept", "removed"]),
    "moved elsewhere": ([one(op="a", source="a.py:1")], [one("all-gather", op="b", source="")],
                        ["removed", "added"]),
    "packed out of a loop": (
        [loop(3, shape="f32[256]"), loop(3, shape="f32[256]", op="b", source="b.py:1")],
        [one(kilobytes=6, shape="f32[1536]", op="while", source="")], ["combined"]),
    "packed over two axes": (
        [loop(3, axes=("seq",), shape="f32[256]"), loop(3, axes=("data",), shape="f32[256]")],
        [one(axes=("data", "seq"), kilobytes=3, shape="f32[768]", op="while", source="")],
        ["combined"]),
    "packed under the name of the smallest": (
        [one(), one(kilobytes=6, op="b", source=""), one(kilobytes=5, op="c", source="")],
        [one(kilobytes=12)], ["combined"]),
    "peeled": ([loop(op="a")], [loop(9, op="b", source=""), one(op="", source="")], ["split"]),
    "combined and scattered": (
        [loop(op=f"op{i}", shape="f32[256]") for i in range(2)],
        [loop(kind="reduce-scatter", kilobytes=2, op="op1", shape="(f32[64], f32[64])")],
        ["combined"]),
    "each with the numbers of the other": (
        [one("all-gather", kilobytes=4, op="a", shape="f32[1024]"),
         one("all-gather", kilobytes=32, op="b", shape="f32[8192]")],
        [one("all-gather", kilobytes=8, op="a", shape="bf16[4096]"),
         one("all-gather", kilobytes=1, op="b", shape="bf16[512]")],
        ["changed"]),
    "at one line, over other axes": (
        [one("all-gather")], [one("all-gather", axes=("model",))], ["removed", "added"]),
    "less than before, elsewhere": (
        [one(op="a", source="a.py:1"), one(kilobytes=2, op="b", source="b.py:1")],
        [one(kilobytes=5, op="c", source=""), one("all-gather")], ["changed", "added"]),
    "added up first": (
        [one(name=n, added_in="add.3", shape="f32[256]") for n in "abcd"],
        [one(op="jit(f)/add", shape="f32[256]", source="f.py:9")], ["combined"]),
    "rematerialised": ([one("all-gather")], [one("all-gather", rematerialises=True)], ["kept"]),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "kinds"), CASES.values(), ids=CASES)
def test_what_became_of_them(before, after, kinds):
    found = compare(before, after)
    assert [c.kind for c in found.changes] == kinds
    assert found.same == (set(kinds) <= {"kept"})
    # Each has a sentence, whatever the stages are.
    for names in itertools.pairwise(STAGES):
        assert all(str(c).endswith(".") for c in compare(before, after, names).changes)


def reason(before, after):
    (change,) = compare(before, after).changes
    assert change.kind == "combined"
    return str(change).partition("): ")[2]


def test_sums_that_are_sent_side_by_side_are_not_said_to_be_added_up_first():
    added = [one(name=n, added_in="add.3", shape="f32[256]") for n in "ab"]
    apart = [one(name=n, shape="f32[256]") for n in "ab"]
    tuple_of_two = [one(kilobytes=2, shape="(f32[256], f32[256])")]
    assert reason(added, tuple_of_two) == reason(apart, tuple_of_two) != ""
    assert reason(added, [one(shape="f32[256]")]) != reason(added, tuple_of_two)


def test_an_estimate_that_was_right_is_called_as_planned():
    found = compare([one()], [one()], names=("propagated", "partitioned"))
    assert (found.same, found.short) == (True, "as planned")


def test_an_estimate_that_was_wrong_is_replaced_whatever_it_is():
    planned = [one("all-to-all"), one("all-to-all"), one("all-to-all")]
    made = [one("all-gather", kilobytes=8, rematerialises=True)]
    (change,) = compare(planned, made, names=("propagated", "partitioned")).changes
    assert (change.kind, change.before, change.after) == ("changed", tuple(planned), tuple(made))


PRODUCTS = {
    "equal": (lambda x, w: (jnp.tanh(x @ w), jnp.sin(x @ w)), ("dot_general", "dot_general_1")),
    "of different arrays": (lambda x, w: (jnp.tanh(x @ w), jnp.sin((x + 1) @ w)), ()),
}


@pytest.mark.parametrize(("fn", "equal"), PRODUCTS.values(), ids=PRODUCTS)
def test_a_sum_is_gone_where_xla_computes_one_of_two_equal_products(fn, equal):
    planned = plan(fn, x=((16, 64), "data, model"), w=((64, 32), "model, None"))
    before, names = planned.collectives, ("propagated", "partitioned")
    (change,) = compare(before, before[:1], names, planned).of("removed")
    assert change.equal_values == equal
    assert all(name in str(change) for name in equal)
    # If both are gone, another reason explains it.
    gone = compare(before, [], names, planned).of("removed")
    assert [change.equal_values for change in gone] == [(), ()]


collectives = st.builds(
    Collective,
    kind=st.sampled_from(COLLECTIVE_KINDS),
    mesh_axes=st.sampled_from([(), ("data",), ("model",), ("data", "model")]),
    bytes_per_device=st.sampled_from([4, 1024, 2048, 3072]),
    op=st.sampled_from(["", "jit(f)/a", "jit(f)/b"]),
    source=st.sampled_from(["", "f.py:1", "f.py:2"]),
    is_async=st.booleans(),
    in_loop=st.booleans(),
    shape=st.sampled_from(["", "f32[256]", "bf16[256]", "(f32[256], f32[256])", "f32[512]"]),
    trips=st.sampled_from([None, 1, 2, 4]),
    rematerialises=st.booleans(),
    added_in=st.sampled_from(["", "", "add.1"]),
)
some = st.lists(collectives, max_size=9)


@settings(max_examples=150, deadline=None)
@given(some, some)
def test_every_collective_stands_in_exactly_one_change(before, after):
    found = compare(before, after)
    assert Counter(c for change in found.changes for c in change.before) == Counter(before)
    assert Counter(c for change in found.changes for c in change.after) == Counter(after)
    for change in found.changes:
        assert change.kind in CHANGES
        assert bool(change.before) == (change.kind != "added")
        assert bool(change.after) == (change.kind != "removed")


def amounts(some):
    """Numbers in all by family and axis: what a sum over two axes adds up counts for each."""
    found = Counter()
    for c in some:
        family = "sum" if c.kind in ("all-reduce", "reduce-scatter") else c.kind
        for axis in c.mesh_axes or ("",):
            found[family, axis] += c.bytes_per_device * (c.trips or 1)
    return found


counted = st.lists(
    collectives.filter(lambda c: c.trips).map(lambda c: replace(c, shape="", in_loop=c.trips != 1)),
    max_size=9,
)


@settings(max_examples=150, deadline=None)
@given(counted, counted)
def test_nothing_is_gone_unless_there_is_less_of_it(before, after):
    old, new = amounts(before), amounts(after)
    for change in compare(before, after).of("removed"):
        assert all(new[key] < old[key] for key in amounts(change.before))


@st.composite
def optimised(draw):
    """Collectives, and the same as a compiler leaves them: packed, hoisted, peeled, renamed."""
    before = draw(counted)
    after = []
    for (kind, axes), some in groupby(sorted(before, key=_family), _family):
        left = list(some)
        while left:
            packed = [left.pop() for _ in range(min(len(left), draw(st.integers(1, 3))))]
            size = sum(c.bytes_per_device * c.trips for c in packed)
            first = replace(packed[0], kind=kind, mesh_axes=axes)
            if draw(st.booleans()):
                first = replace(first, op=draw(st.sampled_from(["", "x"])), source="")
            if len(packed) == 1 and first.trips > 1 and draw(st.booleans()):
                after.append(replace(first, trips=first.trips - 1))
                size = first.bytes_per_device
            after.append(replace(first, bytes_per_device=size, in_loop=False, trips=1))
    return before, draw(st.permutations(after))


def _family(c):
    return c.kind, c.mesh_axes


@settings(max_examples=150, deadline=None)
@given(optimised())
def test_nothing_is_gone_where_all_is_packed_hoisted_or_peeled(sides):
    assert amounts(sides[0]) == amounts(sides[1])
    assert not compare(*sides).of("removed")


@pytest.mark.parametrize(("trips", "words"), [
    (10, "Moved out of its loop: an all-reduce"), (None, "No longer in a loop: an all-reduce"),
])  # fmt: skip
def test_a_collective_of_an_unrolled_loop_is_not_said_to_run_once(trips, words):
    (change,) = compare([loop(trips)], [one()]).changes
    assert change.kind == "hoisted"
    assert str(change).startswith(words)
    assert ("runs once" in str(change)) == (trips is not None)


@settings(max_examples=100, deadline=None)
@given(some, st.randoms())
def test_a_program_is_the_same_as_itself_in_any_order(before, random):
    other = list(before)
    random.shuffle(other)
    assert compare(before, other).same or {c.kind for c in compare(before, other).changes} <= {
        "kept", "made asynchronous", "split"
    }  # fmt: skip
    assert compare(before, before).same


@settings(max_examples=100, deadline=None)
@given(some, some)
def test_what_is_inherited_changes_no_number(before, after):
    result = inherited(before, after)
    blank = {"op": "", "source": "", "stack": (), "cause": "", "value": "", "rematerialises": False}
    assert [replace(c, **blank) for c in result] == [replace(c, **blank) for c in after]
    for new, old in zip(result, after, strict=True):
        assert new.rematerialises >= old.rematerialises
        assert new.source == (old.source or new.source)


def test_a_final_program_inherits_what_only_the_partitioner_tells():
    gather = one("all-gather", rematerialises=True, cause=CAUSE)
    (result,) = inherited([gather], [one("all-gather", is_async=True)])
    assert (result.rematerialises, result.cause) == (True, CAUSE)


def test_a_final_program_inherits_the_place_where_the_compiler_lost_it():
    placed = one(op="jit(f)/dot_general", source="f.py:3", stack=("f.py:3", "g.py:1"))
    (result,) = inherited([placed], [one(op="w", source="")])
    assert (result.op, result.source) == ("jit(f)/dot_general", "f.py:3")
    assert result.stack == ("f.py:3", "g.py:1")


def test_a_peeled_iteration_has_the_operand_of_its_own_loop_or_none():
    place: Any = {"kind": "all-gather", "op": "while/body/dot_general"}
    x = loop(4, axes=("tensor",), operand=UNKNOWN, **place)
    w = loop(4, axes=("fsdp",), operand=W_IN, cause=CAUSE, **place)
    peeled = one(axes=("tensor",), operand=UNKNOWN, **place)
    for result in inherited([x, w], [replace(x, trips=3), peeled]):
        assert (result.operand, result.cause) == (UNKNOWN, "")


WRONG = {
    "a stage": lambda: STAGES_OF.stage("compield"),
    "not compiled": lambda: STAGES_OF.between("propagated", "compiled"),
    "requested": lambda: STAGES_OF.between("requested", "propagated"),
}

PROGRAM = Program(abs, (ArraySpec("x", (8,)),), make_mesh(data=4))
PLAN = Plan("abs", PROGRAM.mesh, (PlannedOp("x", "argument"),), (one(),), trace_s=0.004)
STAGES_OF = Stages(PROGRAM, PLAN)


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_what_cannot_be_compared_is_refused(call):
    with pytest.raises(ProgramError):
        call()


def test_four_stages():
    report = Report("abs", "cpu × 4", partitioned=(one(), one("all-gather")),
                    collectives=(one(is_async=True),), partition_s=0.25, compile_s=1.5)  # fmt: skip
    stages = Stages(PROGRAM, PLAN, report)
    assert [r.name for r in stages.all] == list(STAGES)
    assert [r.state for r in stages.all] == ["known"] * 4
    lines = str(stages).splitlines()
    sums = ["", *(s.sum for s in stages.all[1:])]
    assert all(part in line for part, line in zip(sums, lines[0:2] + lines[3::2], strict=True))
    assert stages.between("partitioned", "compiled").short == "1 made asynchronous, 1 removed"
    assert repr(stages) == "Stages(abs: propagated, partitioned, compiled)"
    assert stages.compiled.seconds == 1.5
    cached = Stages(PROGRAM, PLAN, replace(report, cache_hit=True, compile_s=0.0))
    assert cached.compiled.seconds is None


def test_a_stage_that_failed_says_why():
    error, failed = Failure("trace", "No such axis."), Failure("compile", "Out of memory.")
    stages = Stages(PROGRAM, replace(PLAN, error=error), Report("abs", "cpu × 4", error=failed))
    assert (stages.propagated.state, stages.propagated.about) == ("failed", error)
    for stage in (stages.compiled, stages.partitioned):
        assert (stage.state, stage.about, stage.sum) == ("failed", failed, "")
        assert not stage.has("collectives")
    assert not stages.propagated.has("collectives")
    assert repr(stages) == "Stages(abs: requested only)"


def test_stages_that_are_not_there_yet():
    assert [s.state for s in Stages(PROGRAM).all] == ["known", *["not yet"] * 3]
    without = Stages(PROGRAM, None, Report("abs", "cpu × 4", collectives=()))
    assert [s.state for s in without.all[2:]] == ["nothing left", "known"]
    assert without.compiled.sum == "no collectives"
