"""One value of every kind that has a picture, each as small as can show something."""

from __future__ import annotations

from typing import Any

import shardviz as sv
from shardviz.advise.candidates import Candidate
from shardviz.advise.search import Search
from shardviz.axis_rules.audit import audit
from shardviz.axis_rules.path_rules import resolve_path
from shardviz.axis_rules.requests import request
from shardviz.axis_rules.resolution import resolve
from shardviz.axis_rules.rules import PathRules, Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.collective import Collective
from shardviz.base.layout import lay_out
from shardviz.base.mesh import make_mesh
from shardviz.base.mesh_context import MeshContext
from shardviz.base.partition_spec import Spec, SpecOnMesh
from shardviz.compiled.comparison import compare
from shardviz.compiled.measured import Measured, MeasuredRow
from shardviz.compiled.processes import HostProcess, ProcessGroup
from shardviz.compiled.report import Check, Memory, Report
from shardviz.compiled.roofline import roofline
from shardviz.compiled.stages import Stages
from shardviz.hardware.targets import Target, Targets
from shardviz.hardware.topology import Topology
from shardviz.legacy.partitions import Parts
from shardviz.legacy.sharding_spec import Chunked, Replicated, ShardedAxis, ShardingSpec, Unstacked
from shardviz.move.movement import collective_movement
from shardviz.move.process_rows import process_rows
from shardviz.move.restore import (
    SavedArray,
    SavedCheckpoint,
    Wanted,
    plan_restore,
)
from shardviz.pictures import draw
from shardviz.plans.plan import Plan
from shardviz.programs.effects import (
    Effects,
    EffectUse,
    Refusal,
)
from shardviz.programs.failure import Failure
from shardviz.programs.program import Program
from shardviz.runs.recompiles import STAGES, MeshCall, MeshComparison, SignatureRow, WatchTable
from tests.widgets import memory_examples
from tests.widgets.changes_examples import found
from tests.widgets.plans import REFUSED, layers

MESH = make_mesh(data=4, model=2, processes=2)
RULES = Rules.of(
    ("batch", "data"), ("mlp", "model"), ("embed", "model"), ("embed", None), ("heads", "tensor")
)
PATHS = PathRules.of([("mlp/.*", (None, "model")), ("kernel", ("data",)), ("bias", ())])
W = ArraySpec("w_in", (512, 2048), "embed mlp", "bfloat16")
BAD = ArraySpec("w_bad", (512, 2047), "embed mlp", "bfloat16")
TYPO = ArraySpec("w_typo", (512, 2048), "embd mlp", "bfloat16")
X = ArraySpec("x", (64, 512), "batch embed", "bfloat16")

COLLECTIVES = (
    Collective("all-gather", (), 600_000),
    Collective(
        "all-reduce", ("model",), 8 << 20, "jit(f)/dot_general", "block.py:31", group_size=2
    ),
)
CHECKS = (
    Check("x: boxes of 8 shards", True, "all 8 as predicted."),
    Check("out: value", False, "differs by 0.3."),
    Check("w: value", None, "no value was given."),
)
REPORT = Report(
    "block",
    "cpu × 8, simulated",
    cache_hit=True,
    lower_s=0.012,
    compile_s=0.34,
    place_s=0.003,
    run_s=0.0104,
    runs_s=(0.01, 0.0104, 0.012),
    collectives=COLLECTIVES,
    memory=Memory(3 << 20, 1 << 20, 1 << 19, None, None, 16 << 30),
    cost={"flops": 2.1e9},
    effects=("ordered io",),
    checks=CHECKS,
)
FAILED = Report("block", "cpu × 8", error=Failure("trace", "shapes do not fit", "block.py:31"))


def _both(x: Any, w: Any) -> Any:
    return x, w


PROGRAM = Program(_both, (X, W, BAD), MESH, RULES, name="block")

X0, X1 = ShardedAxis(0), ShardedAxis(1)

PRINTS = EffectUse("debug callback, ordered", "OrderedDebugEffect", True, False,
                   ("top level", "scan"), 2)  # fmt: skip
