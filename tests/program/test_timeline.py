"""timeline(): least times in program order, against what a hand reckons."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.base.collective import Collective
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import roofline
from shardviz.compiled.timeline import timeline
from shardviz.hardware.topology import Topology
from shardviz.plans.plan import Plan
from shardviz.plans.plan_causes import MoveCause
from shardviz.plans.plan_values import PlannedOp
from shardviz.programs.program import Program

V5E = Topology.parse("tpu:v5e:4x4")
# The published figures of one v5e chip: FLOP/s of bfloat16, HBM bytes/s, bytes/s of a link.
PEAK, HBM, LINK = 197e12, 819e9, 5e10
BATCH, EMBED, MLP = 8192, 1024, 4096


def two_layers(w_in, w_out, x):
    return jax.nn.relu(x @ w_in) @ w_out


def mlp(batch: int = BATCH) -> Program:
    return sv.program(
        two_layers,
        sv.array("w_in", (EMBED, MLP), "embed mlp", dtype="bfloat16"),
        sv.array("w_out", (MLP, EMBED), "mlp embed", dtype="bfloat16"),
        sv.array("x", (batch, EMBED), "batch embed", dtype="bfloat16"),
        mesh="data=4, model=4",
        rules=[("batch", "data"), ("mlp", "model")],
    )


def test_a_two_layer_mlp_takes_what_a_hand_reckons():
    found = timeline(sv.plan(mlp()), V5E)
    drawn = [span for span in found.spans if span.seconds]
    assert [span.kind for span in drawn] == ["product", "product", "collective"]
    # Each device multiplies [batch/4, embed] by [embed, mlp/4], and back.
    flops = 2 * (BATCH // 4) * EMBED * (MLP // 4)
    assert [span.bound for span in drawn] == ["FLOP/s", "FLOP/s", "ICI"]
    assert [span.seconds for span in drawn[:2]] == [pytest.approx(flops / PEAK)] * 2
    # A part of the sum on each of 4 chips: a reduce-scatter and an all-gather, 3/4 each.
    moved = 2 * 3 / 4 * (BATCH // 4) * EMBED * 2
    assert drawn[2].axes == ("model",)
    # Three hops of 1 µs from one end of the open axis to the other.
    assert drawn[2].latency == pytest.approx(3e-6)
    assert drawn[2].seconds == pytest.approx(3e-6 + moved / LINK)
    assert found.serial_s == pytest.approx(sum(span.seconds or 0 for span in found.spans))
    assert found.overlapped_s == pytest.approx(max(2 * flops / PEAK, 3e-6 + moved / LINK))


def test_what_is_small_is_bound_by_memory():
    batch = 64
    first = next(s for s in timeline(sv.plan(mlp(batch)), V5E).spans if s.kind == "product")
    rows = batch // 4
    read = 2 * (rows * EMBED + EMBED * MLP // 4 + rows * MLP // 4)
    assert (first.bound, first.amount) == ("HBM", read)
    assert first.seconds == pytest.approx(read / HBM)


def test_the_collectives_are_those_of_the_roofline_of_the_same_plan():
    plan = sv.plan(mlp())
    report = Report("f", str(V5E), collectives=plan.collectives)
    assert timeline(plan, V5E).least.parts["collectives"] == pytest.approx(
        roofline(report, V5E, plan.mesh).collective_s
    )


def test_what_may_be_fused_costs_only_arguments_and_results():
    def adam(p, g, m):
        m = 0.9 * m + g
        return p - jnp.tanh(m), m

    arrays = [sv.array(name, (1024, 1024), "a b") for name in "pgm"]
    program = sv.program(adam, *arrays, mesh="data=4, model=4", rules=[("a", "data")])
    found = timeline(sv.plan(program), V5E)
    # Three arguments are read and two results written once, each a quarter of 4 MiB.
    assert found.least.parts["memory"] == pytest.approx(5 * (1 << 20) / HBM)
    assert any(span.seconds == 0 and span.alone for span in found.spans)


def test_what_becomes_of_an_operand_of_a_product_is_not_counted_twice():
    def cast(w, x):
        return x @ w.astype(jnp.bfloat16)

    w, x = sv.array("w", (1024, 1024)), sv.array("x", (1024, 1024), dtype="bfloat16")
    found = timeline(sv.plan(sv.program(cast, w, x, mesh="data=4, model=4")), V5E)
    assert [s.kind for s in found.spans if s.seconds] == ["product"]


def test_a_loop_counts_each_time_it_runs():
    def layers(w, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]

    w = sv.array("w", (32, 2048, 2048), "layers e f", dtype="bfloat16")
    x = sv.array("x", (32768, 2048), "batch e", dtype="bfloat16")
    rules = [("batch", "data"), ("f", "model")]
    found = timeline(sv.plan(sv.program(layers, w, x, mesh="data=4, model=4", rules=rules)), V5E)
    dot = next(span for span in found.spans if span.kind == "product")
    flops = 2 * (32768 // 4) * 2048 * 2048 // 4
    assert dot.trips == 32
    assert dot.seconds == pytest.approx(32 * flops / PEAK)


def placed(*collectives: Collective) -> list[str]:
    """The names in order, of a plan in which `x` is moved for `second`, and `first` is summed."""
    dtype = {"dtype": "float32", "shape": (8,)}
    ops = (
        PlannedOp("x", "argument", **dtype),
        PlannedOp("first", "op", "add", operands=("x",), **dtype),
        PlannedOp("second", "op", "sort", operands=("first",), **dtype),
        PlannedOp("output", "result", operands=("second",), **dtype),
    )
    found = timeline(Plan("f", make_mesh(data=4, model=4), ops, collectives), V5E)
    return [span.name for span in found.spans]


def moved(code: str, user: str = "") -> Collective:
    cause = MoveCause("x", ("data",), "all-gather", Spec.of("data"), Spec.of(), code, user)
    return Collective("all-gather", ("data",), 4, value="x", cause=cause)


def test_a_value_is_summed_after_it_is_made_and_moved_before_it_is_used():
    total = Collective("all-reduce", ("model",), 4, value="first")
    assert placed(total) == ["first", "all-reduce", "second"]
    assert placed(moved("op", "second")) == ["first", "all-gather", "second"]
    assert placed(moved("result")) == ["first", "second", "all-gather"]
    # What is of no value in the list has no place.
    assert placed(Collective("all-reduce", ("data",), 4)) == ["first", "second", "all-reduce"]


def test_a_time_that_is_not_known_is_counted_and_not_guessed():
    part = Collective("all-reduce", ("data",), 4, value="first", group_size=2)
    plan = Plan("f", make_mesh(data=4, model=4), (), (part,))
    found = timeline(plan, V5E)
    assert (found.unknown, found.serial_s) == (1, 0.0)
    assert str(found.spans[0]).startswith("Time not known.")


def test_collectives_of_layers_that_share_a_line_are_spread_over_the_layers():
    def three_layers(weights, x):
        for w_in, w_out in weights:
            x = two_layers(w_in, w_out, x)
        return x

    def array(*shape, over):
        return sv.array("a", shape, dtype="bfloat16", spec=over)

    layer = array(EMBED, MLP, over="None, model"), array(MLP, EMBED, over="model")
    x = array(BATCH, EMBED, over="data")
    plan = sv.plan(three_layers, [layer] * 3, x, mesh="data=4, model=4")
    product = plan.op("dot_general")
    gather, total = [
        Collective(kind, ("model",), 1 << 20, product.op, product.source, group_size=4)
        for kind in ("all-gather", "all-reduce")
    ]
    report = Report("f", str(V5E), collectives=(gather,) * 3 + (total,) * 3, mesh=plan.mesh)
    report = report.replace(roofline=roofline(report, V5E, plan.mesh, plan))
    spans = timeline(plan, V5E, report=report).spans
    assert [span.name.partition("_")[0] for span in spans if span.kind != "op"] == [
        *["all-gather", "dot", "dot", "all-reduce"] * 3
    ]
