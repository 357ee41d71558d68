"""Plans made by hand: small, with everything that a list of values shows."""

from __future__ import annotations

from shardviz.base.collective import Collective
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.plans.plan import Plan
from shardviz.plans.plan_notes import NoShardingRule, OpaqueCall
from shardviz.plans.plan_values import (
    Origin,
    PlannedOp,
    ShardingRule,
    Step,
)
from shardviz.programs.failure import Failure

MESH = make_mesh(data=4, model=2)
ROWS = ShardingRule(((("i",),),), ((("i",),),), {"i": 64})


def layers(count: int, mesh: MeshSpec = MESH, names: tuple[str, str] = ("data", "model")) -> Plan:
    """`count` layers of four values each, the second in a loop, the last in the backward pass."""
    data, model = names
    ops = [_argument("x", (64, 512), data, Spec.of(data, None))]
    ops += [_argument(f"w_{n}", (512, 512), model, Spec.of(None, model)) for n in range(count)]
    moves, before, number = [], "x", 0
    for layer in range(count):
        for kind in ("dot_general", "tanh", "reduce", "add"):
            name = kind if not layer else f"{kind}_{layer}"
            made = _value(name, layer, count, before, number, names)
            ops.append(made)
            if kind == "reduce":
                cause = f"{name} sums over dimension 1, which is split over {model}."
                moves.append(
                    Collective("all-reduce", (model,), 1 << 20, value=name, group_size=2,
                               source=made.source, cause=cause, trips=made.trips or 1)
                )  # fmt: skip
            before, number = name, number + 1
    last = Step(number, data, "output", before, ("output",))
    ops.append(
        PlannedOp("output", "result", shape=(64, 512), dtype="float32", spec=Spec.of(data, None),
                  origins={data: Origin(data, "argument", "x")}, steps=(last,), operands=(before,))
    )  # fmt: skip
    return Plan("layers", mesh, tuple(ops), tuple(moves), 0.004, 0.006, 0.011, ("A note.",))


def _argument(name: str, shape: tuple[int, ...], axis: str, spec: Spec) -> PlannedOp:
    origins = {axis: Origin(axis, "argument", name)}
    return PlannedOp(name, "argument", shape=shape, dtype="bfloat16", spec=spec, origins=origins)


def _value(
    name: str, layer: int, count: int, before: str, number: int, axes: tuple[str, str]
) -> PlannedOp:
    data, model = axes
    opcode = name.partition("_1")[0]
    wide = not name.startswith(("reduce", "add"))
    origins = {data: Origin(data, "argument", "x")}
    steps = [Step(number, data, name, before, (name,))]
    if wide:
        origins[model] = Origin(model, "argument", f"w_{layer}")
        source = f"w_{layer}" if opcode.startswith("dot") else before
        steps.append(Step(number, model, name, source, (name,)))
    backward, looped = layer == count - 1 and count > 2, layer == 1
    hidden = looped and opcode.startswith("add")
    return PlannedOp(
        name, "op", opcode, f"jit(f)/layer/{name}", f"block.py:{30 + layer}",
        (f"block.py:{30 + layer}", "train.py:9"), (64, 512), "float32",
        Spec.of(data, model) if wide else Spec.of(data, None), origins, number, tuple(steps),
        factors=ROWS if opcode.startswith("dot") else None,
        operands=(before, f"w_{layer}") if opcode.startswith("dot") else (before,),
        scope=("jit(f)", f"layer_{layer}"), region="loop body" if looped else "",
        trips=12 if looped else None, backward=backward, covered=not hidden,
        notes=(OpaqueCall("mine"), NoShardingRule()) if hidden else (),
    )  # fmt: skip


REFUSED = Plan(
    "refused",
    MESH,
    error=Failure("trace", "Both sides contract over model.", "block.py:31"),
)
