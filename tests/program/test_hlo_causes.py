"""What collectives are about, in kept modules of three compilers and in ones written by hand."""

from __future__ import annotations

import pytest

from shardviz.base.cause import CAUSES, UNKNOWN, Summed, ValueName
from shardviz.base.collective import Collective, Member
from shardviz.compiled.inherited import inherited
from shardviz.compiled.read_collectives import read_collectives
from tests.program.hlo import VERSIONS, kept, parsed

MESH = (("data", "model"), (4, 2))


def read(version, name):
    return read_collectives(kept(version, name), *MESH)


def argument(name):
    return ValueName("argument", name)


def operation(name, line):
    return ValueName("operation", name, line)


PARAMS = [ValueName("slice", f"params[{n}]") for n in range(2)]
PRODUCT = operation("dot_general", "model.py:26")
PRODUCTS = [operation("dot_general", f"model.py:{line}") for line in (85, 86)]
OPERANDS = {
    "cpu-fsdp": [argument("params[0]"), argument("params[1]"), argument("params[1]"), *PRODUCTS,
                 PRODUCTS[1]],
    "tpu-layers": [*PARAMS, *PARAMS, PRODUCT, PRODUCT, PRODUCT, PRODUCT],
    "cpu-kinds": [argument("x")] * 5,
    "cpu-nested": [ValueName("carried", "", "model.py:60")],
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", OPERANDS)
def test_operands_after_the_partitioner(version, name):
    found = [c.operand for c in read(version, f"{name}-partitioned")]
    assert sorted(found, key=repr) == sorted(OPERANDS[name], key=repr)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("chip", ["cpu", "gpu", "tpu"])
def test_combined_sums_of_three_compilers_have_their_members(version, chip):
    before, after = (read(version, f"{chip}-sums-{stage}") for stage in ("partitioned", "compiled"))
    combined = [c for c in inherited(before, after) if c.members]
    assert combined
    assert sum(len(c.members) for c in combined) == len(before) == 8
    for c in combined:
        sizes = [m.bytes_per_device for m in c.members]
        assert sizes == sorted(sizes, reverse=True)
        assert sum(sizes) == c.bytes_per_device
        first = c.members[0]
        assert (c.op, c.source, c.phase) == (first.op, first.source, "backward")
        assert {m.source for m in c.members} == {"model.py:75"}
        assert UNKNOWN not in {m.operand for m in c.members}


HEAD = """HloModule f

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

ENTRY %main {
  %p = f32[8,8]{1,0} parameter(0), metadata={op_name="params['w']"}
  %q = f32[8,8]{1,0} parameter(1), metadata={op_name="x"}
  %i = s32[] parameter(2)
  %zero = f32[] constant(0)
"""
NAMED = 'metadata={op_name="jit(f)/%s" source_file="/home/me/f.py" source_line=%d}'
DOT, REMAT = NAMED % ("dot_general", 3), NAMED % ("remat2", 7)
LOOKUP = NAMED % ("gather", 8)
CUSTOM = 'custom-call(%s), custom_call_target="any"'
SUM = "  ROOT %r = f32[8,8]{1,0} all-reduce(%p), to_apply=%add, "
W, BY_DOT = argument("params['w']"), operation("dot_general", "f.py:3")
BY_LOOKUP = operation("gather", "f.py:8")
# Lines, and what differs of the cause from one without a code.
WRITTEN = {
    "an argument": (
        f"  ROOT %g = f32[32,8]{{1,0}} all-gather(%p), dimensions={{0}}, {DOT}",
        {"code": "gathered", "operand": W, "wanted_by": BY_DOT, "dimension": 0}),
    "what each device has cut out": (
        "  %s = f32[2,8]{1,0} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={2,8}\n"
        f"  ROOT %g = f32[8,8]{{1,0}} all-gather(%s), dimensions={{0}}, {DOT}",
        {"code": "gathered", "operand": W, "wanted_by": BY_DOT, "before": "slice"}),
    "a sum": (
        "  %d = f32[8,8]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0},"
        f" {DOT}\n"
        f"  ROOT %r = f32[8,8]{{1,0}} all-reduce(%d), to_apply=%add, {DOT}",
        {"code": "contracted", "operand": BY_DOT, "reducer": "add"}),
    "the user's own": (
        SUM + NAMED % ("psum", 4),
        {"code": "written", "operand": W, "operation": operation("psum", "f.py:4")}),
    "what the user gathered before": (
        SUM.replace("ROOT ", "") + NAMED % ("psum", 4) + "\n"
        f"  ROOT %g = f32[32,8]{{1,0}} all-gather(%r), dimensions={{0}}, {DOT}",
        {"code": "gathered", "operand": operation("psum", "f.py:4"), "wanted_by": BY_DOT,
         "dimension": 0}),
    "what grad put in": (
        SUM + NAMED % ("shard_map/transpose(jvp())/psum_invariant", 4),
        {"code": "gradient", "operand": W, "operation": operation("psum_invariant", "f.py:4")}),
    "what grad made of the user's own": (
        SUM + NAMED % ("transpose(jvp())/shard_map/psum", 4),
        {"code": "gradient", "operand": W, "operation": operation("psum", "f.py:4")}),
    "the result of an operation": (
        f"  %d = f32[8,8]{{1,0}} {CUSTOM % '%p, %q'}, {LOOKUP}\n"
        f"  %g = f32[32,8]{{1,0}} all-gather(%d), dimensions={{0}}, {LOOKUP}\n"
        f"  ROOT %c = f32[32,8]{{1,0}} tanh(%g), {DOT}",
        {"code": "within", "operand": BY_LOOKUP, "operation": BY_LOOKUP}),
    "the largest of each device": (
        f"  %d = f32[8]{{0}} reduce(%p, %zero), dimensions={{1}}, to_apply=%add, {LOOKUP}\n"
        f"  %g = f32[32]{{0}} all-gather(%d), dimensions={{0}}, {LOOKUP}\n"
        f"  ROOT %c = f32[] reduce(%g, %zero), dimensions={{0}}, to_apply=%add, {LOOKUP}",
        {"code": "within", "operand": BY_LOOKUP, "operation": BY_LOOKUP}),
    "for a constraint": (
        "  ROOT %g = f32[32,8]{1,0} all-gather(%p), dimensions={0}, "
        + NAMED % ("sharding_constraint", 5),
        {"code": "gathered", "operand": W, "dimension": 0,
         "operation": operation("sharding_constraint", "f.py:5"),
         "wanted_by": operation("sharding_constraint", "f.py:5")}),
    "behind a barrier": (  # as jax.checkpoint puts around what it keeps
        f"  %t = (f32[8,8]{{1,0}}, f32[8,8]{{1,0}}) tuple(%q, %p), {REMAT}\n"
        f"  %b = (f32[8,8]{{1,0}}, f32[8,8]{{1,0}}) opt-barrier(%t), {REMAT}\n"
        f"  %e = f32[8,8]{{1,0}} get-tuple-element(%b), index=1, {REMAT}\n"
        f"  ROOT %g = f32[32,8]{{1,0}} all-gather(%e), dimensions={{0}}, {DOT}",
        {"code": "gathered", "operand": W, "wanted_by": BY_DOT, "dimension": 0}),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "expected"), WRITTEN.values(), ids=WRITTEN)
