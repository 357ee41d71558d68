"""Programs whose screens are read: a step with 30 rules, a ring, and two that cannot work."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.gallery import programs
from shardviz.programs.program import Program

RULES = [
    ("batch", "data"),
    ("embed", "data"),
    ("heads", "model"),
    ("kv", None),
    ("ffn", "model"),
    ("vocab", "model"),
    *[(f"unused_{i}", None) for i in range(24)],
]
LAYER = {
    "q": ((64, 4, 16), "embed heads kv"),
    "k": ((64, 4, 16), "embed heads kv"),
    "v": ((64, 4, 16), "embed heads kv"),
    "out": ((4, 16, 64), "heads kv embed"),
    "up": ((64, 256), "embed ffn"),
    "down": ((256, 64), "ffn embed"),
}


def _loss(params, tokens):
    x = params["embed"][tokens]
    for layer in (params["layer_0"], params["layer_1"]):
        q, k, v = (jnp.einsum("bse,ehd->bshd", x, layer[name]) for name in "qkv")
        weights = jax.nn.softmax(jnp.einsum("bshd,bthd->bhst", q, k))
        x = x + jnp.einsum("bhst,bthd,hde->bse", weights, v, layer["out"])
        x = x + jax.nn.relu(x @ layer["up"]) @ layer["down"]
        x = jax.lax.with_sharding_constraint(x, P("data"))
    logits = jnp.einsum("bse,ve->bsv", x, params["embed"])
    return -jnp.mean(jax.nn.log_softmax(logits)[..., 0])


def _step(state, batch):
    params, momentum = state
    value, gradients = jax.value_and_grad(_loss)(params, batch["tokens"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    return (jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum), value


def _params(prefix: str) -> dict[str, Any]:
    params: dict[str, Any] = {"embed": sv.array(f"{prefix}.embed", (512, 64), "vocab embed")}
    for number in range(2):
        layer = {}
        for name, (shape, names) in LAYER.items():
            layer[name] = sv.array(f"{prefix}.layer_{number}.{name}", shape, names)
        params[f"layer_{number}"] = layer
    return params


def transformer_step() -> Program:
    """A training step of a small transformer under a table of 30 rules."""
    state = _params("params"), _params("momentum")
    batch = {"tokens": sv.array("tokens", (16, 32), "batch _", dtype="int32")}
    return sv.program(
        _step, state, batch, mesh="data=4, model=2", rules=RULES, name="transformer step"
    )


def ring() -> Program:
    """A matmul whose weight goes around a ring of devices, written as a `shard_map`."""

    def rotate(x, w):
        size = jax.lax.axis_size("data")
        pairs = [(i, (i + 1) % size) for i in range(size)]

        def step(_, carry):
            total, block = carry
            return total + x @ block, jax.lax.ppermute(block, "data", pairs)

        first = jax.lax.pcast(jnp.zeros((x.shape[0], w.shape[1])), ("data",), to="varying")
        return jax.lax.fori_loop(0, size, step, (first, w))[0]

    def matmul(x, w):
        specs = {"in_specs": (P("data"), P("data")), "out_specs": P("data")}
        return jax.shard_map(rotate, axis_names={"data"}, **specs)(x, w)

    x = sv.array("x", (512, 128), spec="data, None")
    w = sv.array("w", (512, 256), spec="data, None")
    return sv.program(matmul, x, w, mesh="data=4, model=2", name="ring")


def without_plan() -> Program:
    """A product of matrices that do not fit each other, so that jax refuses to trace it."""
    x = sv.array("x", (64, 512), spec="data, None")
    w = sv.array("w", (256, 128), spec="None, model")
    return sv.program(lambda x, w: x @ w, x, w, mesh="data=4, model=2", name="no plan")


def too_large() -> Program:
    """A product whose weights alone exceed the memory of a TPU v5e."""
    x = sv.array("x", (1024, 65_536), spec="data, None")
    w = sv.array("w", (65_536, 131_072), spec="None, model")
    return sv.program(lambda x, w: jnp.tanh(x @ w), x, w, mesh="data=4, model=2", name="too large")


PROGRAMS = {
    "transformer step": transformer_step,
    "ring": ring,
    "mixture of experts": lambda: programs.get("mixture of experts"),
    "no plan": without_plan,
    "too large": too_large,
    "MLP, gradient": lambda: programs.get("MLP, gradient"),
}
