"""A train step of many layers in plain jax: gradient and update, layers as a Python loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import shardviz as sv
from shardviz.base.array_spec import ArraySpec
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.programs.program import Program

LAYERS = 32
BATCH, LENGTH, EMBED, HEADS, HEAD, MLP, VOCAB = 8, 16, 32, 4, 8, 64, 64
#: Name of a layer's array to its shape and its spec.
LAYER = {
    "Attention_0/qkv": ((EMBED, 3, HEADS, HEAD), "None, None, model"),
    "Attention_0/out": ((HEADS, HEAD, EMBED), "model"),
    "Mlp_0/gate": ((EMBED, MLP), "None, model"),
    "Mlp_0/up": ((EMBED, MLP), "None, model"),
    "Mlp_0/down": ((MLP, EMBED), "model"),
    "norm_1": ((EMBED,), ""),
    "norm_2": ((EMBED,), ""),
}
RATE, DECAY_1, DECAY_2, SMALL = 1e-3, 0.9, 0.99, 1e-8


def norm(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def attention(x: Any, layer: dict[str, Any]) -> Any:
    with jax.named_scope("Attention_0"):
        q, k, v = jnp.einsum("bte,eqhd->qbthd", x, layer["Attention_0/qkv"])
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / HEAD**0.5
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        mixed = jnp.einsum("bhts,bshd->bthd", weights, v)
        return jnp.einsum("bthd,hde->bte", mixed, layer["Attention_0/out"])


def mlp(x: Any, layer: dict[str, Any]) -> Any:
    with jax.named_scope("Mlp_0"):
        gate = jax.nn.silu(jnp.einsum("bte,em->btm", x, layer["Mlp_0/gate"]))
        up = jnp.einsum("bte,em->btm", x, layer["Mlp_0/up"])
        return jnp.einsum("btm,me->bte", gate * up, layer["Mlp_0/down"])


def loss(params: dict[str, Any], tokens: Any) -> Any:
    x = params["embedding"][tokens]
    for number in range(sum(name.startswith("blocks_") for name in params)):
        layer = params[f"blocks_{number}"]
        with jax.named_scope(f"blocks_{number}"):
            x = x + attention(norm(x, layer["norm_1"]), layer)
            x = x + mlp(norm(x, layer["norm_2"]), layer)
    logits = jnp.einsum("bte,ve->btv", x, params["embedding"])
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], axis=-1)
    return -jnp.mean(picked)


def update(param: Any, gradient: Any, mu: Any, nu: Any) -> tuple[Any, Any, Any]:
    mu = DECAY_1 * mu + (1 - DECAY_1) * gradient
    nu = DECAY_2 * nu + (1 - DECAY_2) * gradient**2
    return param - RATE * mu / (jnp.sqrt(nu) + SMALL), mu, nu


def train_step(params: dict[str, Any], mu: Any, nu: Any, tokens: Any) -> Any:
    value, gradients = jax.value_and_grad(loss)(params, tokens)
    with jax.named_scope("adam"):
        updated = jax.tree.map(update, params, gradients, mu, nu)
    return value, *jax.tree.transpose(jax.tree.structure(params), None, updated)


def train_program(layers: int = LAYERS) -> Program:
    """The step on data=4, model=2: batch over data, attention heads and MLPs over model."""
    arrays = {
        f"blocks_{number}": {name: _array(*row) for name, row in LAYER.items()}
        for number in range(layers)
    }
    arrays["embedding"] = _array((VOCAB, EMBED), "model")
    tokens = ArraySpec("tokens", (BATCH, LENGTH), dtype="int32", spec=Spec.parse("data"))
    mesh = make_mesh(data=4, model=2)
    return sv.program(train_step, arrays, arrays, arrays, tokens, mesh=mesh)


def _array(shape: tuple[int, ...], spec: str) -> ArraySpec:
    return ArraySpec("w", shape, spec=Spec.parse(spec))


def of_equal_layers(in_scan: bool, layers: int = LAYERS) -> Program:
    """The step with checkpointed layers of one function, in a scan or in a Python loop."""

    def loss(params: dict[str, Any], tokens: Any) -> Any:
        # A new function, since jax keeps what it traced by function.
        @jax.checkpoint
        def block(x: Any, layer: dict[str, Any]) -> Any:
            x = x + attention(norm(x, layer["norm_1"]), layer)
            return x + mlp(norm(x, layer["norm_2"]), layer)

        x = params["embedding"][tokens]
        if in_scan:
            x, _ = jax.lax.scan(lambda x, layer: (block(x, layer), None), x, params["blocks"])
        else:
            for layer in params["blocks"]:
                x = block(x, layer)
        logits = jnp.einsum("bte,ve->btv", x, params["embedding"])
        return -jnp.mean(jax.nn.log_softmax(logits))

    def step(params: dict[str, Any], mu: Any, nu: Any, tokens: Any) -> Any:
        gradients = jax.grad(loss)(params, tokens)
        updated = jax.tree.map(update, params, gradients, mu, nu)
        return jax.tree.transpose(jax.tree.structure(params), None, updated)

    blocks: Any = [{name: _array(*row) for name, row in LAYER.items()} for _ in range(layers)]
    if in_scan:
        blocks = {}
        for name, (shape, spec) in LAYER.items():
            blocks[name] = _array((layers, *shape), f"None, {spec}" if spec else "")
    params = {"embedding": _array((VOCAB, EMBED), "model"), "blocks": blocks}
    tokens = ArraySpec("tokens", (BATCH, LENGTH), dtype="int32", spec=Spec.parse("data"))
    return sv.program(step, params, params, params, tokens, mesh=make_mesh(data=4, model=2))
