"""What a collective is said to be about is an operand of it, as XLA's serialised module has it."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.base.cause import CAUSES, UNKNOWN, ValueName
from tests.stages.causes import Graph, wrong_members, wrong_operands
from tests.stages.programs import CASES

BLOCK = ("gallery: transformer block, gradient", "data=4, model=2")
GATHERS = ("gated MLP under fsdp, gradient", "data=4, model=2")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_collective_names_its_own_operand(case, dumped):
    for mesh in case.meshes:
        entry = dumped[case.name, mesh]
        before = Graph(entry.partitioned)
        assert wrong_operands(entry.collectives, before) == [], mesh
        assert wrong_members(entry, before, Graph(entry.final)) == [], mesh
        assert all(c.operand and c.cause.code in CAUSES for c in entry.compiled)


def test_there_are_enough_of_them(dumped):
    found = [c for entry in dumped.values() for c in entry.collectives]
    assert len(found) >= 250
    assert len({(c.operand.code, c.operand.name) for c in found}) >= 25
    assert sum(bool(c.members) for entry in dumped.values() for c in entry.compiled) >= 15
    assert sum(c.operand == UNKNOWN for c in found) <= len(found) // 50


def test_a_wrong_operand_is_found(dumped):
    entry = dumped[GATHERS]
    graph = Graph(entry.partitioned)
    gathers = [c for c in entry.collectives if c.kind == "all-gather"]
    arguments = {ValueName("argument", "w_gate"), ValueName("argument", "w_up")}
    assert {c.operand for c in gathers} >= arguments
    for c in gathers:
        for operand in {d.operand for d in gathers} - {c.operand}:
            assert len(wrong_operands([replace(c, operand=operand)], graph)) == 1
        assert wrong_operands([replace(c, name="all-gather.99")], graph)


def test_a_wrong_member_is_found(dumped):
    entry = dumped[BLOCK]
    graphs = Graph(entry.partitioned), Graph(entry.final)
    largest = max(entry.compiled, key=lambda c: c.bytes_per_device)
    first, *rest = largest.members
    planted = {
        "another line": (replace(first, source="functions.py:65"), *rest),
        "another operand": (replace(first, operand=rest[-1].operand), *rest),
        "one twice": (first, first, *rest[1:]),
        "one too few": (first, *rest[:-1]),
        "the smallest first": (rest[-1], *rest[:-1], first),
    }
    for name, members in planted.items():
        wrong = replace(entry, compiled=(replace(largest, members=members),))
        assert wrong_members(wrong, *graphs), name


def test_a_gradients_sum_is_that_of_its_weights_and_not_of_its_loss(dumped):
    largest = max(dumped[BLOCK].compiled, key=lambda c: c.bytes_per_device)
    assert largest.kind == "all-reduce"
    assert largest.mesh_axes == ("data",)
    assert largest.phase == "backward"
    assert largest.source != "functions.py:65"
    loss = largest.members[-1]
    assert (loss.bytes_per_device, loss.phase, loss.op[-10:]) == (4, "forward", "reduce_sum")
    sizes = [m.bytes_per_device for m in largest.members]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == largest.bytes_per_device


def test_an_argument_has_the_name_that_the_plan_has():
    def loss(state, x):
        return jnp.tanh(x @ state["params"]["lm_head"]["kernel"]).sum()

    name = "state.params.lm_head.kernel"
    state = {"params": {"lm_head": {"kernel": jax.ShapeDtypeStruct((512, 1024), "float32")}}}
    batch = jax.ShapeDtypeStruct((4096, 512), "float32")
    program = sv.program(
        jax.grad(loss), state, batch, mesh=sv.mesh(data=4, model=2),
        in_specs=({"params": {"lm_head": {"kernel": P("data", "model")}}}, P("data", None)),
    )  # fmt: skip
    assert name in {op.name for op in sv.plan(program).ops}
    report = sv.compile(program, target="cpu:8")
    [gathered] = [c for c in report.partitioned if c.kind == "all-gather"]
    assert gathered.operand == gathered.cause.operand == ValueName("argument", name)
    said = {sv.text(report), *(repr(c) for c in (*report.partitioned, *report.collectives))}
    assert not any("state_params" in words for words in said)
