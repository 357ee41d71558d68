"""Kept modules of two jax versions for CPU, GPU and TPU, after the partitioner and in the end.

The programs are in `hlo/model.py`, the modules made by `hlo/make.py`.
"""

from __future__ import annotations

import ast
from functools import cache

import pytest

from shardviz.base.axis_parts import group_size
from shardviz.base.collective_matching import elements
from shardviz.base.mesh import make_mesh
from shardviz.compiled.comparison import compare
from shardviz.compiled.inherited import inherited
from shardviz.compiled.read_collectives import read_collectives
from tests.program import hlo
from tests.program.hlo import VERSIONS, parsed

CHIPS = ("cpu", "gpu", "tpu", "tpuv5p")
MESH = (("data", "model"), (4, 2))
SHORT = {
    "gather": "all-gather", "sum": "all-reduce", "scatter": "reduce-scatter",
    "exchange": "all-to-all", "permute": "collective-permute", "ragged": "ragged-all-to-all",
    "broadcast": "collective-broadcast",
}  # fmt: skip

LAYERS = "4 gather data 524288 x6, 2 sum model 16384 x6, 2 sum data 524288 x6"
EMBED = (
    "exchange data:(2)2 65536, gather data:(1)2 1024, 2 gather data 131072, gather model 131072,"
    " gather model 2048, sum data 524288, 2 sum model 131072, permute data+model 512,"
    " permute data+model 65536"
)
FSDP = "3 gather data 1048576, 2 sum data 1048576, sum model 262144"
KINDS = (
    "exchange model 65536, gather data 262144, sum data+model 65536, permute data 65536,"
    " scatter data 65536"
)
HALVES = "4 gather data 262144 x6, sum data 1048576 x6, 2 sum model 16384 x6"

# Straight after the partitioner: the same for every chip, unless one is named.
# `x6` is how often a loop runs it, `x?` in a loop that does not say, `!` rematerialises.
PARTITIONED = {
    "layers": LAYERS,
    "invariant": "gather data 1048576 x10",
    "nested": "sum model 4096 x12",
    "unknown": "sum model 32768 x?, sum model 4 x?, sum data 4 x?",
    "unknown tpu": "sum model 32768 x?, sum data+model 4 x?",
    "sums": "4 sum data 512, 4 sum data 65536",
    "fsdp": FSDP,
    "ring": "permute data 524288 x4",
    "kinds": KINDS,
    "remade": "gather data 8192 !, gather model 16384 !",
    "remade tpu": "gather data+model 16384 !",
    "remade_loop": "gather data 32768 x5 !, sum model 8192 x5",
    "asked_whole": "gather data 32768",
    "by_hand": "gather data 32768",
    "reshape": "exchange data 1536, exchange model 1536",
    "embed": EMBED,
    "ragged": "ragged data 8192",
    "bcast": "broadcast data 4096",
    "accumulate": "4 sum data 524288, 4 sum data 262144",
    "packed": "2 sum model 512 x3, 2 sum model 512 x3, 2 sum data 512 x3, sum model 65536 x3,"
    " sum data 65536 x3",
    "packed tpu": "2 sum model 512 x3, 2 sum data+model 512 x3, sum data+model 65536 x3",
}
# In the end; `~` is asynchronous. What is not here is as the partitioner left it.
COMPILED = {
    "layers cpu": "4 gather data 524288 x6, sum data 1048576 x6, 2 sum model 16384 x6",
    "layers gpu jax-0.10.2":
        "2 gather data 1048576 x6, sum data 1048576 x6 ~, 2 sum model 16384 x6 ~",
    "layers gpu jax-0.12.0": "gather data 1048576 x6, gather data 1048576 x6 ~,"
        " sum data 1048576 x6, 2 sum model 16384 x6 ~",
    "layers tpu": "2 gather data 262144 x6, 2 gather data 262144 x6 ~, sum data 1048576 x6,"
        " 2 sum model 16384 x6",
    "layers tpuv5p": HALVES,
    "invariant cpu": "gather data 1048576",
    "invariant tpu": "gather data 524288 x10",
    "nested gpu": "sum model 4096 x12 ~",
    "nested tpu": "scatter model 4096 x12",
    "unknown gpu": "scatter model 32768 x?, sum data+model 4 x?",
    "unknown tpu": "scatter model 32768 x?, sum data+model 4 x?",
    "sums": "sum data 264192",
    "fsdp cpu": "3 gather data 2097152, sum data 4194304, sum model 524288",
    "fsdp gpu": "gather data 3145728, sum data 2097152, sum model 262144",
    "fsdp tpu": "gather data 1048576, gather data 1048576 ~, sum data 2097152, sum model 262144",
    "fsdp tpuv5p": "2 gather data 1048576, sum data 2097152, sum model 262144",
    "ring cpu": "permute data 1048576 x4",
    "ring gpu": "permute data 524288 x4 ~",
    "ring tpu": "permute data 524288 x4 ~",
    "ring tpuv5p": "permute data 524288 x4 ~",
    "kinds tpu": KINDS.replace("permute data 65536", "permute data 65536 ~"),
    "remade gpu": "gather data 8192 !, gather model 16384 ~ !",
    "remade_loop gpu": "gather data 32768 x5 ~ !, sum model 8192 x5",
    "asked_whole gpu": "gather data 32768 ~",
    "by_hand gpu": "gather data 32768 ~",
    "accumulate": "sum data 786432",
    "packed gpu": "2 sum model 512 x3 ~, sum data+model 65536 x3 ~, sum data+model 3072",
    "packed tpu": "2 sum model 512 x3, sum data+model 65536 x3, sum data+model 3072",
    "embed gpu": "exchange data:(2)2 65536, gather data:(1)2 1024, gather data 262144 ~,"
        " gather model 131072, gather model 2048 ~, sum data 524288, permute data+model 512,"
        " permute data+model 65536, scatter model 131072, scatter model 131072 ~",
    "embed tpu": "exchange data:(2)2 32768, gather data:(1)2 1024, gather data 65536,"
        " gather model 2048, gather model 65536, sum data 524288, permute data+model 32768 ~,"
        " permute data+model 512 ~, 2 scatter model 131072",
}  # fmt: skip

