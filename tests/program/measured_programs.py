"""Programs whose operations are measured on simulated CPUs."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.base.array_spec import ArraySpec
from shardviz.base.mesh import make_mesh
from shardviz.programs.program import Program

MESH = make_mesh(a=4, b=2)
N = 128


def matmul_chain(x, w, v):
    for _ in range(3):
        x = jax.nn.relu(x @ w) @ v
    return x


def scanned_loss(layers, x):
    def layer(h, weights):
        return jnp.tanh(jax.nn.relu(h @ weights[0]) @ weights[1]), None

    h, _ = jax.lax.scan(layer, x, layers)
    return (h**2).mean()


def fsdp_step(layers, x):
    gradients = jax.grad(scanned_loss)(layers, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, layers, gradients)


def remat_step(w, v, x):
    @jax.checkpoint
    def block(h, w, v):
        return jnp.sin(jnp.sin(h @ w) @ v)

    def loss(w, v):
        return block(block(x, w, v), w, v).sum()

    return jax.grad(loss, (0, 1))(w, v)


def ring(x, w):
    @partial(jax.shard_map, in_specs=(P("a"), P()), out_specs=P("a"))
    def around(block, w):
        def turn(_, carry):
            total, block = carry
            block = jax.lax.ppermute(block, "a", [(n, (n + 1) % 4) for n in range(4)])
            return total + block @ w, block

        return jax.lax.fori_loop(0, 4, turn, (block @ w, block))[0]

    return around(x, w)


def every_kind(x):
    @partial(jax.shard_map, in_specs=P("a", "b"), out_specs=P("a", "b"), check_vma=False)
    def collectives(block):
        gathered = jax.lax.all_gather(block, "a", tiled=True)
        scattered = jax.lax.psum_scatter(gathered, "a", tiled=True)
        exchanged = jax.lax.all_to_all(scattered, "b", 0, 1, tiled=True)
        returned = jax.lax.all_to_all(exchanged, "b", 1, 0, tiled=True)
        sent = jax.lax.ppermute(returned, "a", [(n, (n + 1) % 4) for n in range(4)])
        return sent + jax.lax.pmax(sent, ("a", "b"))

    return collectives(x)


def until_small(x, w):
    def body(carry):
        turn, h = carry
        return turn + 1, jnp.tanh(h @ w) * 0.5

    def go_on(carry):
        return (carry[0] < 5) & (jnp.abs(carry[1]).sum() > 1e-9)

    return jax.lax.while_loop(go_on, body, (0, x))[1]


def attention(q, k, v):
    scores = jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k), axis=-1)
    return jnp.einsum("bts,bsd->btd", scores, v)


def lookup(table, ids):
    return jnp.cumsum(jnp.sort(table[ids], axis=1), axis=0)


def either(x, w):
    return jax.lax.cond(x.sum() > 0, lambda h: h @ w, lambda h: jnp.sin(h), x)


def arrays(*shapes_and_specs: tuple[tuple[int, ...], str, str]) -> list[ArraySpec]:
    specs = []
    for name, (shape, spec, dtype) in zip("xwvuts", shapes_and_specs, strict=False):
        specs.append(sv.array(name, shape, spec=spec, dtype=dtype))
    return specs


SQUARE, ROWS = (N, N), "a, None"
F32 = "float32"


def programs() -> dict[str, Program]:
    """Ten programs by name."""
    wide = arrays(
        ((N, N), "a, None", F32), ((N, 4 * N), "None, b", F32), ((4 * N, N), "b, None", F32)
    )
    x, w, v = wide
    layers = (
        sv.array("up", (3, N, 2 * N), spec="None, a, b"),
        sv.array("down", (3, 2 * N, N), spec="None, b, a"),
    )
    square = arrays((SQUARE, ROWS, F32), (SQUARE, "None, None", F32))
    triple = arrays(*[((8, N, 64), "a, b", F32)] * 3)
    table = arrays(((N, 64), "None, b", F32), ((64,), "a", "int32"))
    return {
        "matmul chain": sv.program(matmul_chain, x, w, v, mesh=MESH),
        "fsdp, scan": sv.program(fsdp_step, layers, x, mesh=MESH),
        "remat": sv.program(remat_step, w, v, x, mesh=MESH),
        "ring": sv.program(ring, *square, mesh=MESH),
        "every kind": sv.program(every_kind, *arrays((SQUARE, "a, b", F32)), mesh=MESH),
        "while": sv.program(until_small, *square, mesh=MESH),
        "attention": sv.program(attention, *triple, mesh=MESH),
        "lookup": sv.program(lookup, *table, mesh=MESH),
        "either": sv.program(either, *square, mesh=MESH),
        "donated": sv.program(fsdp_step, layers, x, mesh=MESH, donate=(0,)),
    }