CALLS = EffectUse("io callback", "IOEffect", False, True, ("scan",), 1)
PLAN = layers(3)
EDITED = layers(4, names=("model", "data"))
MADE = (
    Collective("all-reduce", ("model",), 3 << 20, name="combined"),
    Collective("all-gather", ("data",), 1 << 18, is_async=True, rematerialises=True),
)
ON_STAGES = REPORT.replace(partitioned=COLLECTIVES, collectives=MADE, partition_s=0.3)
MEASURED = Measured(
    (
        MeasuredRow(
            "all-gather over data", "collective", 2e-3, 1e-3, 3e-3, 4, hidden=0.4, least=1e-3
        ),
        MeasuredRow("dot_general", "op", 1e-3, 1e-3, 1e-3, 4, source="mlp.py:12"),
    ),
    3,
    {0: 3e-3, 1: 2e-3},
    {0: 1e-3, 1: 1e-3},
    0.98,
)
RATED = REPORT.replace(roofline=roofline(REPORT, "tpu:v5e:2x4", MESH))
LEANER = RATED.replace(memory=Memory(arguments=1024), collectives=())
TRIED = [
    Candidate(found(PROGRAM)[0].edits, PROGRAM, RATED, RATED),
    Candidate(
        found(PROGRAM)[1].edits,
        PROGRAM,
        LEANER.replace(roofline=roofline(LEANER, "tpu:v5e:2x4", MESH)),
        RATED,
    ),
]