# What became of them: the words of the comparison, by program and chip; versions agree.
BECAME = {
    "layers cpu": "6 kept, 2 combined into 1",
    "layers gpu": "6 combined into 3, 2 made asynchronous",
    "layers tpu": "2 kept, 2 combined into 1, 4 changed into 4",
    "invariant cpu": "1 hoisted",
    "invariant gpu": "1 kept",
    "nested gpu": "1 made asynchronous",
    "nested tpu": "1 changed into 1",
    "unknown gpu": "2 combined into 1, 1 changed into 1",
    "unknown tpu": "1 kept, 1 changed into 1",
    "sums cpu": "8 combined into 1",
    "sums gpu": "8 combined into 1",
    "sums tpu": "8 combined into 1",
    "fsdp cpu": "2 combined into 1, 4 changed into 4",
    "fsdp gpu": "1 kept, 5 combined into 2",
    "fsdp tpu": "2 kept, 2 combined into 1, 1 made asynchronous, 1 removed",
    "fsdp tpuv5p": "3 kept, 2 combined into 1, 1 removed",
    "ring cpu": "1 changed into 1",
    "ring gpu": "1 made asynchronous",
    "ring tpuv5p": "1 made asynchronous",
    "kinds cpu": "5 kept",
    "kinds tpu": "4 kept, 1 made asynchronous",
    "embed cpu": "11 kept",
    "accumulate gpu": "8 combined into 1",
    "accumulate tpu": "8 combined into 1",
    "packed gpu": "6 combined into 2, 2 made asynchronous",
    "packed tpu": "3 kept, 2 combined into 1",
    "embed tpu": "3 kept, 1 made asynchronous, 6 changed into 6, 1 removed",
}


def kept():
    for path in sorted(hlo.FOLDER.glob("jax-*/*-*-*.gz")):
        chip, name, stage = path.name.split(".")[0].split("-")
        yield path.parent.name, chip, name, stage


MODULES = list(kept())


def methods():
    tree = ast.parse((hlo.FOLDER / "model.py").read_text())
    (programs,) = [n for n in tree.body if isinstance(n, ast.ClassDef)]
    return {
        f.name: range(f.lineno, (f.end_lineno or 0) + 1)
        for f in programs.body
        if isinstance(f, ast.FunctionDef)
    }


METHODS = methods()
PAIRS = [case[:3] for case in MODULES if case[3] == "compiled"]


@cache
def read(version, chip, name, stage):
    return read_collectives(hlo.kept(version, f"{chip}-{name}-{stage}"), *MESH)


def final(version, chip, name):
    before, after = (read(version, chip, name, stage) for stage in ("partitioned", "compiled"))
    return inherited(before, after)


def in_words(collectives):
    return sorted(
        " ".join(
            [c.kind, "+".join(c.mesh_axes), str(c.bytes_per_device)]
            + ([f"x{c.trips or '?'}"] if c.in_loop else [])
            + ["~"] * c.is_async
            + ["!"] * c.rematerialises
        )
        for c in collectives
    )


def spelled(text):
    result = []
    for part in text.split(", "):
        words = part.split()
        count = int(words.pop(0)) if words[0].isdigit() else 1
        result += [" ".join([SHORT[words[0]], *words[1:]])] * count
    return sorted(result)


