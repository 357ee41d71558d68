"""What collectives are about, in kept texts of three compilers and in texts written by hand."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path

import pytest

from shardviz.core.hlo.collectives import read_collectives
from shardviz.core.program.comparison import inherited
from shardviz.core.program.report import UNKNOWN, Collective, Member

TEXTS = Path(__file__).parent / "hlo"
MESH = (("data", "model"), (4, 2))
VERSIONS = ("jax-0.10.2", "jax-0.12.0")


def read(version, name):
    text = gzip.decompress((TEXTS / version / f"{name}.txt.gz").read_bytes()).decode()
    return read_collectives(text, *MESH)


OPERANDS = {
    "cpu-fsdp": ["argument params[0]", "argument params[1]", "dot_general (model.py:86)",
                 "argument params[1]", "dot_general (model.py:85)", "dot_general (model.py:86)"],
    "tpu-layers": ["a slice of argument params[0]", "a slice of argument params[1]",
                   "dot_general (model.py:26)", "a slice of argument params[1]",
                   "a slice of argument params[0]", *["dot_general (model.py:26)"] * 3],
    "cpu-kinds": ["argument x"] * 5,
    "cpu-nested": ["what the loop at model.py:60 carries"],
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", OPERANDS)
def test_operands_after_the_partitioner(version, name):
    found = [c.operand for c in read(version, f"{name}-partitioned")]
    assert sorted(found) == sorted(OPERANDS[name])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("chip", ["cpu", "gpu", "tpu"])
def test_combined_sums_of_three_compilers_have_their_members(version, chip):
    before, after = (
        read(version, f"{chip}-sums-partitioned"),
        read(version, f"{chip}-sums-compiled"),
    )
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
        assert all(UNKNOWN not in m.operand for m in c.members)


HEAD = """HloModule f, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