VALUES: dict[str, Any] = {
    "mesh": MESH,
    "sharding": SpecOnMesh(Spec.parse("data, None"), MESH),
    "changes": found(PROGRAM),
    "search": Search.of(TRIED, before=RATED, points=12, planned=12, compiled=3),
    "search of nothing": Search.of((), ended="seconds"),
    "candidate": found(PROGRAM)[0],
    "report with the buffers of its peak": memory_examples.report(layers=40),
    "movement": collective_movement("all-reduce", 4, 8 << 20),
    "reshard": sv.reshard([W, X, BAD], (MESH, RULES), ("data=2, model=2", RULES)),
    "reshard of many devices": sv.reshard(
        [("w", (512, 2048), "a b")],
        (make_mesh("x=16, y=16", processes=32), [("a", "x"), ("b", "y")]),
        (make_mesh("x=8, y=16", processes=16), [("a", "y")]),
    ),
    "reshard that sends nothing": sv.reshard([W], ("x=2", ""), ("x=2", "x")),
    "mesh of names": make_mesh({"文": 2, "$x^{2}$": 2, "<b>": 2}),
    "layout": lay_out((512, 2048), Spec.parse("None, model"), MESH, "bfloat16"),
    "restore": plan_restore(
        SavedCheckpoint(
            "/run/5",
            5,
            "",
            (SavedArray("w", (512, 2048), "float32", 4, (512, 512)),),
        ),
        Wanted(
            {"w": request(ArraySpec("w", (512, 2048), spec=Spec.parse("data")), MESH, None)}, MESH
        ),
    ),
    "processes": ProcessGroup(
        "2 hosts x 2, local",
        [HostProcess(0, "here", 11, (0, 1)), HostProcess(1, "here", 12, (2048, 2049))],
    ),
    "process rows": process_rows(
        lay_out((64, 8), Spec.parse("(model, data)"), make_mesh(data=4, model=2, processes=2))
    ),
    "process rows of overlapping parts": process_rows(
        lay_out((4,), Spec.parse("x"), make_mesh(x=4, y=2, processes=[0, 1, 0, 2, 1, 2, 3, 3]))
    ),
    "process rows of a scalar": process_rows(lay_out((), Spec(), MESH)),
    "process rows of nothing": process_rows(
        lay_out((0, 4), Spec.parse("data"), make_mesh(data=32, processes=32))
    ),
    "process rows of many": process_rows(
        lay_out((4096, 8), Spec.parse("data"), make_mesh(data=512, model=8, processes=1024))
    ),
    "spec": Spec.parse("x, None, (y, z)"),
    "spec with marks": Spec.of("x", unreduced={"y"}),
    "empty spec": Spec(),
    "array": W,
    "rules": RULES,
    "no rules": Rules(),
    "resolution": resolve(("embed", "mlp"), RULES, mesh=MESH, shape=(512, 2047)),
    "resolution of a scalar": resolve((), RULES),
    "remedies": resolve(("embed", "mlp"), RULES, mesh=MESH, shape=(512, 2047)).remedies("split 1"),
    "no remedies": resolve((), RULES, mesh=MESH, shape=()).remedies("split"),
    "request": request(W, MESH, RULES),
    "broken request": request(BAD, MESH, RULES),
    "request with a spec": request(W.replace(spec="data"), MESH, RULES),
    "request of no names": request(BAD.replace(logical=None, spec="None, model"), MESH, None),
    "audit": audit([W, X, BAD, TYPO], RULES, MESH),
    "path rules": PATHS,
    "no path rules": PathRules.of([]),
    "path resolution": resolve_path("mlp/kernel", PATHS, MESH, (512, 2047)),
    "path that nothing matches": resolve_path("norm/scale", PATHS),
    "audit of two dialects": audit([W, X], RULES, MESH).diff("nnx"),
    "no audit difference": audit([W, X], RULES, MESH).diff("linen"),
    "empty audit": audit([], RULES, MESH),
    "program": PROGRAM,
    "report": REPORT,
    "failed report": FAILED,
    "picture": draw(MESH),
    "effects": Effects(
        "step",
        (PRINTS, CALLS),
        (EffectUse("pure_callback", "", nesting=("scan",), calls=1),),
        mesh_size=8,
    ),
    "no effects": Effects("step"),
    "refused effects": Effects("step", refused=Refusal("trace", "ValueError: no.")),
    "sharding spec": ShardingSpec((Chunked([2]), None, Unstacked(4)), (X0, Replicated(2), X1)),
    "sharding spec of a scalar": ShardingSpec((), (Replicated(2),)),
    "parts": Parts(2, 1, 4),
    "no parts": Parts(),
    "no mesh context": MeshContext(),
    "watch table": WatchTable("step", (SignatureRow(1, "(x: float32[8])", 3, 1, 0.2),)),
    "mesh comparison": MeshComparison(*[MeshCall(dict.fromkeys(STAGES, 0))] * 3),
    "plan": PLAN,
    "long plan": layers(100),
    "plan without values": Plan("empty", MESH),
    "refused plan": REFUSED,
    "explanation": PLAN.why("tanh_2"),
    "explanation of a result": PLAN.why("output"),
    "plan difference": PLAN.diff(EDITED),
    "no plan difference": PLAN.diff(PLAN),
    "plan difference to no plan": PLAN.diff(REFUSED),
    "comparison": compare(COLLECTIVES, MADE),
    "empty comparison": compare((), ()),
    "stages": Stages(PROGRAM, PLAN, ON_STAGES),
    "stages without a compile": Stages(PROGRAM, PLAN),
    "stages of failures": Stages(PROGRAM, REFUSED, FAILED),
    "mesh context": MeshContext((MESH, make_mesh(x=2)), make_mesh(y=8), make_mesh(y=8)),
    "torus": Topology.parse("tpu:v5e:4x4"),
    "torus of three axes": Topology.parse("tpu:v5p:4x4x4"),
    "slices of chips with two devices": Topology.parse("tpu:7x:2x2x2*2"),
    "cluster": Topology.parse("gpu:h100:2x8"),
    "measured": MEASURED,
    "report with measured times": REPORT.replace(measured=MEASURED),
    "roofline": roofline(REPORT, "tpu:v5e:2x4", MESH),
    "roofline of nothing": roofline(FAILED, "tpu:v2:2x2"),
    "target": Target("cpu", "cpu", 8),
    "targets": Targets(
        [
            Target("attached", ""),
            Target("described", "tpu", 128, "tpu:7x:4x4x4", True),
            Target("described", "gpu", 16, "gpu:h100:2x8", True, "Install shardviz[gpu]."),
        ]
    ),
    "no targets": Targets(),
}