def expected(version, chip, name, stage):
    """The collectives of a module, as the tables spell them."""
    keys = [f"{name} {chip} {version}", f"{name} {chip}", name]
    if chip == "tpuv5p":
        keys.insert(2, f"{name} tpu")
    tables = [COMPILED, PARTITIONED] if stage == "compiled" else [PARTITIONED]
    return next(table[key] for table in tables for key in keys if key in table)


def test_modules_of_both_versions_and_all_chips_is_kept():
    assert {case[0] for case in MODULES} == set(VERSIONS)
    assert {case[1] for case in MODULES} == set(CHIPS)
    assert {case[2] for case in MODULES} == {key.split()[0] for key in PARTITIONED}
    assert len(MODULES) == 2 * (28 + 36 + 34 + 6)
    used = {key.split()[0] for key in (*COMPILED, *BECAME)}
    assert used <= {case[2] for case in MODULES}


@pytest.mark.parametrize("case", MODULES, ids="-".join)
def test_collectives_of_every_module(case):
    found = final(*case[:3]) if case[3] == "compiled" else read(*case)
    assert in_words(found) == spelled(expected(*case))
    for c in found:
        assert not c.members or sum(m.bytes_per_device for m in c.members) == c.bytes_per_device
        # Each leads into the function of the program that causes it.
        file, line = c.source.split(":")
        assert (file, int(line) in METHODS[case[2]]) == ("model.py", True), c
        assert c.op
        assert c.stack[0] == c.source
        assert len(set(c.stack)) == len(c.stack)


@pytest.mark.parametrize("case", PAIRS, ids="-".join)
def test_what_became_of_them(case):
    _, chip, name = case
    found = compare(read(*case, "partitioned"), final(*case))
    assert sum(len(c.before) for c in found.changes) == len(read(*case, "partitioned"))
    assert sum(len(c.after) for c in found.changes) == len(read(*case, "compiled"))
    if f"{name} {chip}" in BECAME:
        assert found.short == BECAME[f"{name} {chip}"]


def numbers(collectives, one):
    """How many numbers those of one kind over its axes communicate in all, in whatever type."""
    alike = [c for c in collectives if (c.kind, c.mesh_axes) == (one.kind, one.mesh_axes)]
    return sum(elements(c) * c.trips for c in alike)


@pytest.mark.parametrize("case", PAIRS, ids="-".join)
def test_what_is_gone_is_communicated_less(case):
    before, after = read(*case, "partitioned"), final(*case)
    for change in compare(before, after).of("removed"):
        (gone,) = change.before
        assert numbers(after, gone) < numbers(before, gone)


def test_members_of_a_sum_that_tpu_fuses_with_a_slice_have_the_bytes_of_their_operands():
    line = (
        "ENTRY %all-reduce-scatter.1 (p: f32[8], q: f32[4]) -> (f32[8], f32[4]) {\n"
        "  %p = f32[8] parameter(0)\n  %q = f32[4] parameter(1)\n"
        "  ROOT %r = (f32[8], f32[4]) all-reduce(%p, %q), replica_groups={{0,1}},"
        " to_apply=%add\n}\n"
    )
    (found,) = read_collectives(parsed(line), ("data",), (2,))
    assert (found.kind, found.bytes_per_device) == ("reduce-scatter", 48)
    assert [m.bytes_per_device for m in found.members] == [32, 16]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_members_of_a_packed_sum_are_found_by_their_sizes(version):
    (packed,) = [c for c in final(version, "gpu", "packed") if not c.in_loop]
    assert packed.shape.startswith("f32[")  # one flat buffer, which names no arrays
    lines = {c.source for c in read(version, "gpu", "packed", "partitioned")
             if c.op.endswith("reduce_sum") and c.mesh_axes == ("data",)}  # fmt: skip
    assert {m.source for m in packed.members} == lines
    assert [m.bytes_per_device for m in packed.members] == [1536, 1536]  # three iterations each


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("chip", ["cpu", "gpu", "tpu"])
def test_a_stack_leads_through_every_function_of_the_user(version, chip):
    found = [c for c in read(version, chip, "layers", "compiled") if c.kind == "all-reduce"]
    for collective in found:  # from the layer in the loop to the loss around it
        assert len([p for p in collective.stack if p.startswith("model.py")]) == 2


@pytest.mark.parametrize("case", MODULES, ids="-".join)
def test_groups_have_the_size_of_their_axes(case):
    for c in read(*case):
        assert c.group_size == group_size(c.mesh_axes, make_mesh(data=4, model=2))
        in_parts = case[2] == "embed" and c.kind in ("all-gather", "all-to-all")
        assert in_parts or not c.is_partial
