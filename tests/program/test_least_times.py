"""Least times of seven programs against arithmetic by hand: from a plan, and as compiled for TPUs.

Sizes are of one device of the mesh data=2, model=2 unless a comment says otherwise. Every number
is a multiply-add count or a byte count that can be checked on paper.
"""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.advise.search import estimate
from shardviz.compiled.op_costs import op_costs
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import roofline, with_operations
from shardviz.compiled.timeline import timeline
from shardviz.hardware.topology import Topology

TARGET = "tpu:v5e:2x2"
# The published figures of one v5e chip: FLOP/s of bfloat16, HBM bytes/s.
PEAK, HBM = 197e12, 819e9
BF16 = {"dtype": "bfloat16"}


def scanned_mlps():
    """The gradient of L layers: three products for each of the two weights."""
    layers, batch, embed, mlp = 6, 512, 256, 1024

    def step(w, x):
        def loss(w):
            def layer(x, w):
                return x + jax.nn.gelu(x @ w[0]) @ w[1], None

            return jnp.sum(jax.lax.scan(layer, x, w)[0].astype(jnp.float32) ** 2)

        return jax.grad(loss)(w)

    up = sv.array("up", (layers, embed, mlp), spec="None, None, model", **BF16)
    down = sv.array("down", (layers, mlp, embed), spec="None, model", **BF16)
    x = sv.array("x", (batch, embed), spec="data", **BF16)
    product = 2 * (batch // 2) * embed * (mlp // 2)
    return sv.program(step, (up, down), x, mesh="data=2, model=2"), layers * 6 * product


def nested_scans():
    """A product that the inner scan runs 5 times in each of the outer scan's 3 iterations."""
    size, outer, inner = 512, 3, 5

    def repeat(w, x):
        def once(x, _):
            return jnp.tanh(x @ w), None

        def twice(x, _):
            return jax.lax.scan(once, x, None, length=inner)[0], None

        return jax.lax.scan(twice, x, None, length=outer)[0]

    w = sv.array("w", (size, size), **BF16)
    x = sv.array("x", (size, size), spec="(data, model)", **BF16)
    flops = outer * inner * 2 * (size // 4) * size * size
    return sv.program(repeat, w, x, mesh="data=2, model=2"), flops


def power_iteration():
    """A fori_loop of 20 products."""
    size, trips = 512, 20

    def power(a, v):
        return jax.lax.fori_loop(0, trips, lambda i, v: jnp.tanh(a @ v), v)

    a = sv.array("a", (size, size), spec="data", **BF16)
    v = sv.array("v", (size, 256), spec="None, model", **BF16)
    flops = trips * 2 * (size // 2) * size * 128
    return sv.program(power, a, v, mesh="data=2, model=2"), flops


def attention():
    """Two products with the heads and the batch split, without a loop."""
    batch, heads, length, head = 4, 4, 256, 64

    def attend(q, k, v):
        scores = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k))
        return jnp.einsum("bhqk,bhkd->bhqd", scores, v)

    arrays = [
        sv.array(name, (batch, heads, length, head), spec="data, model", **BF16) for name in "qkv"
    ]
    flops = 2 * 2 * (batch // 2) * (heads // 2) * length * length * head
    return sv.program(attend, *arrays, mesh="data=2, model=2"), flops


def until_small():
    """A while loop that ends when its values do: one iteration counts, and that is said."""
    size = 512

    def shrink(w, x):
        return jax.lax.while_loop(lambda x: jnp.sum(x) > 1, lambda x: x @ w, x)

    w = sv.array("w", (size, size), **BF16)
    x = sv.array("x", (size, size), spec="data", **BF16)
    return sv.program(shrink, w, x, mesh="data=2, model=2"), 2 * (size // 2) * size * size


def microbatches():
    """The gradient of one product, added up over 4 parts of the batch."""
    parts, batch, size = 4, 256, 512

    def step(w, x):
        def add(total, x):
            loss = lambda w: jnp.sum((x @ w).astype(jnp.float32) ** 2)  # noqa: E731
            return total + jax.grad(loss)(w), None

        return jax.lax.scan(add, jnp.zeros_like(w), x)[0]

    w = sv.array("w", (size, size), spec="None, model", **BF16)
    x = sv.array("x", (parts, batch, size), spec="None, data", **BF16)
    flops = parts * 2 * 2 * (batch // 2) * size * (size // 2)
    return sv.program(step, w, x, mesh="data=2, model=2"), flops


def conditions():
    """In each of 4 iterations the branch with two products counts, and not the other one."""
    size, trips = 512, 4

    def layers(w, x):
        def layer(x, _):
            return jax.lax.cond(x[0, 0] > 0, lambda x: x @ w @ w, lambda x: x @ w, x), None

        x = jax.lax.scan(layer, x, None, length=trips)[0]
        return jax.lax.switch(jnp.int32(x[0, 0]), [lambda x: x, lambda x: x @ w], x)

    w = sv.array("w", (size, size), **BF16)
    x = sv.array("x", (size, size), spec="data", **BF16)
    product = 2 * (size // 2) * size * size
    return sv.program(layers, w, x, mesh="data=2, model=2"), (trips * 2 + 1) * product


def partial_sums():
    """A product whose summed dimension splits one operand alone: the devices add their parts."""
    size = 1024
    x = sv.array("x", (size, size), spec="data", **BF16)
    w = sv.array("w", (size, size), spec="model", **BF16)
    flops = 2 * (size // 2) * size * (size // 2)
    return sv.program(jnp.matmul, x, w, mesh="data=2, model=2"), flops


def summed_dimensions_split_differently():
    """Each operand splits another summed dimension, by one axis, which divides the work once."""
    tokens, heads, head, embed = 32, 8, 64, 128
    x = sv.array("x", (tokens, heads, head), spec="None, model", **BF16)
    w = sv.array("w", (heads, head, embed), spec="None, model", **BF16)
    output = lambda x, w: jnp.einsum("thd,hde->te", jnp.tanh(x), w)  # noqa: E731
    flops = 2 * tokens * (heads // 2) * head * embed
    return sv.program(output, x, w, mesh="data=2, model=2"), flops


def split_anew_after_the_sum():
    """The carry is split over the axis of the sum, so each product is moved after its sum."""
    layers, batch, size = 4, 512, 1024

    def loop(w, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]

    w = sv.array("w", (layers, size, size), spec="None, model, data", **BF16)
    x = sv.array("x", (batch, size), spec="None, model", **BF16)
    flops = layers * 2 * batch * (size // 2) * (size // 2)
    return sv.program(loop, w, x, mesh="data=2, model=2"), flops


PROGRAMS = [
    split_anew_after_the_sum, partial_sums, summed_dimensions_split_differently, scanned_mlps,
    nested_scans, power_iteration, attention, until_small, microbatches, conditions,
]  # fmt: skip


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda make: make.__name__)
def reckoned(request):
    """A program, its plan, and its FLOP by hand."""
    program, flops = request.param()
    plan = sv.plan(program)
    assert plan.error is None, plan.error
    return program, plan, flops


def test_arithmetic_of_a_plan_is_what_a_hand_reckons(reckoned):
    program, plan, flops = reckoned
    topology = Topology.parse(TARGET)
    found = timeline(plan, topology)
    assert found.least.parts["compute"] == pytest.approx(flops / PEAK)
    assert found.least.has_unknown_trips == (program.name == "shrink")
    planned = estimate(plan, topology, plan.mesh)
    assert planned.seconds >= flops / PEAK


@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs libtpu")
def test_every_way_to_the_least_time_of_a_compiled_program_gives_one_number(reckoned):
    program, plan, flops = reckoned
    report = sv.compile(program, target=TARGET)
    found = report.roofline
    # XLA counts a few operations on single numbers as well.
    assert flops <= found.compute_s * PEAK * 1.001 <= 1.1 * flops
    assert found.has_unknown_trips == (program.name == "shrink")
    assert not found.counts_loops_once
    stages = sv.stages(program, target=TARGET)
    assert stages.roofline.parts == found.parts
    assert with_operations(report, plan).parts == found.parts
    shown = timeline(plan, Topology.parse(TARGET), report=report)
    assert shown.overlapped_s == found.seconds
    assert shown.serial_s >= found.seconds
    collectives = [s.seconds for s in shown.spans if s.kind == "collective"]
    assert sum(collectives) == pytest.approx(found.collective_s or 0.0)


def test_a_loop_reads_and_writes_what_it_carries_in_each_iteration():
    """A stencil: nothing is multiplied, and each iteration goes through memory."""
    trips, size = 50, 1024

    def diffuse(x):
        def step(i, x):
            return x + 0.1 * (jnp.roll(x, 1, 1) - x)

        return jax.lax.fori_loop(0, trips, step, x)

    x = sv.array("x", (size, size), spec="data")
    plan = sv.plan(sv.program(diffuse, x, mesh="data=4"))
    found = timeline(plan, Topology.parse(TARGET))
    assert found.least.parts["memory"] == pytest.approx(
        trips * 2 * 4 * size * size / 4 / HBM, rel=1e-4
    )


def test_a_scan_reads_its_slices_and_writes_its_stack_once():
    length, size = 32, 4096

    def smooth(x):
        def step(last, x):
            last = 0.9 * last + 0.1 * x
            return last, jnp.tanh(last)

        return jax.lax.scan(step, jnp.zeros(size), x)[1]

    x = sv.array("x", (length, size), spec="None, data")
    plan = sv.plan(sv.program(smooth, x, mesh="data=4"))
    found = timeline(plan, Topology.parse(TARGET))
    # In each iteration: a slice, the carried row twice, and a row of the result.
    row = 4 * size / 4
    assert found.least.parts["memory"] == pytest.approx(length * 4 * row / HBM, rel=0.01)


@pytest.mark.parametrize("groups", [1, 2, 16])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("argument", [None, 0, 1], ids=["forward", "inputs", "kernel"])
def test_a_convolution_counts_what_xla_counts(groups, stride, argument):
    def convolve(x, w):
        dims = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, w, (stride, stride), "VALID", dimension_numbers=dims, feature_group_count=groups
        )

    function = convolve
    if argument is not None:
        function = jax.grad(lambda x, w: jnp.sum(convolve(x, w) ** 2), argument)
    x = jax.ShapeDtypeStruct((8, 33, 33, 16), "float32")
    w = jax.ShapeDtypeStruct((3, 3, 16 // groups, 64), "float32")
    plan = sv.plan(sv.program(function, x, w, mesh="data=1"))
    found = sum(cost.flops or 0.0 for cost in op_costs(plan) if cost.is_product)
    counted = jax.jit(function).lower(x, w).cost_analysis()["flops"]
    assert found == pytest.approx(counted, rel=0.03)


def test_a_loop_of_unknown_length_leaves_open_what_bounds_the_program():
    """Outside of the loop arithmetic is longest, and inside of it memory is."""

    def generate(a, v):
        big = a @ a
        return jax.lax.while_loop(lambda v: jnp.sum(v) > 1, lambda v: big @ v, v)

    a, v = sv.array("a", (8192, 8192), **BF16), sv.array("v", (8192, 1), **BF16)
    program = sv.program(generate, a, v, mesh="data=4")
    found = roofline(Report("f", TARGET, collectives=()), TARGET, plan=sv.plan(program))
    assert found.compute_s > found.parts["memory"]
    assert (found.bound, found.has_unknown_trips) == ("", True)
