"""Programs of JAX's notebooks on `jax.shard_map`, and what people build with it."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from tests.real_programs.registry import Real, Registry, grid, numbers, split

PROGRAMS = Registry()


@PROGRAMS
def matmul_with_a_scattered_sum() -> Real:
    """Both inner dimensions split: partial products, added by `psum_scatter`."""
    mesh = grid(x=4, y=2)

    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P("x", "y"), P("y", None)),
        out_specs=P("x", "y"),
    )
    def matmul(a, b):
        return jax.lax.psum_scatter(a @ b, "y", scatter_dimension=1, tiled=True)

    return Real(matmul, (split(mesh, numbers(8, 16), "x", "y"), split(mesh, numbers(16, 4), "y")))


@PROGRAMS
def matmul_that_overlaps_its_gather() -> Real:
    """The collective matmul: a block is multiplied while the next one is on its way."""
    mesh = grid(i=8)

    def matmul(left, right):
        size = jax.lax.axis_size("i")
        at = jax.lax.axis_index("i")
        block = right.shape[0]
        result = jnp.zeros((left.shape[0], right.shape[1]), left.dtype)
        result = jax.lax.pcast(result, "i", to="varying")
        for step in range(size):
            rows = jax.lax.dynamic_slice_in_dim(left, (at + step) % size * block, block, 1)
            result += rows @ right
            right = jax.lax.ppermute(right, "i", [((j + 1) % size, j) for j in range(size)])
        return result

    mapped = jax.shard_map(matmul, mesh=mesh, in_specs=(P("i"), P("i")), out_specs=P("i"))
    return Real(
        jax.jit(mapped), (split(mesh, numbers(16, 32), "i"), split(mesh, numbers(32, 8), "i"))
    )


@PROGRAMS
def fully_sharded_gradient() -> Real:
    """Weights split and gathered for every layer; their gradients come back scattered."""
    mesh = grid(batch=8)
    layers = [
        (split(mesh, numbers(m, n) / m**0.5, "batch"), split(mesh, numbers(n), "batch"))
        for m, n in ((16, 32), (32, 32), (32, 8))
    ]

    def loss(layers, inputs, targets):
        for shards in layers:
            w, b = (jax.lax.all_gather(s, "batch", tiled=True) for s in shards)
            inputs = jnp.tanh(inputs @ w + b)
        return jax.lax.pmean(jnp.mean((inputs - targets) ** 2), "batch")

    mapped = jax.shard_map(
        loss, mesh=mesh, in_specs=(P("batch"), P("batch"), P("batch")), out_specs=P()
    )
    args = (layers, split(mesh, numbers(16, 16), "batch"), split(mesh, numbers(16, 8), "batch"))
    return Real(jax.jit(jax.value_and_grad(mapped)), args)


@PROGRAMS
def mesh_in_sight() -> Real:
    """A `shard_map` without `mesh=` takes the mesh of `jax.set_mesh`."""
    mesh = grid(explicit=True, data=4, model=2)

    @jax.jit
    @functools.partial(
        jax.shard_map, in_specs=(P("data", "model"), P("model", None)), out_specs=P("data")
    )
    def project(x, w):
        return jax.lax.psum(x @ w, "model")

    args = (split(mesh, numbers(8, 16), "data", "model"), split(mesh, numbers(16, 8), "model"))
    return Real(project, args, context=lambda: jax.set_mesh(mesh))


@PROGRAMS
def pipeline_of_stages() -> Real:
    """A stage per device; microbatches go from stage to stage in a loop."""
    mesh = grid(stages=8)
    micro = 8

    def pipeline(weights, batches):
        count, at = jax.lax.axis_size("stages"), jax.lax.axis_index("stages")

        def tick(carry, t):
            state, done = carry
            state = jnp.where(at == 0, batches[jnp.minimum(t, micro - 1)], state)
            state = jnp.tanh(state @ weights[0])
            slot = jnp.clip(t - count + 1, 0, micro - 1)
            last = (at == count - 1) & (t >= count - 1)
            done = done.at[slot].set(jnp.where(last, state, done[slot]))
            state = jax.lax.ppermute(state, "stages", [(i, (i + 1) % count) for i in range(count)])
            return (state, done), None

        empty = jax.lax.pcast(jnp.zeros_like(batches), "stages", to="varying")
        (_, done), _ = jax.lax.scan(tick, (empty[0], empty), jnp.arange(micro + 7))
        return jax.lax.psum(jnp.where(at == count - 1, done, 0), "stages")

    mapped = jax.shard_map(pipeline, mesh=mesh, in_specs=(P("stages"), P()), out_specs=P())
    return Real(
        jax.jit(mapped),
        (split(mesh, numbers(8, 16, 16) / 4, "stages"), split(mesh, numbers(micro, 4, 16))),
    )


@PROGRAMS
def ring_attention() -> Real:
    """Queries stay; keys and values go around, with a running softmax."""
    mesh = grid(seq=8)

    def attend(q, k, v):
        size = jax.lax.axis_size("seq")
        turn = [(i, (i + 1) % size) for i in range(size)]

        def one(carry, _):
            top, below, out, k, v = carry
            scores = jnp.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
            new = jnp.maximum(top, scores.max(-1))
            weights, scale = jnp.exp(scores - new[..., None]), jnp.exp(top - new)
            out = out * scale[..., None] + jnp.einsum("hqk,khd->hqd", weights, v)
            k, v = (jax.lax.ppermute(part, "seq", turn) for part in (k, v))
            return (new, below * scale + weights.sum(-1), out, k, v), None

        heads, rows, width = q.shape[1], q.shape[0], q.shape[2]
        start = (
            jnp.full((heads, rows), -1e9),
            jnp.zeros((heads, rows)),
            jnp.zeros((heads, rows, width)),
        )
        start = jax.lax.pcast(start, "seq", to="varying")
        (_, below, out, _, _), _ = jax.lax.scan(one, (*start, k, v), length=size)
        return jnp.moveaxis(out / below[..., None], 0, 1)

    mapped = jax.shard_map(attend, mesh=mesh, in_specs=(P("seq"),) * 3, out_specs=P("seq"))
    args = tuple(split(mesh, numbers(32, 2, 8, seed=s), "seq") for s in range(3))
    return Real(jax.jit(jax.grad(lambda q, k, v: jnp.sum(mapped(q, k, v) ** 2))), args)


@PROGRAMS
def mixture_of_experts() -> Real:
    """Tokens to the experts' devices and back by `all_to_all`; products by `ragged_dot`."""
    mesh = grid(expert=4)
    each, width, inner = 2, 16, 32

    def layer(x, router, up, down):
        devices = jax.lax.axis_size("expert")
        capacity = x.shape[0]
        chosen = jnp.argmax(x @ router, -1)
        owner = chosen // each
        place = jnp.cumsum(jax.nn.one_hot(owner, devices, dtype=jnp.int32), 0)
        place = jnp.take_along_axis(place, owner[:, None], 1)[:, 0] - 1
        sent = jnp.zeros((devices, capacity, width)).at[owner, place].set(x)
        kind = jnp.full((devices, capacity), each - 1).at[owner, place].set(chosen % each)
        got = jax.lax.all_to_all(sent, "expert", 0, 0).reshape(-1, width)
        expert = jax.lax.all_to_all(kind, "expert", 0, 0).reshape(-1)
        order = jnp.argsort(expert)
        sizes = jnp.bincount(expert, length=each)
        hidden = jax.nn.gelu(jax.lax.ragged_dot(got[order], up, sizes))
        made = jax.lax.ragged_dot(hidden, down, sizes)
        back = jnp.zeros_like(made).at[order].set(made).reshape(devices, capacity, width)
        return x + jax.lax.all_to_all(back, "expert", 0, 0)[owner, place]

    mapped = jax.shard_map(
        layer,
        mesh=mesh,
        in_specs=(P("expert"), P(), P("expert"), P("expert")),
        out_specs=P("expert"),
    )
    args = (
        split(mesh, numbers(32, width), "expert"),
        split(mesh, numbers(width, 4 * each)),
        split(mesh, numbers(4 * each, width, inner), "expert"),
        split(mesh, numbers(4 * each, inner, width), "expert"),
    )
    return Real(jax.jit(mapped), args)


