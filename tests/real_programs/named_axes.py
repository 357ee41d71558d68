"""Programs with named axes: haliax."""

from __future__ import annotations

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax

from tests.real_programs.registry import Real, Registry, grid, tokens

PROGRAMS = Registry()
Batch, Position, Embed = hax.Axis("batch", 16), hax.Axis("position", 8), hax.Axis("embed", 16)
Heads, Size, Mlp, Vocab = (
    hax.Axis("heads", 4),
    hax.Axis("head_size", 4),
    hax.Axis("mlp", 32),
    hax.Axis("vocab", 32),
)
COMPUTE = {"batch": "data", "mlp": "model", "heads": "model"}
PARAMS = {**COMPUTE, "embed": "data"}


class Layer(eqx.Module):
    """A transformer layer as haliax's tutorial builds it."""

    qkv: hnn.Linear
    out: hnn.Linear
    up: hnn.Linear
    down: hnn.Linear
    embed: hax.NamedArray

    @staticmethod
    def init(key):
        a, b, c, d, e = jax.random.split(key, 5)
        three = hax.Axis("qkv", 3)
        return Layer(
            hnn.Linear.init(Embed, (three, Heads, Size), key=a, use_bias=False),
            hnn.Linear.init((Heads, Size), Embed, key=b, use_bias=False),
            hnn.Linear.init(Embed, Mlp, key=c),
            hnn.Linear.init(Mlp, Embed, key=d),
            hax.random.normal(e, (Vocab, Embed)) * 0.1,
        )

    def __call__(self, ids):
        x = self.embed.take(Vocab, ids)
        q, k, v = self.qkv(x).unbind("qkv")
        Keys = Position.alias("keys")
        k, v = k.rename({"position": "keys"}), v.rename({"position": "keys"})
        mask = hax.arange(Position).broadcast_axis(Keys) >= hax.arange(Keys)
        made = hnn.attention.dot_product_attention(Keys, Size, q, k, v, mask=mask)
        x = hax.auto_sharded(x + self.out(made))
        x = x + self.down(hnn.gelu(self.up(x)))
        return hax.dot(x, self.embed, axis=Embed)


def _loss(model, ids):
    logits = model(ids)
    target = hnn.one_hot(hax.roll(ids, -1, Position), Vocab)
    return hnn.cross_entropy_loss(logits, Vocab, target).scalar()


def _made(mesh, mapping):
    with jax.set_mesh(mesh):
        model = hax.shard(Layer.init(jax.random.key(0)), mapping)
        ids = hax.shard(hax.named(tokens(16, 8), (Batch, Position)), mapping)
    return model, ids


@PROGRAMS
def gradient_under_an_axis_mapping() -> Real:
    """`hax.axis_mapping` around the call; `hax.auto_sharded` inside."""
    mesh = grid(data=4, model=2)

    def context():
        stack = __import__("contextlib").ExitStack()
        stack.enter_context(jax.set_mesh(mesh))
        stack.enter_context(hax.axis_mapping(COMPUTE))
        return stack

    step = jax.jit(jax.value_and_grad(_loss))
    return Real(step, _made(mesh, COMPUTE), context=context)


@PROGRAMS
def fully_sharded_by_named_jit() -> Real:
    """`hax.named_jit` with one mapping for weights and another for computing."""
    mesh = grid(data=4, model=2)

    def step(model, ids):
        with hax.axis_mapping(COMPUTE):
            gathered = hax.shard(model, COMPUTE)
            value, gradients = eqx.filter_value_and_grad(_loss)(gathered, ids)
        return value, hax.shard(gradients, PARAMS)

    model, ids = _made(mesh, PARAMS)
    return Real(jax.jit(step), (model, ids), context=lambda: jax.set_mesh(mesh))
