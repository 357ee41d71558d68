"""A train step of Llama 3 8B's shape with 32 layers in a list, parameters and two moments.

A module with no `main`, for `first_paint`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import shardviz as sv

EMBED, MLP, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS = 4096, 14336, 32, 8, 128, 128256, 32
LAYER = {
    "norm_1": ((EMBED,), "norm"),
    "w_q": ((EMBED, HEADS, HEAD_DIM), "embed heads head_dim"),
    "w_k": ((EMBED, KV_HEADS, HEAD_DIM), "embed kv_heads head_dim"),
    "w_v": ((EMBED, KV_HEADS, HEAD_DIM), "embed kv_heads head_dim"),
    "w_o": ((HEADS, HEAD_DIM, EMBED), "heads head_dim embed"),
    "norm_2": ((EMBED,), "norm"),
    "w_gate": ((EMBED, MLP), "embed mlp"),
    "w_up": ((EMBED, MLP), "embed mlp"),
    "w_down": ((MLP, EMBED), "mlp embed"),
}
ENDS = {
    "embedding": ((VOCAB, EMBED), "vocab embed"),
    "norm_out": ((EMBED,), "norm"),
    "logits": ((EMBED, VOCAB), "embed vocab"),
}
RULES = [
    ("batch", "data"),
    ("embed", "data"),
    ("heads", "model"),
    ("kv_heads", "model"),
    ("mlp", "model"),
    ("vocab", "model"),
]


def _norm(scale: Any, x: Any) -> Any:
    return scale * x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def _layer(weights: Any, x: Any) -> Any:
    normed = _norm(weights["norm_1"], x)
    q = jnp.einsum("bse,ehd->bshd", normed, weights["w_q"])
    k, v = (jnp.einsum("bse,ehd->bshd", normed, weights[name]) for name in ("w_k", "w_v"))
    x += jnp.einsum("bshd,hde->bse", jax.nn.dot_product_attention(q, k, v), weights["w_o"])
    normed = _norm(weights["norm_2"], x)
    return (
        x
        + (jax.nn.silu(normed @ weights["w_gate"]) * (normed @ weights["w_up"]))
        @ (weights["w_down"])
    )


def _loss(params: Any, batch: Any) -> Any:
    x = params["embedding"][batch["tokens"]]
    for weights in params["layers"]:
        x = _layer(weights, x)
    logits = jax.nn.log_softmax(_norm(params["norm_out"], x) @ params["logits"])
    return -jnp.mean(jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1))


def step(state: Any, batch: Any) -> Any:
    """Adam's update of the parameters, and the loss."""
    value, grads = jax.value_and_grad(_loss)(state["params"], batch)
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mu"], grads)
    nu = jax.tree.map(lambda n, g: 0.99 * n + 0.01 * g * g, state["nu"], grads)
    params = jax.tree.map(_updated, state["params"], mu, nu)
    return {"params": params, "mu": mu, "nu": nu}, value


def _updated(weight: Any, m: Any, n: Any) -> Any:
    return weight - 1e-3 * m / (jnp.sqrt(n) + 1e-8)


def state() -> dict[str, Any]:
    """The parameters and moments as ArraySpecs."""
    return {part: _weights(part) for part in ("params", "mu", "nu")}


def _weights(part: str) -> dict[str, Any]:
    tree: dict[str, Any] = {name: sv.array(f"{part}.{name}", *of) for name, of in ENDS.items()}
    tree["layers"] = []
    for number in range(LAYERS):
        prefix = f"{part}.layers.{number}"
        layer = {name: sv.array(f"{prefix}.{name}", *of) for name, of in LAYER.items()}
        tree["layers"].append(layer)
    return tree


def batch() -> dict[str, Any]:
    """A batch of tokens as ArraySpecs."""
    names = ("tokens", "targets")
    return {name: sv.array(name, (64, 4096), "batch sequence", dtype="int32") for name in names}
