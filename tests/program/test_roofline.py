"""roofline: hand-worked times, loops, memory, unknown figures; op_costs against XLA's own count."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.base.axis_parts import local_shape
from shardviz.base.collective import Collective
from shardviz.base.collective_kind import COLLECTIVE_KINDS
from shardviz.base.errors import ProgramError, TargetError
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.compiled.op_costs import op_costs
from shardviz.compiled.report import Memory, Report
from shardviz.compiled.roofline import (
    RooflineNote,
    roofline,
    with_operations,
)
from shardviz.compiled.stages import Stages
from shardviz.hardware.chips import find_chip
from shardviz.hardware.topology import Topology
from shardviz.pictures import draw, to_text
from shardviz.plans.plan import Plan
from shardviz.plans.plan_values import PlannedOp, ShardingRule
from shardviz.programs.program import Program

MESH = make_mesh(data=4, model=4)
V5E = "tpu:v5e:4x4"
MIB = 1 << 20


def _report(*collectives: Collective, **fields) -> Report:
    return Report("f", V5E, collectives=collectives, **fields)


def _seconds(collective: Collective, where: str = V5E, mesh=MESH) -> float | None:
    rows = roofline(_report(collective), where, mesh).rows
    return next(r.seconds for r in rows if r.part == "collective")


# On an open axis of 4 chips with links of 5e10: B (n-1)/n / 5e10, and so on, after the latency
# of the hops from one end to the other.
HOP = 1e-6
BY_HAND = [
    ("a gather", Collective("all-gather", ("model",), 4 * MIB), 3 * HOP + 3 * MIB / 5e10),
    ("a scatter", Collective("reduce-scatter", ("data",), 4 * MIB), 3 * HOP + 3 * MIB / 5e10),
    ("a reduction", Collective("all-reduce", ("model",), 4 * MIB), 3 * HOP + 6 * MIB / 5e10),
    ("both axes", Collective("all-reduce", ("data", "model"), 16 * MIB),
     6 * HOP + 2 * 15 * MIB / 1e11),
    ("an exchange", Collective("all-to-all", ("model",), 4 * MIB), 3 * HOP + 4 * MIB / 5e10),
    (
        "neighbours swap",
        Collective("collective-permute", (), MIB, groups=((0, 1), (1, 0))),
        HOP + MIB / 5e10,
    ),
    ("groups instead of axes", Collective("all-gather", (), 4 * MIB, groups=((0, 1, 2, 3),)),
     3 * HOP + 3 * MIB / 5e10),
    ("a loop", Collective("all-gather", ("model",), 4 * MIB, trips=12),
     12 * (3 * HOP + 3 * MIB / 5e10)),
    ("nobody knows how often", Collective("all-gather", ("model",), 4 * MIB, trips=None),
     3 * HOP + 3 * MIB / 5e10),
    ("its groups are not known", Collective("all-gather", (), MIB), None),
    ("a ragged exchange", Collective("ragged-all-to-all", ("model",), MIB), None),
    ("a broadcast", Collective("collective-broadcast", ("model",), 4 * MIB),
     3 * HOP + 3 * MIB / 5e10),
    ("an axis that the mesh has not", Collective("all-gather", ("gone",), MIB), None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("collective", "seconds"), [b[1:] for b in BY_HAND], ids=[b[0] for b in BY_HAND]
)
def test_collectives_take_what_a_hand_reckons(collective, seconds):
    found = _seconds(collective)
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_latency_stands_apart_from_the_time_at_a_rate():
    large = Collective("all-gather", ("model",), 64 * MIB, trips=5)
    small = Collective("all-gather", ("model",), 64, trips=5)
    found = roofline(_report(large, small), V5E, MESH)
    slow, quick = found.rows
    assert (slow.bound, quick.bound) == ("ICI", "latency")
    assert slow.latency == quick.latency == pytest.approx(5 * 3 * HOP)
    assert found.latency_s == pytest.approx(2 * 5 * 3 * HOP)
    assert found.collective_s == pytest.approx(found.latency_s + 5 * 48 * MIB / 5e10, rel=1e-3)
    # Google publishes no latency of the network between slices.
    across = roofline(
        _report(Collective("all-gather", ("s",), MIB)), "tpu:v5e:4x4*2", sv.mesh(s=2, x=16)
    )
    assert (across.rows[0].bound, across.rows[0].latency) == ("network", None)
    assert across.rows[0].note == RooflineNote("no latency")


def test_every_kind_of_collective_is_priced_or_says_why_not():
    for kind in COLLECTIVE_KINDS:
        pairs = ((0, 1),) if kind == "collective-permute" else ()
        row = roofline(_report(Collective(kind, ("model",), MIB, groups=pairs)), V5E, MESH).rows[0]
        assert row.seconds or row.note


def test_compute_and_memory_are_amount_over_rate_and_a_device_has_its_share():
    cost = {"flops": 1e12, "bytes accessed": 1e9}
    one = roofline(_report(cost=cost), V5E)
    assert one.compute_s == pytest.approx(1e12 / 197e12)
    assert one.parts["memory"] == pytest.approx(1e9 / 819e9)
    half = roofline(_report(cost=cost), "tpu:7x:2x2x1")
    assert half.compute_s == pytest.approx(1e12 / (2307e12 / 2))
    assert half.parts["memory"] == pytest.approx(1e9 / (7380e9 / 2))


def test_the_longest_part_bounds_the_whole():
    gather = Collective("all-gather", ("model",), 1 << 30)
    cost = {"flops": 1e12, "bytes accessed": 1e9}
    found = roofline(_report(gather, cost=cost), V5E, MESH)
    assert found.bound == "collectives"
    assert found.seconds == found.collective_s == pytest.approx(3 * HOP + 0.75 * (1 << 30) / 5e10)
    assert [r.part for r in found.rows] == ["compute", "memory", "collective"]


@pytest.mark.parametrize(
    ("memory", "fits", "times"),
    [
        (Memory(), None, None),
        (Memory(arguments=8 << 30), True, 0.5),
        (Memory(8 << 30, 8 << 30, 8 << 30), False, 1.5),
        (Memory(8 << 30, 8 << 30, 4 << 30, aliased=8 << 30), True, 0.75),
        (Memory(8 << 30, capacity=4 << 30), False, 2.0),
    ],
)
def test_memory_is_held_against_the_chip(memory, fits, times):
    found = roofline(_report(memory=memory), V5E)
    share = None if found.fit is None else found.fit.share
    assert (found.fits, share) == (fits, times)


def test_what_is_not_published_has_no_time_and_says_so():
    cost = {"flops": 1e12, "bytes accessed": 1e9}
    mesh = make_mesh(data=8)
    gather = Collective("all-gather", ("data",), MIB)
    found = roofline(_report(gather, cost=cost, memory=Memory(1)), "tpu:v2:2x2", mesh)
    assert found.seconds is found.compute_s is found.collective_s is found.fits is None
    assert found.bound == ""
    assert all(r.note for r in found.rows)


def test_without_a_place_nothing_beats_all_links_at_once():
    gather = Collective("all-gather", ("model",), 4 * MIB, group_size=4)
    for where, mesh in ((find_chip("v5e"), MESH), (Topology.parse(V5E), None)):
        found = roofline(_report(gather), where, mesh)
        assert found.collective_s == pytest.approx(HOP + 3 * MIB / (4 * 5e10))
        assert found.collective_s < _seconds(gather)
        assert RooflineNote("no topology") in found.notes
    gpu = roofline(_report(gather), find_chip("h100"))
    assert gpu.collective_s == pytest.approx(4.5e-6 + 3 * MIB / 450e9)


def test_devices_are_priced_where_they_stand():
    gather = Collective("all-gather", ("x",), 4 * MIB)
    ids = MESH.device_ids.reshape(2, 2, 2, 2)  # halves and pairs of y, then of x
    near = make_mesh(y=4, x=4, device_ids=ids.transpose(0, 2, 1, 3))
    far = make_mesh(y=4, x=4, device_ids=ids.transpose(1, 3, 0, 2))
    # Squares of neighbours use links of their own; squares two apart share theirs by twos.
    assert _seconds(gather, mesh=near) == pytest.approx(2 * HOP + 3 * MIB / (2 * 5e10))
    assert _seconds(gather, mesh=far) == pytest.approx(4 * HOP + 2 * 3 * MIB / (2 * 5e10))


def test_where_loops_are_counted_once_nothing_is_said_to_be_the_longest():
    gather = Collective("all-gather", ("model",), MIB)
    cost = {"flops": 1e9, "bytes accessed": 1e6}
    once = roofline(_report(gather, cost=cost, loops=1), V5E, MESH)
    assert (once.counts_loops_once, once.bound) == (True, "")
    assert RooflineNote("loops once") in once.notes
    whole = roofline(_report(gather, cost=cost), V5E, MESH)
    assert (whole.counts_loops_once, whole.bound) == (False, "collectives")


def test_what_cannot_be_priced_is_refused():
    far = _report(Collective("all-gather", ("data",), 1))
    with pytest.raises(ProgramError):
        roofline("f", V5E)
    with pytest.raises(TargetError):
        roofline(far, V5E, make_mesh(data=8, model=8))


def _value(name: str, shape: tuple, spec: str = "", **fields) -> PlannedOp:
    kind = "op" if fields else "argument"
    return PlannedOp(name, kind, shape=shape, dtype="float32", spec=Spec.parse(spec), **fields)


def _rule(formula, sizes, reduction):
    """A ShardingRule from a formula as einsum writes it, such as "ik kj -> ij"."""
    operands, results = (
        tuple(tuple((factor,) for factor in tensor) for tensor in side.split())
        for side in formula.split("->")
    )
    return ShardingRule(operands, results, sizes, reduction)


DOT = _rule("ik kj -> ij", {"i": 64, "j": 16, "k": 32}, ("k",))
BATCH = _rule("bik bkj -> bij", {"b": 8, "i": 64, "j": 16, "k": 32}, ("k",))


@pytest.mark.parametrize(
    ("reads", "made", "flops"),
    [
        ([((64, 32), ""), ((32, 16), "")], ((64, 16), "", "dot_general", DOT), 2 * 64 * 16 * 32),
        ([((64, 32), "data"), ((32, 16), "None, model")],
         ((64, 16), "data, model", "dot_general", DOT), 2 * 16 * 4 * 32),
        ([((64, 32), "None, data"), ((32, 16), "data")],
         ((64, 16), "", "dot_general", DOT), 2 * 64 * 16 * 8),
        ([((64, 32), "None, data"), ((32, 16), "")],
         ((64, 16), "", "dot_general", DOT), 2 * 64 * 16 * 32),
        ([((8, 64, 32), "data"), ((8, 32, 16), "data")],
         ((8, 64, 16), "data", "dot_general", BATCH), 2 * 2 * 64 * 16 * 32),
        ([((8, 10, 10, 3), ""), ((3, 3, 3, 16), "")],
         ((8, 8, 8, 16), "", "convolution", None), None),
        ([((64, 32), "'data:(1)2'")], ((64, 32), "'data:(1)2'", "tanh", None), 32 * 32),
        ([((64, 32), "")], ((64, 32), "", "dot_general", None), None),
    ],
    ids=["whole", "rows and columns split", "both inner sides split", "one inner side split",
         "batches", "a convolution", "a part of an axis", "no rule"],
)  # fmt: skip
def test_operations_cost_what_their_blocks_take(reads, made, flops):
    values = [_value(f"x{i}", shape, spec) for i, (shape, spec) in enumerate(reads)]
    shape, spec, opcode, factors = made
    op = _value("y", shape, spec, opcode=opcode, factors=factors,
                operands=tuple(v.name for v in values))  # fmt: skip
    (cost,) = op_costs(Plan("f", MESH, (*values, op)))
    assert cost.flops == flops


def test_bytes_are_those_of_the_blocks_read_and_made():
    x, w = _value("x", (64, 32), "data"), _value("w", (32, 16))
    dot = _value("y", (64, 16), "data", opcode="dot_general", factors=DOT, operands=("x", "w"))
    (cost,) = op_costs(Plan("f", MESH, (x, w, dot)))
    assert cost.bytes == 4 * (16 * 32 + 32 * 16 + 16 * 16)
    assert local_shape((10, 3), Spec.parse("data"), MESH) == (3, 3)


@pytest.mark.parametrize(
    ("opcode", "shape", "operands", "moved"),
    [
        ("slice", (2, 32), ("table",), 2 * 2 * 32 * 4),
        ("dynamic_slice", (1, 32), ("table", "at", "at"), 2 * 32 * 4 + 2 * 4),
        ("gather", (8, 32), ("table", "rows"), 2 * 8 * 32 * 4 + 8 * 4),
        ("dynamic_update_slice", (64, 32), ("table", "update", "at", "at"), 2 * 8 * 32 * 4 + 2 * 4),
        ("scatter", (64, 32), ("table", "rows", "update"), 2 * 8 * 32 * 4 + 8 * 4),
        ("add", (64, 32), ("table", "table"), 3 * 64 * 32 * 4),
    ],
)
def test_who_touches_a_part_of_an_array_moves_that_part(opcode, shape, operands, moved):
    values = (
        _value("table", (64, 32)),
        _value("at", ()),
        _value("rows", (8,)),
        _value("update", (8, 32)),
    )
    op = _value("y", shape, opcode=opcode, operands=operands)
    (cost,) = op_costs(Plan("f", MESH, (*values, op)))
    assert cost.bytes == moved


def test_frames_and_names_cost_nothing():
    x = _value("x", (8,))
    frames = [_value(f"v{i}", (8,), opcode=o, operands=("x",)) for i, o in enumerate(
        ("while", "reshape", "constant", "custom_call"))]  # fmt: skip
    uncovered = _value("u", (8,), opcode="tanh", operands=("x",), covered=False)
    assert op_costs(Plan("f", MESH, (x, *frames, uncovered))) == ()


def test_a_plan_counts_loops_that_xla_does_not():
    x, w = _value("x", (64, 32)), _value("w", (32, 16))
    dot = _value("y", (64, 16), opcode="dot_general", factors=DOT, operands=("x", "w"),
                 trips=12, region="loop body")  # fmt: skip
    plan = Plan("f", MESH, (x, w, dot))
    once = 2 * 64 * 16 * 32
    found = roofline(_report(cost={"flops": float(once)}), V5E, plan=plan)
    assert found.compute_s == pytest.approx(12 * once / 197e12)
    assert found.rows[0].note == RooflineNote("planned")
    assert [r.name for r in found.ops] == ["y"]
    assert found.ops[0].bound == "HBM"
    assert any("y · HBM" in line and "× 12" in line for line in to_text(found).split("\n"))
    assert len(draw(found).panels) == 2


def test_memory_counts_every_turn_of_a_loop():
    """64 layers of stacked weights are read in full, though XLA counts the body once."""
    x, w = _value("x", (64, 32)), _value("w", (32, 16))
    dot = _value("y", (64, 16), opcode="dot_general", factors=DOT, operands=("x", "w"),
                 trips=64, region="loop body")  # fmt: skip
    tanh = _value("z", (64, 16), opcode="tanh", operands=("y",), trips=64, region="loop body")
    plan = Plan("f", MESH, (x, w, dot, tanh))
    once = 4 * (64 * 32 + 32 * 16 + 64 * 16)
    for cost, loops, moved in (
        ({"bytes accessed": float(once)}, 1, 64 * once),  # less what may be fused
        ({"bytes accessed": 64.0 * once}, 0, 64 * once),  # XLA unrolled the loop
        ({}, 1, 64 * once),  # XLA counts no bytes for GPUs that are only described
    ):
        found = roofline(_report(cost=cost, loops=loops), V5E, plan=plan)
        assert found.parts["memory"] == pytest.approx(moved / 819e9)
    assert "memory" not in roofline(_report(cost={}), V5E).parts


@pytest.mark.parametrize("where", [V5E, find_chip("h100")], ids=["a slice", "a chip"])
def test_a_report_and_its_plan_price_every_operation(where):
    x, w = _value("x", (64, 32)), _value("w", (32, 16))
    dot = _value("y", (64, 16), opcode="dot_general", factors=DOT, operands=("x", "w"))
    plan = Plan("f", MESH, (x, w, dot))
    bare = _report(Collective("all-reduce", ("model",), MIB), mesh=MESH)
    report = bare.replace(roofline=roofline(bare, where, MESH))
    assert (report.roofline.ops, report.roofline.compute_s) == ((), None)
    found = with_operations(report, plan)
    assert found == Stages(Program(abs, (), MESH), plan, report).roofline
    assert found.where == report.roofline.where
    assert [op.name for op in found.ops] == ["y"]
    assert found.compute_s > 0  # counted on the plan, since the compiler counted nothing
    assert found.collective_s == report.roofline.collective_s
    assert with_operations(report, None) is report.roofline
    assert with_operations(bare, plan) is None
    assert with_operations(None, plan) is None


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "gradient"])
def test_arithmetic_of_a_plan_is_what_xla_counts(backward):
    """Matrices of a real program on one device: the plan's count and XLA's agree."""
    propagation = pytest.importorskip("shardviz.plans.backend.build_plan")
    from shardviz.base.array_spec import ArraySpec
    from shardviz.programs.program import Program

    def layer(x, w, v):
        return jnp.sum((jnp.tanh(x @ w) @ v) ** 2)

    function = jax.grad(layer, argnums=(1, 2)) if backward else layer
    shapes = {"x": (64, 256), "w": (256, 512), "v": (512, 128)}
    arrays = tuple(ArraySpec(n, s) for n, s in shapes.items())
    plan = propagation.plan_program(Program(function, arrays, make_mesh(data=1)))
    assert plan.error is None, plan.error
    dots = [c for c in op_costs(plan) if c.opcode == "dot_general"]
    found = sum(c.flops for c in dots)
    structs = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes.values()]
    counted = jax.jit(function).lower(*structs).compile().cost_analysis()["flops"]
    assert found == pytest.approx(counted, rel=0.02)


def test_an_axis_divides_the_work_of_a_product_once():
    """Also where it splits the inner dimension of both operands, and the result: the parts are
    added and scattered, or one of the operands is gathered."""
    mesh = make_mesh(data=4, model=2)
    x = sv.array("x", (64, 128), spec="None, (data, model)")
    w = sv.array("w", (128, 32), spec="(data, model)")
    one = 2 * 64 * 128 * 32 / mesh.size
    for out in ("", "data", "data, model", "None, (model, data)"):
        plan = sv.plan(sv.program(jnp.matmul, x, w, mesh=mesh, out_specs=out))
        assert [c.flops for c in op_costs(plan) if c.is_product] == [one], out
