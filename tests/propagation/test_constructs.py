"""Everything jax can put around an operation: what a plan says of the values inside."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from shardviz.plans.backend.builder import all_axes
from shardviz.plans.explanation import NoRuleLine, NotSplitLine, SplitLine
from shardviz.plans.plan_notes import (
    InsideShardMap,
    LoweredForTpus,
    NoShardingRule,
    NotCovered,
    OpaqueCall,
    PythonCall,
    Unused,
)
from tests.propagation.planning import V, W, X, plan


def mlp(x, w, v):
    return jax.nn.relu(x @ w) @ v


def scan(x, w, v):
    return jax.lax.scan(lambda c, _: (mlp(c, w, v), None), x, None, length=5)[0]


def scan_gradient(x, w, v):
    return jax.grad(lambda w: jnp.sum(scan(x, w, v)))(w)


def fori(x):
    return jax.lax.fori_loop(2, 8, lambda i, c: jax.lax.fori_loop(0, 3, lambda j, d: d * c, c), x)


def while_loop(x):
    return jax.lax.while_loop(lambda c: jnp.sum(c) < 10, lambda c: c * 2, x)


def cond(x, w):
    return jax.lax.cond(x[0, 0] > 0, lambda x: x @ w, lambda x: jnp.cos(x) @ w, x)


def switch(x):
    return jax.lax.switch(jnp.int32(x[0, 0]), [jnp.sin, jnp.cos, jnp.tan], x)


def remat(x, w):
    return jax.grad(lambda w: jnp.sum(jax.checkpoint(lambda w: jnp.sin(jnp.sin(x @ w)))(w)))(w)


def vmap(x, w):
    return jax.vmap(lambda row: row @ w)(x)


def shard_map(x, w):
    body = lambda x, w: jax.lax.psum(jnp.sin(x) @ w, "model")  # noqa: E731
    return jax.shard_map(
        body, in_specs=(P("data", "model"), P("model")), out_specs=P("data", None)
    )(x, w)


def partly_manual(x, w):
    body = lambda x, w: jnp.sin(x) @ w  # noqa: E731
    return jax.shard_map(body, in_specs=(P("data"), P()), out_specs=P("data"), axis_names={"data"})(
        x, w
    )


@jax.custom_vjp
def with_vjp(x):
    return jnp.sin(x)


with_vjp.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))


@jax.custom_jvp
def with_jvp(x):
    return jnp.sin(x)


with_jvp.defjvp(lambda p, t: (with_jvp(*p), t[0] * jnp.cos(p[0])))


def nested(x):
    inner = jax.jit(jnp.sin)
    outer = jax.jit(lambda x: inner(inner(x)))
    return outer(outer(x))


def constrained(x):
    return jax.lax.with_sharding_constraint(jnp.sin(x), P("model", "data")) * 2


def barrier(x):
    return jax.lax.optimization_barrier(x) * 2


def special(x):
    return jax.scipy.special.erfinv(x) + jax.scipy.special.digamma(x)


# name: function, arguments, values inside with their spec, and what else holds for them
COVERED = {
    "scan": (scan, "xwv", {"while[1]": "P('data', None)", "dot_general": "P('data', 'model')"}),
    "scan, gradient": (scan_gradient, "xwv", {"output": "P(None, 'model')"}),
    "loop in a loop": (fori, "x", {"mul": "P('data', None)"}),
    "while loop": (while_loop, "x", {"mul": "P('data', None)"}),
    "cond": (cond, "xw", {"cond": "P('data', 'model')", "dot_general_1": "P('data', 'model')"}),
    "switch": (switch, "x", {"tan": "P('data', None)"}),
    "remat": (remat, "xw", {"dot_general": "P('data', 'model')", "output": "P(None, 'model')"}),
    "vmap": (vmap, "xw", {"dot_general": "P('data', 'model')"}),
    "shard_map": (shard_map, "xw", {"shard_map": "P('data', None)"}),
    "shard_map over one axis": (
        partly_manual,
        "xw",
        {"shard_map": "P('data', 'model')", "dot_general": "P(None, 'model')"},
    ),
    "custom_vjp": (jax.grad(lambda x: jnp.sum(with_vjp(x))), "x", {"cos": "P('data', None)"}),
    "custom_jvp": (lambda x: jax.jvp(with_jvp, (x,), (x,))[1], "x", {"cos": "P('data', None)"}),
    "nested jit": (nested, "x", {"sin_3": "P('data', None)"}),
    "constraint": (constrained, "x", {"sin": "P('model', 'data')", "mul": "P('model', 'data')"}),
    "optimization barrier": (barrier, "x", {"optimization_barrier": "P('data', None)"}),
    "erf_inv, which XLA breaks up": (special, "x", {"erf_inv": "P('data', None)"}),
    "top_k": (lambda x: jax.lax.top_k(x, 3), "x", {"top_k[1]": "P('data', None)"}),
    "sort": (lambda x: jnp.sort(x, axis=1), "x", {"sort": "P('data', None)"}),
    "cumsum": (lambda x: jnp.cumsum(x, axis=0), "x", {"output": "P('data', None)"}),
    "random": (lambda x: x + jax.random.normal(jax.random.key(0), x.shape), "x", {}),
    "gradient": (
        jax.grad(lambda x, w, v: jnp.sum(mlp(x, w, v)), (1, 2)),
        "xwv",
        {"output[0]": "P(None, 'model')", "output[1]": "P('model', None)"},
    ),
    "a dimension split in two": (
        lambda x: jnp.sin(x.reshape(2, 32, 32)),
        "x",
        {"sin": "P('data:(1)2', 'data:(2)2', None)"},
    ),
}
ARGUMENTS = {"x": X, "w": W, "v": V}


@pytest.fixture(scope="module")
def plans(eight_devices):
    made = {}

    def get(name):
        if name not in made:
            fn, letters, _ = COVERED[name]
            made[name] = plan(fn, **{a: ARGUMENTS[a] for a in letters})
        return made[name]

    return get


@pytest.mark.parametrize("name", COVERED)
def test_every_value_is_covered_and_every_axis_leads_back_to_its_origin(plans, name):
    made, expected = plans(name), COVERED[name][2]
    assert {n: str(made.op(n).spec) for n in expected} == expected
    assert len(made.by_name) == len(made.ops)
    for op in made.ops:
        assert op.covered, op
        assert set(op.operands) <= set(made.by_name)
        assert set(op.origins) == set(all_axes(op.spec)), op
        assert {n for s in op.steps for n in (s.origin, *s.to)} <= set(made.by_name)
        split = [fact for fact in made.why(op).facts if isinstance(fact, SplitLine)]
        assert len(split) == len(op.spec.axes)


TRIPS = {
    "scan": ("dot_general", 5),
    "scan, gradient": ("dot_general_2", 5),
    "loop in a loop": ("mul", 18),
    "while loop": ("mul", None),
    "gradient": ("dot_general", None),
}


@pytest.mark.parametrize("name", TRIPS)
def test_how_often_a_loop_runs(plans, name):
    value, trips = TRIPS[name]
    assert plans(name).op(value).trips == trips


def test_a_function_called_twice_has_the_origins_of_each_call(eight_devices):
    layer = jax.jit(lambda x, w: jnp.tanh(x @ w))
    made = plan(lambda x, a, b: layer(x, a) + layer(x, b), x=X, a=W, b=W)
    found = [str(made.op(n).origins["model"]) for n in ("tanh", "tanh_1")]
    assert found == ["model from argument a", "model from argument b"]


def test_origins_name_arguments_constraints_and_shard_maps(plans):
    mul = plans("constraint").op("mul").origins["model"]
    assert (mul.kind, mul.name) == ("constraint", "sin")
    assert mul.source.startswith("test_constructs.py:")
    manual = plans("shard_map").op("output").origins["data"]
    assert str(manual).startswith("data from manual out_specs[0] of shard_map (test_constructs")


def test_an_axis_asked_for_on_an_argument_stays_its_own(plans):
    assert str(plans("shard_map over one axis").op("x").origins["data"]) == "data from argument x"


def test_a_shard_map_shows_one_block(plans):
    op = plans("shard_map over one axis").op("dot_general")
    assert op.shape == (16, 128)
    assert [type(note) for note in op.notes] == [InsideShardMap]
    assert op.op.endswith("shard_map/dot_general")


UNCOVERED = {
    "custom call": (
        lambda x: jax.ffi.ffi_call("mine", jax.ShapeDtypeStruct(x.shape, x.dtype))(x) * 2,
        "ffi_call", OpaqueCall("mine"),
    ),
    "LAPACK": (
        lambda x: jnp.linalg.cholesky(x @ x.T), "cholesky[0]",
        OpaqueCall("lapack_spotrf_ffi"),
    ),
    "callback": (
        lambda x: jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x) * 2,
        "pure_callback", None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNCOVERED)
def test_what_is_not_covered_says_so(eight_devices, name):
    fn, value, note = UNCOVERED[name]
    made = plan(fn, x=X)
    op = made.op(value)
    first, second = op.notes
    assert first == note or isinstance(first, PythonCall)
    assert (op.covered, second, op.spec.axes) == (False, NoShardingRule(), ())
    assert any(isinstance(note, NotCovered) for note in made.notes)
    lines = [fact for fact in made.why(value).facts if isinstance(fact, NotSplitLine)]
    assert {type(line) for line in lines} == {NoRuleLine}


def test_erf_is_as_the_shardy_of_each_version_has_it(eight_devices):
    made = plan(jax.lax.erf, x=X)
    crosses = jax.__version_info__ >= (0, 11)
    assert (made.op("erf").covered, bool(made.op("output").spec.axes)) == (crosses, crosses)


def test_a_pallas_kernel_is_lowered_for_tpus(eight_devices):
    pallas = pytest.importorskip("jax.experimental.pallas")

    def kernel(x, out):
        out[...] = x[...] * 2

    def doubled(x):
        call = pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))
        return call(x)

    def fn(x):
        split = P("data", "model")
        return jax.shard_map(doubled, in_specs=split, out_specs=split, check_vma=False)(x)

    made = plan(fn, x=((32, 256), "data, model"))
    assert LoweredForTpus() in made.notes
    kinds = [type(note) for note in made.op("pallas_call").notes]
    assert kinds == [InsideShardMap, OpaqueCall, NoShardingRule]


def test_ordered_effects_are_values_and_results_keep_their_names(eight_devices):
    from jax.experimental import io_callback

    same = lambda x: x  # noqa: E731
    made = plan(lambda x: io_callback(same, x, x, ordered=True) * 2, x=X)
    assert [op.name for op in made.ops if op.kind == "result"] == ["output"]
    assert made.op("output").shape == (64, 32)


def test_an_unused_argument_is_still_there(eight_devices):
    made = plan(lambda x, w: w * 2, x=X, w=W)
    assert [op.name for op in made.ops[:2]] == ["x", "w"]
    assert made.op("x").notes == (Unused(),)
    assert str(made.op("w").spec) == "P(None, 'model')"
