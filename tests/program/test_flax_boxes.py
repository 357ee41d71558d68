"""What flax keeps beside a parameter counts for programs as it counts for audits."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.axis_rules.audit import audit
from shardviz.axis_rules.dialects import Dialect
from shardviz.axis_rules.rules import Rules
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.plans.backend.build_plan import plan_program
from shardviz.programs.backend.build_program import build_program
from shardviz.programs.notes import NoRules
from shardviz.runs.backend.targets import choose, device_mesh
from tests.program.helpers import array, run, sentences

MESH = make_mesh(data=2, model=4)
RULES = Rules.parse("mlp -> model")
X = array("x", (8, 64), "data")
ONES = nn.initializers.ones


def variables(box, names):
    dense = nn.Dense(256, kernel_init=box(ONES, names))
    struct = jax.ShapeDtypeStruct((8, 64), jnp.float32)
    return dense, jax.eval_shape(dense.init, jax.random.key(0), struct)


def made(dense, tree, rules=None, **options):
    options = {"in_specs": None, "out_specs": None, "donate": (), "name": ""} | options
    return build_program(dense.apply, (tree, X), MESH, rules, Dialect.LINEN, **options)


def found(program):
    return {a.name: (a.logical, None if a.spec is None else str(a.spec)) for a in program.arrays}


LINEN = {
    "logical names": (nn.with_logical_partitioning, ("embed", "mlp"), RULES,
                      (("embed", "mlp"), None)),
    "logical names without rules": (nn.with_logical_partitioning, ("embed", "mlp"), None,
                                    (("embed", "mlp"), None)),
    "logical names that are axes": (nn.with_logical_partitioning, (None, "model"), None,
                                    ((None, "model"), None)),
    "mesh axes": (nn.with_partitioning, (None, "model"), None, (None, "P(None, 'model')")),
    "mesh axes with rules": (nn.with_partitioning, ("embed", "mlp"), RULES,
                             (("embed", "mlp"), None)),
    "no mesh axes": (nn.with_partitioning, ("embed", "mlp"), None, (("embed", "mlp"), None)),
    "two axes": (nn.with_partitioning, (None, ("data", "model")), RULES,
                 (None, "P(None, ('data', 'model'))")),
    "a short tuple": (nn.with_partitioning, ("model",), None, (None, "P('model', None)")),
}  # fmt: skip


@pytest.mark.parametrize(("box", "names", "rules", "kernel"), LINEN.values(), ids=LINEN)
def test_boxes_of_linen_are_read(box, names, rules, kernel):
    dense, tree = variables(box, names)
    expected = {"variables.params.bias": (None, None), "variables.params.kernel": kernel}
    assert found(made(dense, tree, rules)) == expected | {"x": (None, "P('data')")}


@pytest.mark.parametrize("names", [("embed", "mlp"), ("mlp", None), (None, None)], ids=str)
def test_programs_and_audits_agree(names):
    dense, tree = variables(nn.with_logical_partitioning, names)
    requests = {r.array.name: r.layout for r in made(dense, tree, RULES).requests if r.layout}
    audited = {
        "variables." + row.array.name.replace("/", "."): row.layout.shard_shape
        for row in audit(tree, RULES, MESH).rows
        if row.layout is not None
    }
    assert {k: layout.shard_shape for k, layout in requests.items() if k != "x"} == audited


def test_boxes_are_there_when_the_function_is_called_and_everything_splits():
    dense, tree = variables(nn.with_logical_partitioning, ("embed", "mlp"))
    program = made(dense, tree, RULES, donate=(0,))
    plan = plan_program(program)
    assert plan.error is None
    assert plan.op("variables.params.kernel").spec == Spec.of(None, "model")
    report = run(program)
    assert report.ok, report
    assert report.out_layouts["output"].shard_shape == (4, 64)
    assert program.options["donate"] == (0,)


def test_outputs_in_boxes_are_named_without_a_step_for_the_box():
    _, tree = variables(nn.with_partitioning, (None, "model"))
    same = build_program(
        lambda v, x: v, (tree, X), MESH, None, Dialect.LINEN, None, {"params": P()}, (), ""
    )
    report = run(same)
    assert report.ok, report
    assert list(report.out_layouts) == ["output.params.bias", "output.params.kernel"]
    assert isinstance(report.outputs["params"]["kernel"], nn.Partitioned)


def test_logical_names_without_rules_are_said():
    dense, tree = variables(nn.with_logical_partitioning, ("embed", "mlp"))
    expected = sentences(NoRules("variables.params.kernel", "embed mlp"))
    assert made(dense, tree).notes == expected
    assert expected[0] in plan_program(made(dense, tree)).notes
    assert made(dense, tree, RULES).notes == ()
    assert made(*variables(nn.with_partitioning, (None, "model"))).notes == ()


class Net(nnx.Module):
    def __init__(self, names, rngs):
        init = nnx.with_partitioning(nnx.initializers.lecun_normal(), names)
        self.linear = nnx.Linear(64, 256, kernel_init=init, rngs=rngs)

    def __call__(self, x):
        return self.linear(x)


def test_states_of_nnx_are_read():
    with jax.set_mesh(device_mesh(MESH, choose("cpu", 8))):
        graph, state = nnx.split(nnx.eval_shape(lambda: Net((None, "model"), nnx.Rngs(0))))
    program = build_program(
        lambda state, x: nnx.merge(graph, state)(x),
        (state, X), MESH, None, Dialect.LINEN, None, None, (), "",
    )  # fmt: skip
    assert [a.name for a in program.arrays] == [
        "state.linear.bias", "state.linear.kernel", "x",
    ]  # fmt: skip
    assert str(program.arrays[1].spec) == "P(None, 'model')"
    assert run(program).ok


def test_variables_of_nnx_bring_their_axes_without_a_sharding():
    bare = nnx.Param(jax.ShapeDtypeStruct((64, 256), jnp.float32), out_sharding=(None, "model"),
                     eager_sharding=False)  # fmt: skip
    program = build_program(
        lambda p: p * 2, ({"w": bare},), MESH, None, Dialect.NNX, None, None, (), ""
    )
    assert found(program) == {"p.w": (None, "P(None, 'model')")}
    ruled = build_program(
        lambda p: p * 2, ({"w": bare},), MESH, RULES, Dialect.NNX, None, None, (), ""
    )
    assert found(ruled) == {"p.w": ((None, "model"), None)}


def of_paths(path, leaf):
    if path.endswith("kernel"):
        return ("embed", "mlp")
    return P("model") if path.endswith("bias") else None


def test_a_function_says_how_arrays_without_names_are_split():
    tree = {"kernel": jax.ShapeDtypeStruct((64, 256), "float32"),
            "bias": jax.ShapeDtypeStruct((256,), "float32"),
            "scale": jax.ShapeDtypeStruct((), "float32")}  # fmt: skip

    def step(params, x):
        return (x @ params["kernel"] + params["bias"]) * params["scale"]

    program = sv.program(step, tree, X, mesh=MESH, rules=RULES, names=of_paths)
    names = {"params.kernel": (("embed", "mlp"), None), "params.bias": (None, "P('model')"),
             "params.scale": (None, None), "x": (None, "P('data')")}  # fmt: skip
    assert found(program) == names
    specs = {
        request.array.name.removeprefix("params."): request.spec for request in program.requests
    }
    rows = {row.path: row.spec for row in sv.audit(tree, RULES, MESH, names=of_paths).rows}
    assert str(specs["kernel"]) == "P(None, 'model')"
    assert [specs[name] for name in ("kernel", "bias")] == [rows["kernel"], rows["bias"]]