ENTRY %main (p: f32[8,8], q: f32[8,8]) -> f32[8,8] {
  %p = f32[8,8]{1,0} parameter(0), metadata={op_name="params['w']"}
  %q = f32[8,8]{1,0} parameter(1), metadata={op_name="x"}
"""
NAMED = 'metadata={op_name="jit(f)/%s" source_file="/home/me/f.py" source_line=%d}'
DOT, REMAT = NAMED % ("dot_general", 3), NAMED % ("remat2", 7)
LOOKUP = NAMED % ("gather", 8)
WRITTEN = {
    "an argument": (
        f"  ROOT %g = f32[32,8]{{1,0}} all-gather(%p), dimensions={{0}}, {DOT}",
        "argument params['w']",
        "Argument params['w'] is split over x along dimension 0, and dot_general (f.py:3) needs it"
        " without that split."),
    "what each device has cut out": (
        "  %i = s32[] parameter(2)\n"
        "  %s = f32[2,8]{1,0} dynamic-slice(%p, %i), dynamic_slice_sizes={2,8}\n"
        f"  ROOT %g = f32[8,8]{{1,0}} all-gather(%s), dimensions={{0}}, {DOT}",
        "argument params['w']",
        "Argument params['w'], of which a slice is taken before, is then split over x, and"
        " dot_general (f.py:3) needs it without that split."),
    "a sum": (
        f"  %d = f32[8,8]{{1,0}} dot(%p, %q), {DOT}\n"
        f"  ROOT %r = f32[8,8]{{1,0}} all-reduce(%d), to_apply=%add, {DOT}",
        "dot_general (f.py:3)",
        "dot_general (f.py:3) sums over its inner dimension, which is split over x: each device has"
        " a part of the result."),
    "the user's own": (
        "  ROOT %r = f32[8,8]{1,0} all-reduce(%p), to_apply=%add, " + NAMED % ("psum", 4),
        "argument params['w']",
        "It is written in the program: psum (f.py:4), of argument params['w']."),
    "what the user gathered before": (
        "  %r = f32[8,8]{1,0} all-reduce(%p), to_apply=%add, " + NAMED % ("psum", 4) + "\n"
        f"  ROOT %g = f32[32,8]{{1,0}} all-gather(%r), dimensions={{0}}, {DOT}",
        "psum (f.py:4)",
        "psum (f.py:4) is split over x along dimension 0, and dot_general (f.py:3) needs it without"
        " that split."),
    "what grad put in": (
        "  ROOT %r = f32[8,8]{1,0} all-reduce(%p), to_apply=%add, "
        + NAMED % ("shard_map/transpose(jvp())/psum_invariant", 4),
        "argument params['w']",
        "grad put it in, since what it differentiates by is the same on all devices along x; or a"
        " custom_vjp of the program has it: psum_invariant (f.py:4), of argument params['w']."),
    "what grad made of the user's own": (
        "  ROOT %r = f32[8,8]{1,0} all-reduce(%p), to_apply=%add, "
        + NAMED % ("transpose(jvp())/shard_map/psum", 4),
        "argument params['w']",
        "grad put it in, as the gradient of what is written there; or a custom_vjp of the program"
        " has it: psum (f.py:4), of argument params['w']."),
    "the user's own, computed again": (
        "  ROOT %r = f32[8,8]{1,0} all-reduce(%p), to_apply=%add, "
        + NAMED % ("transpose(jvp(jvp()))/checkpoint/rematted_computation/psum_invariant", 4),
        "argument params['w']",
        "It is written in the program: psum_invariant (f.py:4), of argument params['w']."),
    "the result of an operation": (
        f"  %d = f32[8,8]{{1,0}} gather(%p, %q), {LOOKUP}\n"
        f"  %g = f32[32,8]{{1,0}} all-gather(%d), dimensions={{0}}, {LOOKUP}\n"
        f"  ROOT %c = f32[32,8]{{1,0}} tanh(%g), {DOT}",
        "gather (f.py:8)",
        "XLA computes gather (f.py:8) in parts over x, and its result is not split: what each"
        " device made of it is gathered."),
    "a step within an operation": (
        f"  %d = f32[8,8]{{1,0}} sort(%p), {LOOKUP}\n"
        f"  %g = f32[32,8]{{1,0}} all-gather(%d), dimensions={{0}}, {LOOKUP}\n"
        f"  ROOT %c = f32[32,8]{{1,0}} sort(%g), {LOOKUP}",
        "gather (f.py:8)",
        "It is a step within gather (f.py:8): what each device made of it is gathered over x; why"
        " is unknown."),
    "the largest of each device": (
        f"  %d = f32[8,1]{{1,0}} reduce(%p, %q), {LOOKUP}\n"
        f"  %g = f32[8,4]{{1,0}} all-gather(%d), dimensions={{1}}, {LOOKUP}\n"
        f"  ROOT %c = f32[8]{{0}} reduce(%g, %q), {LOOKUP}",
        "gather (f.py:8)",
        "gather (f.py:8) reduces over a dimension that is split over x: what each device made of it"
        " is gathered."),
    "for a constraint": (
        "  ROOT %g = f32[32,8]{1,0} all-gather(%p), dimensions={0}, "
        + NAMED % ("sharding_constraint", 5),
        "argument params['w']",
        "Argument params['w'] is split over x along dimension 0, and the constraint at f.py:5 asks"
        " for it without that split."),
    "behind a barrier": (  # as jax.checkpoint puts around what it keeps
        f"  %t = (f32[8,8]{{1,0}}, f32[8,8]{{1,0}}) tuple(%q, %p), {REMAT}\n"
        f"  %b = (f32[8,8]{{1,0}}, f32[8,8]{{1,0}}) opt-barrier(%t), {REMAT}\n"
        f"  %e = f32[8,8]{{1,0}} get-tuple-element(%b), index=1, {REMAT}\n"
        f"  ROOT %g = f32[32,8]{{1,0}} all-gather(%e), dimensions={{0}}, {DOT}",
        "argument params['w']",
        "Argument params['w'] is split over x along dimension 0, and dot_general (f.py:3) needs it"
        " without that split."),
    "made by nobody": (
        f"  %m = f32[8,8]{{1,0}} multiply(%p, %q)\n"
        f"  ROOT %g = f32[32,8]{{1,0}} all-gather(%m), dimensions={{0}}, {DOT}",
        UNKNOWN,
        "Its operand is unknown: the compiler's text does not say what it gathers."),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "operand", "cause"), WRITTEN.values(), ids=WRITTEN)
def test_causes_in_words(lines, operand, cause):
    text = f"{HEAD}{lines}\n}}\n".replace("metadata", "replica_groups={{0,1,2,3}}, metadata")
    found = read_collectives(text, ("x",), (4,))[-1]
    assert (found.operand, found.cause) == (operand, cause)


CONVOLVED = """
  %k = f32[3,3,{inputs},32]{{3,2,1,0}} parameter(2), metadata={{op_name="k"}}
  %g = f32[8,16,16,32]{{3,2,1,0}} all-gather(%x), dimensions={{{along}}}, {at}
  ROOT %c = f32[8,16,16,32]{{3,2,1,0}} convolution(%g, %k), dim_labels=b01f_01io->b01f{groups}, {at}
}}
"""


@pytest.mark.parametrize(
    ("along", "inputs", "groups", "words"),
    [
        (0, 8, ", feature_group_count=4", "4 groups of 8 channels"),
        (1, 8, ", feature_group_count=4", "4 groups of 8 channels"),
        (0, 1, ", feature_group_count=32", ""),  # a group for each channel is no obstacle
        (0, 32, "", ""),
        (3, 8, ", feature_group_count=4", ""),  # of channels it needs all for other reasons, too
    ],
)
def test_a_gather_for_a_grouped_convolution(along, inputs, groups, words):
    at = NAMED % ("conv_general_dilated", 3)
    text = HEAD + '  %x = f32[2,16,16,32]{3,2,1,0} parameter(3), metadata={op_name="x"}'
    text += CONVOLVED.format(along=along, inputs=inputs, groups=groups, at=at)
    (found,) = read_collectives(text, ("x",), (4,))
    assert ("XLA cannot split conv_general_dilated (f.py:3)" in found.cause) == bool(words)
    assert words in found.cause


def one(size, operand, source, **more):
    op = f"jit(f)/{operand.partition(' ')[0]}"
    return Collective("all-reduce", ("x",), size, op, source, shape=f"f32[{size // 4}]",
                      operand=operand, cause=f"{operand} is summed.", **more)  # fmt: skip


FIRST = one(64, "dot_general (f.py:3)", "f.py:3")
SECOND = one(64, "dot_general (f.py:4)", "f.py:4")


def member(size, operand=UNKNOWN, source="", op=""):
    return Member(op, source, size, f"f32[{size // 4}]", operand)


def combined(*members):
    shape = f"({', '.join(m.shape for m in members)})"
    total = sum(m.bytes_per_device for m in members)
    return Collective("all-reduce", ("x",), total, members=members, shape=shape, operand=UNKNOWN)


def test_members_inherit_what_they_were_by_their_bytes():
    loss, weight = (
        one(4, "reduce_sum (f.py:9)", "f.py:9"),
        one(64, "dot_general (f.py:3)", "f.py:3"),
    )
    (found,) = inherited([loss, weight], [combined(member(64), member(4))])
    assert [(m.operand, m.source) for m in found.members] == [
        ("dot_general (f.py:3)", "f.py:3"), ("reduce_sum (f.py:9)", "f.py:9"),
    ]  # fmt: skip
    assert (found.operand, found.source) == ("dot_general (f.py:3)", "f.py:3")
    assert found.cause == "dot_general (f.py:3) is summed."


def test_members_of_one_size_from_two_lines_stay_unknown():
    (found,) = inherited([FIRST, SECOND], [combined(member(64), member(64))])
    assert {(m.operand, m.source) for m in found.members} == {(UNKNOWN, "")}


def test_members_of_one_size_are_found_by_their_operand():
    members = (member(64, SECOND.operand), member(64, FIRST.operand))
    (found,) = inherited([FIRST, SECOND], [combined(*members)])
    assert [m.source for m in found.members] == ["f.py:4", "f.py:3"]


def test_another_collectives_operand_is_not_inherited():
    planned = one(64, "argument x", "f.py:3")
    made = one(64, "argument w_in", "f.py:3")
    (found,) = inherited([planned], [made])
    assert (found.operand, found.cause) == ("argument w_in", made.cause)


def test_without_lines_no_line_is_left():
    cause = "x (f.py:3) is split, and the constraint at my-file.py:12 asks for it."
    c = dataclasses.replace(FIRST, cause=cause, members=(member(64, "dot (cell:3)", "cell:3"),))
    bare = c.without_source()
    assert (bare.source, bare.operand) == ("", "dot_general")
    assert bare.cause == "x is split, and the constraint asks for it."
    assert (bare.members[0].source, bare.members[0].operand) == ("", "dot")
