"""Plans and reports made by hand, with every kind of change between two stages."""

from __future__ import annotations

import math

from shardviz.base.cause import Reduced, Rematerialised, ValueName
from shardviz.base.collective import Collective, Member
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.compiled.report import Memory, Report
from shardviz.explorer.planner import StageResults
from shardviz.plans.plan import Plan
from shardviz.plans.plan_values import Origin, PlannedOp, Step
from shardviz.programs.failure import Failure

MESH = make_mesh(data=4, model=2)
DOT = ValueName("operation", "dot_general")
BAD = "<img src=x onerror=alert(1)>"


def collective(kind: str, axes: str, size: int, line: int, **more) -> Collective:
    op = f"jit(f)/transpose(jvp(layer_{line}))/dot_general"
    names = tuple(axes.split())
    devices = math.prod(MESH.shape[name] for name in names)
    return Collective(kind, names, size, op, f"block.py:{line}", group_size=devices, **more)


def summed(name: str) -> Reduced:
    return Reduced("all-reduce", ("data",), operand=ValueName("operation", name), reducer="add")


SUMS = tuple(
    collective(
        "all-reduce",
        "data",
        1 << (18 + i),
        10 + i,
        cause=summed(f"layer_{i}"),
    )
    for i in range(3)
)
LOOP = collective("all-gather", "model", 4096, 20, in_loop=True, trips=12, value="dot_general")
PLANNED = (*SUMS, LOOP, collective("all-to-all", "data model", 1 << 16, 30))
FULL = collective(
    "all-gather", "data model", 1 << 21, 30, rematerialises=True,
    cause=Rematerialised("all-gather", ("data", "model"), full="f32[16]", part="f32[2]"),
)  # fmt: skip
PARTITIONED = (*SUMS, LOOP, FULL)
TOGETHER = Collective(
    "all-reduce", ("data",), sum(c.bytes_per_device for c in SUMS),
    "jit(f)/(transpose(jvp())/dot_general:transpose(jvp())/dot_general)", "block.py:10",
    shape="(f32[65536], f32[131072], f32[262144])", is_async=True, operand=DOT, group_size=4,
    members=tuple(
        Member(c.op, c.source, c.bytes_per_device, operand=DOT, cause=c.cause)
        for c in reversed(SUMS)
    ),
)  # fmt: skip
COMPILED = (TOGETHER, LOOP, FULL)

OPS = (
    PlannedOp("x", "argument", shape=(64, 512), dtype="float32", spec=Spec.parse("data, None")),
    PlannedOp(
        "dot_general", "op", "dot_general", "jit(f)/dot_general", "block.py:20",
        shape=(64, 2048), dtype="float32", spec=Spec.parse("data, model"), operands=("x",),
        origins={"data": Origin("data", "argument", "x")},
        steps=(Step(0, "data", "dot_general", "x", ("dot_general",)),),
    ),
)  # fmt: skip
PLAN = Plan("block", MESH, OPS, PLANNED, trace_s=0.01, lower_s=0.02, propagate_s=0.005)
REPORT = Report(
    "block", "TPU × 8, described", compile_s=41.5, partition_s=2.5,
    partitioned=PARTITIONED, collectives=COMPILED, cost={"flops": 1.5e12, "bytes accessed": 3e9},
    memory=Memory(arguments=3 << 30, outputs=1 << 30, temporaries=20 << 30, capacity=16 << 30),
    notes=("The torus refuses this mesh: devices stand in plain order.",),
)  # fmt: skip
RESULTS = StageResults(PLAN, 0, REPORT, 0, "")

REFUSED = Plan(
    "block", MESH, error=Failure("trace", f"Both sides contract over model {BAD}.", "block.py:20")
)
