"""Facts that a collective takes from an earlier stage, with collectives counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardviz.base.cause import UNKNOWN, Gathered, Reduced, ValueName, Written
from shardviz.base.collective import Collective, Member
from shardviz.compiled.inherited import _with, inherited

W, X = ValueName("argument", "w"), ValueName("argument", "x")
SIN = ValueName("operation", "sin", "f.py:4")
CAUSE = Gathered("all-gather", ("data",), operand=W)


def total(axes: str, shape: str, size: int, **facts: object) -> Collective:
    return Collective("all-reduce", tuple(axes.split()), size, shape=shape, **facts)


def members(c: Collective) -> list[tuple[object, int, str]]:
    return [(m.operand, m.bytes_per_device, m.shape) for m in c.members]


# --- members of a combined collective, by size ----------------------------------------

LARGE = total("data", "f32[8,8]", 256, operand=W)
SMALL = total("data", "f32[4,8]", 128, operand=X)
# The later collective, the earlier ones, and its members: operand, bytes and shape.
BY_SIZE = {
    "two arrays": (
        total("data", "f32[96]", 384), [SMALL, LARGE],
        [(W, 256, "f32[8,8]"), (X, 128, "f32[4,8]")]),
    "two arrays in half the bits": (
        total("data", "bf16[96]", 192), [LARGE, SMALL],
        [(W, 128, "f32[8,8]"), (X, 64, "f32[4,8]")]),
    "one array over one axis after another": (
        total("data model", "f32[8,8]", 256), [LARGE, replace(LARGE, mesh_axes=("model",))],
        [(W, 256, "f32[8,8]")]),
    "two arrays, of which one over two axes": (
        total("data model", "f32[96]", 384),
        [replace(LARGE, mesh_axes=("model",)), LARGE, SMALL],
        [(W, 256, "f32[8,8]"), (X, 128, "f32[4,8]")]),
    "one number over two axes": (
        total("data model", "f32[]", 4),
        [total("data", "f32[]", 4, operand=X), total("model", "f32[]", 4, operand=X)],
        [(X, 4, "f32[]")]),
    "sums that were added": (
        total("data", "f32[96]", 384),
        [replace(LARGE, added_in="z"), replace(LARGE, added_in="z", operand=SIN), SMALL],
        [(SIN, 256, "f32[8,8]"), (X, 128, "f32[4,8]")]),
    "three times through a loop": (
        total("data", "f32[224]", 896), [replace(LARGE, in_loop=True, trips=3), SMALL],
        [(W, 768, ""), (X, 128, "f32[4,8]")]),
    "other sizes": (total("data", "f32[97]", 388), [LARGE, SMALL], []),
    "no numbers": (
        total("data", "f32[0]", 0),
        [total("data", "f32[0]", 0, operand=W), total("data", "f32[0]", 0, operand=X)], []),
    "one earlier collective": (total("data", "f32[8,8]", 256, operand=UNKNOWN), [LARGE], []),
    "an operand that is known": (total("data", "f32[96]", 384, operand=X), [LARGE, SMALL], []),
}  # fmt: skip


@pytest.mark.parametrize(("new", "old", "expected"), BY_SIZE.values(), ids=BY_SIZE)
def test_members_are_inferred_from_sizes(new, old, expected):
    found = _with(new, old, "combined")
    assert members(found) == expected
    if expected:
        assert (found.operand, found.bytes_per_device) == (expected[0][0], new.bytes_per_device)
        # Nothing is inferred if the compiler did not combine them.
        assert _with(new, old, "changed").members == ()


def test_an_unknown_operand_is_none_or_unknown():
    for operand in (None, UNKNOWN):
        new = replace(BY_SIZE["two arrays"][0], operand=operand)
        assert len(_with(new, [LARGE, SMALL], "combined").members) == 2


# --- members that the compiler names --------------------------------------------------


def member(shape: str, size: int, operand: ValueName = UNKNOWN, source: str = "") -> Member:
    return Member("", source, size, shape, operand)


AT_4, AT_5 = replace(LARGE, source="f.py:4"), replace(LARGE, source="f.py:5", operand=X)
# Members of the later collective, the earlier ones, and the operands that the members get.
NAMED = {
    "by size": ([member("f32[8,8]", 256), member("f32[4,8]", 128)], [SMALL, LARGE], [W, X]),
    "by line": (
        [member("f32[8,8]", 256, source="f.py:5"), member("f32[8,8]", 256, source="f.py:4")],
        [AT_4, AT_5], [X, W]),
    "two of equal size": ([member("f32[8,8]", 256)] * 2, [AT_4, AT_5], [UNKNOWN, UNKNOWN]),
    "two that are alike": ([member("f32[8,8]", 256)] * 2, [LARGE, LARGE], [W, W]),
    "two from one": ([member("f32[8,8]", 256)] * 2, [LARGE], [W, UNKNOWN]),
    "one that is known among two": (
        [member("f32[8,8]", 256, X), member("f32[8,8]", 256)], [AT_4, AT_5], [X, W]),
    "another size": ([member("f32[8,4]", 128)], [LARGE], [UNKNOWN]),
    "another argument": ([member("f32[8,8]", 256, X)], [LARGE], [X]),
}  # fmt: skip


@pytest.mark.parametrize(("arrays", "old", "operands"), NAMED.values(), ids=NAMED)
def test_members_come_from_collectives_of_their_size(arrays, old, operands):
    new = total("data", "", 512, members=tuple(arrays), operand=arrays[0].operand)
    found = _with(new, old, "combined")
    assert [m.operand for m in found.members] == operands
    assert [m.bytes_per_device for m in found.members] == [m.bytes_per_device for m in arrays]
    assert found.operand == operands[0]


def test_the_largest_member_comes_first():
    arrays = (member("f32[4,8]", 128), member("f32[8,8]", 256))
    found = _with(total("data", "", 384, members=arrays), [AT_4, SMALL], "combined")
    assert members(found) == [(W, 256, "f32[8,8]"), (X, 128, "f32[4,8]")]
    assert (found.operand, found.source) == (W, "f.py:4")


# --- one collective from one ----------------------------------------------------------

OLD = Collective(
    "all-gather", ("data",), 256, "jit(f)/sin", "f.py:4", shape="f32[8,8]", operand=W, cause=CAUSE
)
# The later collective, how it changed, and whether it inherits operand and cause.
ONE = {
    "the same": ({}, "kept", True),
    "half the bits": ({"bytes_per_device": 128, "shape": "bf16[8,8]"}, "changed", True),
    "fewer numbers": ({"bytes_per_device": 128, "shape": "f32[4,8]"}, "changed", True),
    "more numbers": ({"bytes_per_device": 512, "shape": "f32[16,8]"}, "changed", False),
    "more numbers, out of a loop": (
        {"bytes_per_device": 512, "shape": "f32[16,8]"}, "hoisted", True),
    "other axes": ({"mesh_axes": ("model",)}, "kept", False),
    "another line": ({"source": "f.py:5"}, "kept", False),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "kind", "inherits"), ONE.values(), ids=ONE)
def test_one_collective_inherits_operand_and_cause(changes, kind, inherits):
    new = replace(OLD, operand=UNKNOWN, cause="", **changes)
    found = _with(new, [OLD], kind)
    assert (found.operand, found.cause) == ((W, CAUSE) if inherits else (UNKNOWN, ""))


# Operation and line of the later collective, and what it has afterwards.
LOST = {
    "both": ("", "", ("jit(f)/sin", "f.py:4")),
    "a name of the compiler": ("all-gather.1", "", ("jit(f)/sin", "f.py:4")),
    "the line": ("jit(f)/cos", "", ("jit(f)/cos", "f.py:4")),
    "neither": ("jit(f)/cos", "f.py:5", ("jit(f)/cos", "f.py:5")),
    "the name": ("", "f.py:5", ("", "f.py:5")),
}


@pytest.mark.parametrize(("op", "source", "expected"), LOST.values(), ids=LOST)
def test_an_operation_and_a_line_that_the_compiler_lost(op, source, expected):
    old = replace(OLD, stack=("f.py:4", "g.py:1"))
    found = _with(replace(OLD, op=op, source=source), [old], "kept")
    assert (found.op, found.source) == expected
    assert found.stack == (old.stack if not source else ())
    # There is nothing to take from a collective without a line.
    kept = _with(replace(OLD, op=op, source=source), [replace(OLD, source="")], "kept")
    assert (kept.op, kept.source) == (op, source)


def test_a_gather_that_rematerialises_still_does():
    old, new = replace(OLD, rematerialises=True), replace(OLD, operand=X, cause="mine")
    # The operands differ, so only this cause is inherited.
    found = _with(new, [old], "kept")
    assert (found.rematerialises, found.cause, found.operand) == (True, CAUSE, X)
    assert _with(new, [replace(old, cause="")], "kept").cause == "mine"
    assert not _with(new, [OLD], "kept").rematerialises
    known = replace(new, rematerialises=True)
    assert _with(known, [old], "kept").cause == "mine"


def test_several_that_became_several_others_inherit_nothing():
    # One line of two gathers becomes one of two others: no pair is certain.
    one, two = (
        replace(OLD, operand=W),
        replace(OLD, operand=X, bytes_per_device=512, shape="f32[128]"),
    )
    later = [
        replace(OLD, operand=UNKNOWN, cause="", bytes_per_device=size, shape=shape)
        for size, shape in ((128, "f32[32]"), (384, "f32[96]"))
    ]
    assert [c.operand for c in inherited([one, two], later)] == [UNKNOWN, UNKNOWN]
    # One that became one other does inherit.
    (alone,) = inherited([one], [replace(later[0], shape="bf16[8,8]")])
    assert alone.operand == W


def test_another_kind_inherits_only_as_a_step_of_a_split_collective():
    old = replace(OLD, operand=W)
    crossing = replace(
        OLD,
        kind="collective-permute",
        between_slices=True,
        operand=UNKNOWN,
        cause="",
        op="",
        source="",
    )
    inside = replace(OLD, operand=UNKNOWN, cause="")
    found = inherited([old], [inside, crossing])
    assert [(c.kind, c.operand, c.source) for c in found] == [
        ("all-gather", W, "f.py:4"),
        ("collective-permute", W, "f.py:4"),
    ]


def test_a_sum_that_the_program_calls_keeps_its_cause_as_another_kind():
    own = Written("reduce-scatter", ("data",), operand=SIN)
    old = replace(
        total("data", "f32[4,8]", 256, operand=SIN, source="f.py:4", cause=own),
        kind="reduce-scatter",
    )
    reduced = Reduced("all-reduce", ("data",), operand=SIN)
    new = total("data", "f32[8,8]", 256, operand=SIN, source="f.py:4", cause=reduced)
    assert [c.cause for c in inherited([old], [new])] == [own]
    # XLA's own sum has the cause of its new kind.
    planned = replace(old, cause=replace(reduced, kind="reduce-scatter"))
    assert [c.cause for c in inherited([planned], [new])] == [reduced]
