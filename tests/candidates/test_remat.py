"""Rematerialisation on a jaxpr, next to jax.checkpoint itself: the same memory and values."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AxisType

from shardviz.advise.backend.remat import POLICIES, rematerialised
from shardviz.programs.backend.jaxprs import operations

LAYERS, ROWS, WIDTH, HIDDEN = 6, 64, 16, 32
MODES = ("auto", "constraint", "explicit", "shard_map")


def policy_named(name):
    return getattr(jax.checkpoint_policies, name)


def scanned_mlp(mode, policy=None):
    """A train step over scanned layers, with its arguments, on data=4, model=2."""
    kind = AxisType.Explicit if mode == "explicit" else AxisType.Auto
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)
    specs = {"up": jax.P(None, None, "model"), "down": jax.P(None, "model", None)}

    def split(*axes):
        return jax.NamedSharding(mesh, jax.P(*axes))

    def layer(h, w):
        if mode == "explicit":
            up = jnp.matmul(h, w["up"], out_sharding=jax.P("data", "model"))
            down = jnp.matmul(jax.nn.relu(jnp.tanh(up)), w["down"], out_sharding=jax.P("data"))
            return h + down, None
        down = jax.nn.relu(jnp.tanh(h @ w["up"])) @ w["down"]
        if mode == "constraint":
            down = jax.lax.with_sharding_constraint(down, split("data"))
        if mode == "shard_map":
            down = jax.lax.psum(down, "model")
        return h + down, None

    def loss(ws, x):
        body = layer if policy is None else jax.checkpoint(layer, policy=policy_named(policy))
        found = jnp.mean(jax.lax.scan(body, x, ws)[0] ** 2)
        return jax.lax.pmean(found, "data") if mode == "shard_map" else found

    def step(ws, x):
        found, gradients = jax.value_and_grad(loss)(ws, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, gradients), found

    if mode == "shard_map":
        ins, outs = (specs, jax.P("data")), (specs, jax.P())
        step = jax.shard_map(step, mesh=mesh, in_specs=ins, out_specs=outs)
    key = jax.random.key(0)
    up, down = (LAYERS, WIDTH, HIDDEN), (LAYERS, HIDDEN, WIDTH)
    values = {"up": jax.random.normal(key, up) / 8, "down": jax.random.normal(key, down) / 8}
    ws = {name: jax.device_put(values[name], split(*specs[name])) for name in values}
    return mesh, step, (ws, jax.device_put(jnp.ones((ROWS, WIDTH)), split("data")))


def temporaries(fn, *args):
    analysis = jax.jit(fn).lower(*args).compile().memory_analysis()
    return analysis.temp_size_in_bytes


@pytest.mark.parametrize("mode", MODES)
def test_a_scanned_mlp_needs_what_checkpoint_needs(mode, eight_devices):
    mesh, step, args = scanned_mlp(mode)
    leaves = jax.tree.leaves(args)
    with jax.set_mesh(mesh):
        jaxpr = jax.make_jaxpr(step)(*args)
        before = temporaries(step, *args)
        expected = jax.tree.leaves(jax.jit(step)(*args))
        for policy in ("nothing_saveable", "dots_saveable"):
            changed, lines = rematerialised(jaxpr, policy)
            assert len(lines) == 1
            assert lines[0].startswith("test_remat.py:")
            ours = temporaries(jaxpr_as_fun(changed), *leaves)
            real = temporaries(scanned_mlp(mode, policy)[1], *args)
            # A buffer of one layer may be kept more or less, never one of all.
            assert abs(ours - real) <= ROWS * HIDDEN * 4
            assert ours < 0.8 * before
            found = jax.jit(jaxpr_as_fun(changed))(*leaves)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


class Block(nn.Module):
    """A transformer block with attention of two heads."""

    @nn.compact
    def __call__(self, h, _):
        y = nn.LayerNorm()(h)
        q, k, v = (nn.DenseGeneral((2, WIDTH // 2))(y) for _ in range(3))
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", scores, v)
        h = h + nn.DenseGeneral(WIDTH, axis=(-2, -1))(mixed)
        return h + nn.Dense(WIDTH)(nn.gelu(nn.Dense(HIDDEN)(nn.LayerNorm()(h)))), None


class Model(nn.Module):
    policy: str | None = None

    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(32, WIDTH)
        block = Block
        if self.policy is not None:
            block = nn.remat(Block, policy=policy_named(self.policy), prevent_cse=False)
        scan = nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, length=4)
        h, _ = scan(name="blocks")(embed(tokens), None)
        return embed.attend(h)


def train_step(policy=None):
    """A step with momentum on a scanned transformer; the loss is a jit of its own."""
    model, optimizer = Model(policy), optax.sgd(0.1, momentum=0.9)

    def step(params, state, tokens):
        @jax.jit
        def loss(params):
            logits = model.apply(params, tokens)[:, :-1]
            each = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
            return each.mean()

        found, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, found

    tokens = jnp.arange(4 * 32).reshape(4, 32) % 32
    params = model.init(jax.random.key(0), tokens)
    return step, (params, optimizer.init(params), tokens)


@pytest.mark.long
def test_a_scanned_transformer_needs_what_checkpoint_needs():
    step, args = train_step()
    leaves = jax.tree.leaves(args)
    jaxpr = jax.make_jaxpr(step)(*args)
    expected = jax.tree.leaves(jax.jit(step)(*args))
    needed = [temporaries(step, *args)]
    for policy in reversed(POLICIES):
        changed, lines = rematerialised(jaxpr, policy)
        assert len(lines) == 1
        needed.append(temporaries(jaxpr_as_fun(changed), *leaves))
        real = temporaries(train_step(policy)[0], *args)
        assert abs(needed[-1] - real) <= 0.02 * real
        for one, other in zip(jax.jit(jaxpr_as_fun(changed))(*leaves), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    # Each saves less than the one before it.
    assert needed == sorted(needed, reverse=True)
    assert len(set(needed)) == len(needed)


def loop(body):
    def loss(ws, x):
        return jax.lax.scan(body, x, ws)[0].sum()

    return jax.make_jaxpr(jax.grad(loss))(jnp.ones((3, 8, 8)), jnp.ones((4, 8)))


def prints(h, w):
    jax.debug.print("{}", h[0, 0])
    return jnp.tanh(h @ w), None


def microbatches(ws, batches):
    """Accumulated gradients: a loop around the loops over layers."""

    def loss(ws, x):
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0].sum()

    def one(total, x):
        return total + jax.grad(loss)(ws, x), None

    return jax.lax.scan(one, jnp.zeros_like(ws), batches)[0]


# name: a jaxpr, the policy, how many loops save less
OTHERS = {
    "saves the carry alone already": (
        lambda: loop(jax.checkpoint(lambda h, w: (jnp.tanh(h @ w), None))),
        "nothing_saveable",
        0,
    ),
    "a product needs its operands alone": (
        lambda: loop(lambda h, w: (h @ w, None)),
        "nothing_saveable",
        0,
    ),
    "prints, which is done once": (lambda: loop(prints), "nothing_saveable", 0),
    "no gradient": (
        lambda: jax.make_jaxpr(lambda x: jax.lax.map(jnp.tanh, x))(jnp.ones(3)),
        "nothing_saveable",
        0,
    ),
    "loops within a loop": (
        lambda: jax.make_jaxpr(microbatches)(jnp.ones((3, 8, 8)), jnp.ones((2, 4, 8))),
        "nothing_saveable",
        1,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_which_loops_save_less(name):
    make, policy, count = OTHERS[name]
    jaxpr = make()
    changed, lines = rematerialised(jaxpr, policy)
    assert len(lines) == count
    assert (changed is jaxpr) == (count == 0)


def test_policies_decide_what_is_computed_twice():
    jaxpr = loop(lambda h, w: (jnp.sin(jnp.tanh(h @ w)), None))
    counts = {}
    for policy in (None, "nothing_saveable", "dots_saveable"):
        changed = jaxpr if policy is None else rematerialised(jaxpr, policy)[0]
        names = [operation.name for operation in operations(changed)]
        counts[policy] = (names.count("dot_general"), names.count("tanh"))
    # Two products of the backward pass, and one or two of the forward pass.
    assert counts == {None: (3, 1), "nothing_saveable": (4, 2), "dots_saveable": (3, 2)}


def test_results_of_a_loop_that_others_read_stay():
    def loss(ws, x):
        end, each = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w),) * 2, x, ws)
        return end.sum(), each

    step = jax.value_and_grad(loss, has_aux=True)
    args = jnp.full((3, 8, 8), 0.1), jnp.ones((4, 8))
    changed, _ = rematerialised(jax.make_jaxpr(step)(*args), "nothing_saveable")
    expected = jax.tree.leaves(step(*args))
    for one, other in zip(jaxpr_as_fun(changed)(*args), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_function_that_is_called_twice_has_results_of_its_own():
    tanh = jax.jit(jnp.tanh)
    jaxpr = loop(lambda h, w: (tanh(h @ w) * tanh(2 * (h @ w)), None))
    args = jnp.full((3, 8, 8), 0.1), jnp.ones((4, 8))
    changed, _ = rematerialised(jaxpr, "nothing_saveable")
    expected = jaxpr_as_fun(jaxpr)(*args)
    for one, other in zip(jaxpr_as_fun(changed)(*args), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
