"""What is proposed, and what isn't, next to what plain jax compiles."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.advise.backend.changes import Original
from shardviz.advise.backend.trials import Trials


def mesh(**axes):
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def array(on, shape, *spec, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(on, P(*spec)))


# Data parallelism.


def adam(params, moments, batch):
    """One small batch, and an optimizer that computes more than the model."""
    (first, second), rate = moments, 1e-3
    gradient = jax.grad(lambda w: jnp.mean((jnp.tanh(batch["x"] @ w) - batch["y"]) ** 2))(params)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g**2, second, gradient)
    for _ in range(8):  # such as clipping, decay and a schedule
        rate = rate * (1 + jnp.tanh(jnp.mean(jnp.sin(second)) * 0))
    return params - rate * first / (jnp.sqrt(second) + 1e-8), (first, second)


def autoencoder(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) @ w.T - x) ** 2))(w)


def microbatches(w, x):
    def add(total, rows):
        return total + jax.grad(lambda w: jnp.mean((rows @ w) ** 2))(w), None

    return lax.scan(add, jnp.zeros_like(w), x.reshape(4, -1, x.shape[-1]))[0]


def data_parallel(name):
    on = mesh(data=8)
    if name == "adam":
        w, batch = array(on, (64, 64)), {k: array(on, (8, 64), "data") for k in "xy"}
        return adam, (w, (w, w), batch)
    if name == "autoencoder":
        return autoencoder, (array(on, (64, 128)), array(on, (256, 64), "data"))
    return microbatches, (array(on, (64, 64)), array(on, (256, 64), "data"))


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param("adam", "cpu:8", marks=pytest.mark.long),
        ("autoencoder", "cpu:8"),
        ("microbatches", "tpu:v5e:2x4"),
    ],
)
def test_a_batch_stays_split(name, target, eight_devices):
    fn, arguments = data_parallel(name)
    report = sv.compile(fn, *arguments, target=target)
    found = sv.changes(report)
    for change in found:
        for request in change.program.requests:
            if request.array.name.startswith(("batch", "x")):
                assert "data" in request.spec.axes
        for edit in change.edits:
            assert edit.code not in ("argument", "constraint") or "data" in edit.spec.axes
    if name == "adam":
        # No edit that is tried has each device compute more; these compute less.
        assert found
        assert all(c.report.cost["flops"] < report.cost["flops"] for c in found)
        assert {one.code for one in found.refused} == {"same collective"}
        return
    refused = [one for one in found.refused if one.code == "more work"]
    assert refused
    assert any("parallelism" in str(one) for one in refused)


# Reasons of refusals.


def norm(w, b):
    return w, jnp.vdot(w, w) + jnp.vdot(b, b)


def scaled(w):
    return w * 2, jnp.vdot(w, w)


def rotary(x, positions):
    angle = positions[..., None, None] / 10000 ** (jnp.arange(8) / 8)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    low, high = jnp.split(x, 2, -1)
    return jnp.concatenate([low * cos - high * sin, low * sin + high * cos], -1)


def top_p(logits):
    s = -jnp.sort(-logits, axis=-1)
    total = jnp.cumsum(jax.nn.softmax(s), -1)
    cut = jnp.take_along_axis(s, (total < 0.9).sum(-1, keepdims=True), -1)
    return jnp.where(logits >= cut, logits, -1e9)


def lora(w, ab, x, y):
    def loss(ab):
        return ((x @ lax.stop_gradient(w) + (x @ ab["a"]) @ ab["b"] - y) ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(ab)
    return jax.tree.map(lambda a, b: a - 0.1 * b, ab, gradient), value


def cache(kc, k, at):
    kc = lax.dynamic_update_slice_in_dim(kc, k, at, 1)
    return kc, lax.dynamic_slice_in_dim(kc, at, 4, 1)


def split_arrays(fn):
    on = mesh(data=4, model=2)
    square = array(on, (64, 64), "data", "model")
    if fn is norm:
        return square, array(on, (64,), "model")
    if fn is scaled:
        return (square,)
    if fn is rotary:
        x = array(on, (8, 32, 4, 16), "data", None, None, "model")
        return x, array(on, (8, 32), "data", dtype="int32")
    if fn is top_p:
        return (array(on, (16, 256), "data", "model"),)
    if fn is cache:
        kc = array(on, (8, 64, 4, 16), None, "data", "model")
        return kc, array(on, (8, 1, 4, 16), None, None, "model"), array(on, (), dtype="int32")
    ab = {"a": array(on, (64, 8), "data"), "b": array(on, (8, 64), None, "model")}
    rows = array(on, (32, 64), "data")
    return square, ab, rows, rows


def moves(compiled):
    kinds = r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
    return re.findall(kinds, compiled.as_text())


@pytest.mark.parametrize(
    ("fn", "number", "spec", "kind"),
    [
        (norm, 0, ("data",), "all-gather"),
        (scaled, 0, ("data",), "all-gather"),
        (rotary, 0, ("data",), "collective-permute"),
        (top_p, 0, ("data",), "all-gather"),
        (lora, 2, (None, "data"), "all-gather"),
        (cache, 0, ("data", None, "model"), "all-gather"),
    ],
)
def test_a_change_that_removes_the_collective_isnt_refused(fn, number, spec, kind, eight_devices):
    arguments = split_arrays(fn)
    old = arguments[number]
    new = array(old.sharding.mesh, old.shape, *spec)
    split = (*arguments[:number], new, *arguments[number + 1 :])
    before, after = (jax.jit(fn).lower(*args).compile() for args in (arguments, split))
    assert moves(after).count(kind) < moves(before).count(kind)
    assert after.cost_analysis()["flops"] < 1.3 * before.cost_analysis()["flops"]

    report = sv.compile(fn, *arguments, target="cpu:8")
    largest = max(report.collectives, key=lambda one: one.sent_in_all)
    assert largest.kind == kind
    found = sv.changes(report, largest)
    assert [one.kind for one in found[0].collectives].count(kind) < moves(before).count(kind)
    for refusal in found.refused:
        for edit in refusal.edits:
            at = (getattr(edit, "array", None), getattr(edit, "spec", None))
            names = [one.name for one in report.of.arrays]
            assert at != (names[number], sv.Spec.of(*spec)) or edit.code != "argument"


@pytest.mark.parametrize("fn", [norm, scaled, rotary, top_p, lora, cache])
def test_a_refused_change_does_what_its_reason_says(fn, eight_devices):
    report = sv.compile(fn, *split_arrays(fn), target="cpu:8")
    largest = max(report.collectives, key=lambda one: one.sent_in_all)
    found = sv.changes(report, largest)
    trials = Trials(report.of, "cpu:8")
    for refusal in found.refused:
        changed = sv.compile(trials.edited(refusal.edits), target="cpu:8")
        if refusal.code == "same collective":
            left = [one for one in changed.collectives if one.kind == largest.kind]
            assert max(one.sent_in_all for one in left) >= largest.sent_in_all
        if refusal.code == "more work":
            assert changed.cost["flops"] > report.cost["flops"]


def test_iterations_of_loops_count_as_work(eight_devices):
    on = mesh(data=4, model=2)

    def fn(x, h):
        loop = lax.scan(lambda h, _: (jnp.tanh(h * 2) - h, None), h, None, length=64)
        return x * 2 + 1, loop[0]

    h = array(on, (64, 16), "data")
    programs = []
    for axes in (("data", "model"), ("data",)):
        arguments = array(on, (64, 64), *axes), h
        programs.append((sv.compile(fn, *arguments, target="cpu:8"), sv.plan(fn, *arguments)))
    (before, plan), (after, changed) = programs
    assert after.cost["flops"] > 1.3 * before.cost["flops"]
    assert Original(before, plan, ()).work(after, changed) == pytest.approx(1, abs=0.1)


# Gains.


def test_what_is_proposed_saves_a_hundredth_and_takes_no_longer(eight_devices):
    on = mesh(data=4, model=2)
    fn = lambda w, v, x: jax.nn.relu(x @ w) @ v  # noqa: E731
    specs = ((64, 128), None, "model"), ((128, 64), "model"), ((256, 64), "data")
    arguments = [array(on, shape, *spec) for shape, *spec in specs]
    for target in ("cpu:8", "tpu:v5e:2x4"):
        report = sv.compile(fn, *arguments, target=target)
        found = sv.changes(report)
        sent = sum(one.sent_in_all for one in report.collectives)
        for change in found:
            assert change.bytes <= 0.99 * sent
            if change.least_seconds is not None:
                assert change.least_seconds <= 1.001 * change.before.roofline.seconds


# Collectives that the user wrote.


def test_splits_of_arguments_are_not_tried_for_a_collective_of_the_user(eight_devices):
    on = mesh(data=4, model=2)
    specs = {"in_specs": (P("model"), P("data", "model")), "out_specs": P("data")}

    def fn(w, x):
        mapped = jax.shard_map(lambda w, x: lax.psum(x @ w, "model"), mesh=on, **specs)
        return jnp.tanh(mapped(w, x))

    arguments = array(on, (64, 128), "model"), array(on, (256, 64), "data", "model")
    report = sv.compile(fn, *arguments, target="cpu:8")
    (collective,) = report.collectives
    found = sv.changes(report, collective)
    codes = {edit.code for one in (*found, *found.refused) for edit in one.edits}
    assert codes.isdisjoint({"argument", "constraint", "result", "rule"})


# Edits that belong together.


def attention(p, x):
    batch, length, _ = x.shape
    q, k, v = (x @ p[name] for name in ("wq", "wk", "wv"))
    q = q.reshape(batch, length, 2, 16, 16)
    k, v = (one.reshape(batch, length, 2, 16) for one in (k, v))
    scores = jax.nn.softmax(jnp.einsum("bsngh,btnh->bngst", q, k), -1)
    mixed = jnp.einsum("bngst,btnh->bsngh", scores, v)
    return mixed.reshape(batch, length, -1) @ p["wo"]


def attention_arguments():
    on = mesh(data=2, model=4)
    p = {name: array(on, (64, 32), None, "model") for name in ("wk", "wv")}
    p |= {"wq": array(on, (64, 512), None, "model"), "wo": array(on, (512, 64), "model")}
    return on, p, array(on, (4, 16, 64), "data")


def test_keys_and_values_are_replicated_together(eight_devices):
    on, p, x = attention_arguments()
    report = sv.compile(attention, p, x, target="cpu:8")
    first = sv.changes(report, 0)[0]
    assert first.edit.startswith("Replicate p.wk and p.wv")
    assert first.values.ok
    # As code beside the arguments, with plain jax.
    random = np.random.default_rng(0)
    values: dict[str, Any] = {}
    for name, one in p.items():
        value = random.standard_normal(one.shape).astype("float32")
        values[name] = jax.device_put(value, one.sharding)
    x = jax.device_put(random.standard_normal(x.shape).astype("float32"), x.sharding)
    before = attention(values, x)
    exec(first.code(), {"jax": jax, "P": P, "mesh": on, "p": values})  # noqa: S102
    assert values["wk"].sharding.is_fully_replicated
    text = jax.jit(attention).lower(values, x).compile().as_text()
    kinds = re.findall(r"= [^=]*? (all-\w+|reduce-scatter|collective-permute)(?:-start)?\(", text)
    assert sorted(kinds) == sorted(one.kind for one in first.collectives)
    np.testing.assert_allclose(jax.jit(attention)(values, x), before, rtol=1e-3, atol=1e-3)


# Code.

STEP = """
def step(params, batch):
    {edit}
    h = jnp.tanh(batch["x"] @ params["w"][0])
    return ((h - batch["y"]) ** 2).mean()