def test_causes_of_each_kind(lines, expected):
    text = f"{HEAD}{lines}\n}}\n".replace("metadata", "replica_groups={{0,1,2,3}}, metadata")
    # Only collectives have groups.
    rows = []
    for line in text.split("\n"):
        if " all-" not in line:
            line = line.replace("replica_groups={{0,1,2,3}}, ", "")
        rows.append(line)
    found = read_collectives(parsed("\n".join(rows)), ("x",), (4,))[-1]
    about = {"operation": BY_DOT, **expected}
    assert found.cause == CAUSES[about.pop("code")](found.kind, ("x",), **about)
    assert found.operand == expected["operand"]


def test_every_cause_has_a_sentence_of_its_own():
    facts = []
    for cause in CAUSES.values():
        wanted = {"wanted_by": BY_DOT} if hasattr(cause, "wanted_by") else {}
        facts.append(cause("all-gather", ("x",), operand=W, operation=BY_LOOKUP, **wanted))
    assert len(set(map(str, facts))) == len(CAUSES)


FIRST_NAME, SECOND_NAME = operation("dot_general", "f.py:3"), operation("dot_general", "f.py:4")


def one(size, operand, source="f.py:3"):
    op, kind = f"jit(f)/{operand.name}", "all-reduce"
    cause = Summed(kind, ("x",), operand=operand)
    shape = f"f32[{size // 4}]"
    return Collective(kind, ("x",), size, op, source, shape=shape, operand=operand, cause=cause)


FIRST, SECOND = one(64, FIRST_NAME), one(64, SECOND_NAME, "f.py:4")


def member(size, operand=UNKNOWN, source="", op=""):
    return Member(op, source, size, f"f32[{size // 4}]", operand)


def combined(*members):
    shape = f"({', '.join(m.shape for m in members)})"
    total = sum(m.bytes_per_device for m in members)
    return Collective("all-reduce", ("x",), total, members=members, shape=shape, operand=UNKNOWN)


def test_members_inherit_what_they_were_by_their_bytes():
    loss = one(4, operation("reduce_sum", "f.py:9"), "f.py:9")
    (found,) = inherited([loss, FIRST], [combined(member(64), member(4))])
    inherits = [(m.operand, m.source, m.cause) for m in found.members]
    assert inherits == [(c.operand, c.source, c.cause) for c in (FIRST, loss)]
    assert (found.operand, found.source, found.cause) == inherits[0]


def test_members_of_one_size_from_two_lines_stay_unknown():
    (found,) = inherited([FIRST, SECOND], [combined(member(64), member(64))])
    assert {(m.operand, m.source) for m in found.members} == {(UNKNOWN, "")}


def test_members_of_one_size_are_found_by_their_operand():
    members = (member(64, SECOND_NAME), member(64, FIRST_NAME))
    (found,) = inherited([FIRST, SECOND], [combined(*members)])
    assert [m.source for m in found.members] == ["f.py:4", "f.py:3"]


def test_another_collectives_operand_is_not_inherited():
    planned, made = one(64, argument("x")), one(64, argument("w_in"))
    (found,) = inherited([planned], [made])
    assert (found.operand, found.cause) == (made.operand, made.cause)
