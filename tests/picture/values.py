"""One value of every kind that has a picture, each as small as can show something."""

from __future__ import annotations

from typing import Any

from shardviz.core.layout.array import ArraySpec
from shardviz.core.layout.audit import audit
from shardviz.core.layout.contexts import MeshContext
from shardviz.core.layout.mesh import make_mesh
from shardviz.core.layout.parts import Parts
from shardviz.core.layout.request import request
from shardviz.core.layout.resolution import resolve
from shardviz.core.layout.rules import Rules
from shardviz.core.layout.sharding_parts import Chunked, Replicated, ShardedAxis, Unstacked
from shardviz.core.layout.sharding_spec import ShardingSpec
from shardviz.core.layout.shards import lay_out
from shardviz.core.layout.spec import Spec
from shardviz.core.program.effects.events import Event, Observed
from shardviz.core.program.effects.values import Effects, EffectUse, HostCall, Refusal, Token
from shardviz.core.program.program import Program
from shardviz.core.program.report import Check, Collective, Failure, Memory, Report
from shardviz.picture.draw import draw

MESH = make_mesh(data=4, model=2, processes=2)
RULES = Rules.of(
    ("batch", "data"), ("mlp", "model"), ("embed", "model"), ("embed", None), ("heads", "tensor")
)
W = ArraySpec("w_in", (512, 2048), "embed mlp", "bfloat16")
BAD = ArraySpec("w_bad", (512, 2047), "embed mlp", "bfloat16")
TYPO = ArraySpec("w_typo", (512, 2048), "embd mlp", "bfloat16")
X = ArraySpec("x", (64, 512), "batch embed", "bfloat16")

COLLECTIVES = (
    Collective("all-gather", (), 600_000),
    Collective("all-reduce", ("model",), 8 << 20, "jit(f)/dot_general", "block.py:31"),
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

PRINTS = EffectUse("debug callback, ordered", "OrderedDebugEffect", True, False, ("lowering",),
                   ("top level", "scan"), 2, "On one device only.")  # fmt: skip
CALLS = EffectUse("io callback", "IOEffect", False, True, None, ("scan",), 1)
EVENTS = tuple(
    Event(i, "io callback", f"call {i}", "scan", False, None if i == 9 else i % 3, "1.0")
    for i in range(70)
)

VALUES: dict[str, Any] = {
    "mesh": MESH,
    "mesh of names": make_mesh({"文": 2, "$x^{2}$": 2, "<b>": 2}),
    "layout": lay_out((512, 2048), Spec.parse("None, model"), MESH, "bfloat16"),
    "spec": Spec.parse("x, None, (y, z)"),
    "spec with marks": Spec.of("x", unreduced={"y"}),
    "empty spec": Spec(),
    "array": W,
    "rules": RULES,
    "no rules": Rules(),
    "resolution": resolve(("embed", "mlp"), RULES, mesh=MESH, shape=(512, 2047)),
    "resolution of a scalar": resolve((), RULES),
    "request": request(W, MESH, RULES),
    "broken request": request(BAD, MESH, RULES),
    "request with a spec": request(W.replace(spec="data"), MESH, RULES),
    "request of no names": request(BAD.replace(logical=None, spec="None, model"), MESH, None),
    "audit": audit([W, X, BAD, TYPO], RULES, MESH),
    "empty audit": audit([], RULES, MESH),
    "program": PROGRAM,
    "report": REPORT,
    "failed report": FAILED,
    "stale report": REPORT.replace(stale=True, checks=(), collectives=()),
    "picture": draw(MESH),
    "effects": Effects(
        "step",
        (PRINTS, CALLS),
        (HostCall("pure_callback", "scan"),),
        (Token("in", 0), Token("out", 0)),
        mesh_size=8,
    ),
    "no effects": Effects("step"),
    "refused effects": Effects("step", refused=Refusal("trace", "ValueError: no.")),
    "observed effects": Observed("step", EVENTS, REPORT),
    "no observed effects": Observed("step", (), FAILED),
    "sharding spec": ShardingSpec((Chunked([2]), None, Unstacked(4)), (X0, Replicated(2), X1)),
    "sharding spec of a scalar": ShardingSpec((), (Replicated(2),)),
    "parts": Parts(2, 1, 4),
    "no parts": Parts(),
    "no mesh context": MeshContext(),
    "mesh context": MeshContext((MESH, make_mesh(x=2)), make_mesh(y=8), make_mesh(y=8)),
}