@PROGRAMS
def heat_equation() -> Real:
    """A grid in strips; every step exchanges the rows at their borders."""
    mesh = grid(rows=8)

    @functools.partial(jax.jit, static_argnames="steps")
    def solve(field, *, steps):
        @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("rows"), out_specs=P("rows"))
        def run(strip):
            count = jax.lax.axis_size("rows")
            down = [(i, i + 1) for i in range(count - 1)]
            up = [(i + 1, i) for i in range(count - 1)]

            def step(_, strip):
                above = jax.lax.ppermute(strip[-1:], "rows", down)
                below = jax.lax.ppermute(strip[:1], "rows", up)
                tall = jnp.concatenate([above, strip, below])
                wide = jnp.pad(strip, ((0, 0), (1, 1)))
                around = tall[2:] + tall[:-2] + wide[:, 2:] + wide[:, :-2]
                return strip + 0.1 * (around - 4 * strip)

            return jax.lax.fori_loop(0, steps, step, strip)

        return run(field)

    return Real(solve, (split(mesh, numbers(32, 16), "rows"),), {"steps": 5})


@PROGRAMS
def gradients_by_pmap() -> Real:
    """Data parallelism as it was written before `jit` could: `jax.pmap` with an axis name."""

    @functools.partial(jax.pmap, axis_name="batch")
    def update(w, x, y):
        gradient = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        return w - 0.1 * jax.lax.pmean(gradient, "batch")

    mesh = grid(batch=8)
    w = jnp.broadcast_to(numbers(8, 4), (8, 8, 4))
    args = tuple(split(mesh, v, "batch") for v in (w, numbers(8, 16, 8), numbers(8, 16, 4)))
    return Real(update, args)
