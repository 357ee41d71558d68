"""A train step of a Llama of 8 billion parameters, in plain JAX, for 64 chips.

The README and the home page of the site show how it is laid out. Nothing here is allocated: the
state and the batch are shapes with shardings, on a mesh without devices.

    import shardviz as sv
    from train_8b import batch, state, step

    sv.compile(step, state, batch, target="tpu:v5p:4x4x4")
"""

import math

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

LAYERS, EMBED, HEADS, KV_HEADS, HEAD, MLP, VOCAB = 32, 4096, 32, 8, 128, 14_336, 128_256
BATCH, LENGTH = 64, 4096

mesh = AbstractMesh((16, 4), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)

# Of each parameter its shape, and how it is split.
PARAMETERS = {
    "embedding": ((VOCAB, EMBED), P("tensor", "fsdp")),
    "w_q": ((LAYERS, EMBED, HEADS, HEAD), P(None, "fsdp", "tensor")),
    "w_k": ((LAYERS, EMBED, KV_HEADS, HEAD), P(None, "fsdp", "tensor")),
    "w_v": ((LAYERS, EMBED, KV_HEADS, HEAD), P(None, "fsdp", "tensor")),
    "w_o": ((LAYERS, HEADS, HEAD, EMBED), P(None, "tensor", None, "fsdp")),
    "gate": ((LAYERS, EMBED, MLP), P(None, "fsdp", "tensor")),
    "up": ((LAYERS, EMBED, MLP), P(None, "fsdp", "tensor")),
    "down": ((LAYERS, MLP, EMBED), P(None, "tensor", "fsdp")),
    "norm_1": ((LAYERS, EMBED), P(None, "fsdp")),
    "norm_2": ((LAYERS, EMBED), P(None, "fsdp")),
    "norm": ((EMBED,), P("fsdp")),
    "output": ((EMBED, VOCAB), P("fsdp", "tensor")),
}


def array(shape, spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


params = {name: array(*of) for name, of in PARAMETERS.items()}
state = {"params": params, "mu": params, "nu": params}
batch = array((BATCH, LENGTH), P("fsdp"), jnp.int32)


def by_batch(x):
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("fsdp")))


def norm(scale, x):
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-5)
    return y.astype(x.dtype) * scale.astype(x.dtype)


def layer(x, w):
    w = jax.tree.map(lambda a: a.astype(jnp.bfloat16), w)
    y = norm(w["norm_1"], x)
    q = jnp.einsum("bse,ehd->bshd", y, w["w_q"])
    k = jnp.einsum("bse,ehd->bshd", y, w["w_k"])
    v = jnp.einsum("bse,ehd->bshd", y, w["w_v"])
    q = q.reshape(*k.shape[:3], -1, HEAD)  # each key serves a group of queries
    scores = jnp.einsum("bqkgd,btkd->bkgqt", q, k) / math.sqrt(HEAD)
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
    mixed = jnp.einsum("bkgqt,btkd->bqkgd", weights, v).reshape(*x.shape[:2], -1, HEAD)
    x = x + jnp.einsum("bshd,hde->bse", mixed, w["w_o"])
    y = norm(w["norm_2"], x)
    hidden = jax.nn.silu(y @ w["gate"]) * (y @ w["up"])
    return by_batch(x + hidden @ w["down"])


def loss(params, tokens):
    x = by_batch(params["embedding"].astype(jnp.bfloat16)[tokens])
    stacked = {n: w for n, w in params.items() if n not in ("embedding", "norm", "output")}
    x, _ = jax.lax.scan(jax.checkpoint(lambda x, w: (layer(x, w), None)), x, stacked)
    logits = norm(params["norm"], x) @ params["output"].astype(jnp.bfloat16)
    said = jax.nn.log_softmax(logits[:, :-1].astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(said, tokens[:, 1:, None], -1))


def adam(w, m, v, g):
    m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
    return w - 3e-4 * m / (jnp.sqrt(v) + 1e-8), m, v


def step(state, tokens):
    value, gradient = jax.value_and_grad(loss)(state["params"], tokens)
    new = {"params": {}, "mu": {}, "nu": {}}
    for name, g in gradient.items():
        old = (state[part][name] for part in new)
        for part, array in zip(new, adam(*old, g), strict=True):
            new[part][name] = array
    return new, value


# The state keeps its shardings, and its memory is reused. Level O0 (9) is the compiler's quickest:
# a quarter of a minute in place of several.
shardings = jax.tree.map(lambda a: a.sharding, state)
step = jax.jit(
    step,
    donate_argnums=0,
    out_shardings=(shardings, NamedSharding(mesh, P())),
    compiler_options={"optimization_level": 9},
)