"""


@pytest.mark.parametrize("context", [False, True], ids=["mesh by name", "mesh in context"])
def test_the_code_of_a_constraint_of_a_dict_runs_where_it_is_pasted(context, eight_devices):
    on = mesh(data=4, model=2)
    names = {"jax": jax, "jnp": jnp, "P": P, "mesh": on}

    def function(edit):
        scope = dict(names)
        exec(STEP.format(edit=edit), scope)  # noqa: S102
        return scope["step"]

    params = {"w": [array(on, (32, 16), None, "model")]}
    batch = {"x": array(on, (64, 32), "data"), "y": array(on, (64, 16))}
    from shardviz.advise.backend.apply import apply_edit
    from shardviz.advise.edits import ConstrainArgument

    with (
        jax.set_mesh(on)
        if context
        else jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))
    ):
        program = sv.program(function("pass"), params, batch)
        number = [one.name for one in program.arrays].index("batch.y")
        edit = ConstrainArgument("batch.y", number, sv.Spec.parse("data, model"))
        changed = apply_edit(program, edit)
        code = edit.to_paste(changed)
        assert code.startswith('batch["y"] = jax.lax.with_sharding_constraint(batch["y"], ')
        assert ("NamedSharding" in code) is not context
        compiled = jax.jit(function(code)).lower(params, batch).compile()
        report = sv.compile(changed, target="cpu:8")
    kinds = re.findall(r"(?:all-reduce|all-gather|all-to-all)(?:-start)?\(", compiled.as_text())
    assert len(kinds) == len(report.collectives)
