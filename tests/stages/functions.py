"""What the cases of `programs` compute: one operation each, or the few that belong together."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

wsc = jax.lax.with_sharding_constraint


def special(x):
    """Functions that XLA has no instruction for, or has had one for only lately."""
    return jax.scipy.special.erf(x) + jnp.arcsinh(x) + jax.lax.lgamma(x) + jnp.tan(x)


def exact_gelu_gradient(w, x):
    return jax.grad(lambda w: jnp.sum(jax.nn.gelu(x @ w, approximate=False)))(w)


def fourier_whole(x):
    return jnp.real(jnp.fft.fft(x, axis=-1))


def associative_scan(x):
    return jax.lax.associative_scan(jnp.add, x, axis=1)


def composite(x, w):
    return jax.lax.composite(lambda x, w: jnp.sin(x @ w), name="my.layer")(x, w) + 1


def moved_matmul(x, w):
    return wsc(x @ w, P("model", None)) * 2


def manual_in_a_loop(x):
    return jax.lax.scan(lambda x, _: (manual_scaled(x), None), x, None, length=3)[0]


def manual_scaled(x):
    return jax.shard_map(lambda x: x * 2, in_specs=P("data"), out_specs=P("data"))(x)


def loop_in_manual(x):
    def picked(i, total):
        return total + jax.lax.dynamic_slice_in_dim(total, i, 1, axis=0)

    def looped(x):
        return jax.lax.fori_loop(0, 3, picked, x)

    return jax.shard_map(looped, in_specs=P("data", "model"), out_specs=P("data", "model"))(x)


def pooling(x):
    window, stride = (1, 2, 2, 1), (1, 2, 2, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, stride, "VALID")


def pooling_of_neighbours(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")


def patches(x, k):
    return jax.lax.conv_general_dilated(
        x, k, k.shape[:2], "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def every_other(x):
    return x[:, ::2] * 2


def cummax(x):
    return jax.lax.cummax(x, 1) + 1


def argsort(x):
    return jnp.argsort(x, axis=0)


def triangular(x):
    return jnp.tril(x @ x.T) + jnp.eye(x.shape[0])


def matmul(x, w):
    return x @ w


def matmul_gradient(x, w):
    return jax.grad(lambda x, w: jnp.sum(jnp.tanh(x @ w)), argnums=(0, 1))(x, w)


def convolution(x, k):
    return jax.lax.conv_general_dilated(
        x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def convolution_gradient(x, k):
    return jax.grad(lambda k: jnp.mean(convolution(x, k) ** 2))(k)


def embedding_gradient(table, ids):
    return jax.grad(lambda table: jnp.mean(jnp.sin(table[ids])))(table)


def softmax(x):
    return jax.nn.softmax(x)


def cross_entropy(logits, labels):
    chosen = jnp.sum(jax.nn.one_hot(labels, logits.shape[-1]) * logits, axis=-1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def cross_entropy_gradient(logits, labels):
    return jax.value_and_grad(cross_entropy)(logits, labels)


def layer_norm(scale, bias, x):
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-6) * scale + bias


def layer_norm_gradient(scale, bias, x):
    return jax.grad(lambda *a: jnp.sum(jnp.sin(layer_norm(*a))), argnums=(0, 1, 2))(scale, bias, x)


def merge(x):
    return jnp.sin(x.reshape(x.shape[0] * x.shape[1], x.shape[2]))


def split(x):
    return jnp.sin(x.reshape(8, x.shape[0] // 8, x.shape[1]))


def transpose(x):
    return jnp.cos(x.transpose(2, 0, 1)) + 1


def concatenate(x, y):
    return jnp.concatenate([x, y], axis=1) * 2


def pad(x):
    return jnp.pad(x, ((0, 0), (3, 5))) + 1


def slice_middle(x):
    return x[:, 8:40] + 1


def dynamic_slice(x, i):
    return jax.lax.dynamic_slice_in_dim(x, i, 16, axis=1) * 2


def roll(x):
    return jnp.roll(x, 5, axis=1)


def cumsum(x):
    return jnp.cumsum(x, axis=1)


def sort(x):
    return jnp.sort(x, axis=1)


def top_k(x):
    return jax.lax.top_k(x, 4)


def argmax(x):
    return jnp.argmax(x, axis=1)


def segment_sum(x, ids):
    return jax.ops.segment_sum(x, ids, num_segments=32)


def written(x, ids):
    return jnp.zeros((32, x.shape[1])).at[ids].set(x)


def outer_sum(x):
    return (x[:, :, None] * jnp.ones(16)).sum(0)


def take(x, ids):
    return jnp.take(x, ids, axis=0)


def scatter_add(x, ids, rows):
    return x.at[ids].add(rows)


def codes(x, ids, w):
    rows = jnp.arange(x.shape[0])[:, None]
    return jnp.zeros((x.shape[0], w.shape[0])).at[rows, ids].set(x) @ w


def codes_gradient(x, ids, w):
    return jax.grad(lambda x: jnp.sum(codes(x, ids, w) ** 2))(x)


def reduce_scatter(x, w):
    return wsc(x @ w, P("model", None)) + 1


def all_to_all(x):
    return wsc(jnp.sin(x), P("data", None, "model")) + 1


def other_order(x):
    return wsc(x * 2, P(("model", "data"), None)) + 1


def constraints(w_in, w_out, x):
    hidden = wsc(jax.nn.gelu(x @ w_in), P("data", "model"))
    return wsc(hidden @ w_out, P(None, "model"))


def gathered_uneven(x):
    rows = wsc(jnp.sin(x), P("data"))
    return wsc(jnp.cos(rows) * 2, P())


def cut_anew(x):
    rows = wsc(jnp.sin(x), P("data"))
    return jnp.cos(wsc(rows, P(("data", "model"))))


def constrained_twice(x, w):
    whole_rows = wsc(wsc(x, P("data", None)), P(None, "model"))
    return wsc(whole_rows @ w, P("data"))


def scores(q, k):
    return jnp.einsum("bshd,bthd->bhst", q, k)


def axes_in_two_orders(x, w):
    rows = wsc(jnp.sin(x), P(("data", "model")))
    return wsc(rows @ w, P(None, ("model", "data")))


def while_loop(x, w):
    def body(state):
        i, x = state
        return i + 1, jnp.tanh(x @ w)

    return jax.lax.while_loop(lambda s: s[0] < 5, body, (0, x))[1]


def branches(x, w):
    return jax.lax.cond(jnp.sum(x) > 0, lambda x: x @ w, lambda x: jnp.sin(x), x)


def batched(x, w):
    return jax.vmap(lambda x, w: jnp.tanh(x @ w))(x, w)


@jax.custom_vjp
def _clipped(x):
    return jnp.sin(x)


_clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g, -1, 1) * jnp.cos(x),))


def custom_gradient(x, w):
    return jax.grad(lambda w: jnp.sum(_clipped(x @ w)))(w)


@jax.custom_jvp
def _softplus(x):
    return jnp.logaddexp(x, 0.0)


_softplus.defjvp(lambda p, t: (_softplus(*p), t[0] * jax.nn.sigmoid(p[0])))


@jax.jit
def _shift(x):
    return jnp.sin(x) + 1


def called_differently(x):
    return _shift(x), _shift(x.T)


def _mesh():
    return jax.sharding.get_abstract_mesh()


def manual_sum(x):
    def local(x):
        return jax.lax.psum(x * 2, "model")

    return jax.shard_map(local, in_specs=P("data", "model"), out_specs=P("data"))(x) + 1


def manual_partly(x, w):
    def local(x, w):
        return jax.lax.psum(jnp.sin(x @ w), "data")

    specs = {"in_specs": (P("data"), P()), "out_specs": P(), "axis_names": {"data"}}
    return jax.shard_map(local, **specs)(x, w) * 2


def manual_scatter(x):
    def local(x):
        return jax.lax.psum_scatter(x, "model", scatter_dimension=0, tiled=True)

    return jax.shard_map(local, in_specs=P("data", "model"), out_specs=P(("data", "model")))(x)


def manual_exchange(x):
    def local(x):
        return jax.lax.all_to_all(x, "model", split_axis=0, concat_axis=1, tiled=True)

    before, after = P("data", "model"), P(("data", "model"), None)
    return jax.shard_map(local, in_specs=before, out_specs=after)(x) * 2


def pipeline(w, x):
    """Each device holds some layers; what it made goes to the next one, once around the ring."""
    size = _mesh().shape["data"]

    def stages(w, x):
        x = jax.lax.pcast(x, "data", to="varying")

        def step(x, _):
            for i in range(w.shape[0]):
                x = jnp.tanh(x @ w[i])
            return jax.lax.ppermute(x, "data", [(i, (i + 1) % size) for i in range(size)]), None

        return jax.lax.psum(jax.lax.scan(step, x, None, length=size)[0], "data")

    return jax.shard_map(stages, in_specs=(P("data"), P()), out_specs=P())(w, x)


def typed_mlp(w_in, w_out, x):
    hidden = jax.nn.gelu(x @ w_in)
    return jnp.dot(hidden, w_out, out_sharding=P("data", None))


def typed_reduce_scatter(x, w):
    return jnp.sin(jnp.dot(x, w, out_sharding=P("data", "model")))
