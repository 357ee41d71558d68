"""Right and wrong answers to the exercises that ask for code, as in `layout_answers`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from shardviz.exercises import registry

RING = [(i, (i + 1) % 4) for i in range(4)]


class Called:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arrays: Any) -> Any:
        return self.function(*arrays)

    def method(self, *arrays: Any) -> Any:
        return self.function(*arrays)


def forms(function: Callable[..., Any]) -> list[Any]:
    """A function as a lambda, a partial, a callable object, a method and jitted."""
    called = Called(function)
    return [
        function,
        lambda *arrays: function(*arrays),
        functools.partial(function),
        called,
        called.method,
        jax.jit(function),
    ]


def fails(*arrays: Any) -> Any:
    raise ValueError("not implemented yet")


#: Answers that are wrong for every exercise here.
WRONG: list[Any] = [
    None,
    7,
    "lambda x: x",
    b"ppermute",
    [jnp.sum],
    P("x"),
    fails,
    lambda: 1,
    lambda *arrays: None,
    lambda *arrays: arrays[0].sum(),
]


def gathered(part: Any) -> Any:
    return lax.all_gather(part, "x", tiled=True)


def one_step_more(part: Any) -> Any:
    me, result = lax.axis_index("x"), jnp.zeros((4, *part.shape))
    for step in range(4):
        result = result.at[(me - step) % 4].set(part)
        part = lax.ppermute(part, "x", RING)
    return (result + 0 * part).reshape(-1, part.shape[1])


def in_order_of_arrival(part: Any) -> Any:
    parts = [part]
    for _ in range(3):
        parts.append(lax.ppermute(parts[-1], "x", RING))
    return jnp.concatenate(parts)


def summed(addend: Any) -> Any:
    return lax.psum(addend[0], "x")


def all_pairs(A: Any, B: Any) -> Any:
    return lax.all_gather(A, "x", axis=1, tiled=True) @ lax.all_gather(B, "x", tiled=True)


def all_of_the_sum(A: Any, B: Any) -> Any:
    rows = lax.axis_index("x") * 128
    return lax.dynamic_slice_in_dim(lax.psum(A @ B, "x"), rows, 128)


def summed_gradient(w: Any, x: Any) -> Any:
    return lax.psum(x.T @ (x @ w) / len(x), "x")


def gathered_rows(w: Any, x: Any) -> Any:
    rows = gathered(x)
    return rows.T @ (rows @ w) / len(rows)


def fsdp_all_reduced(w: Any, x: Any) -> Any:
    whole = gathered(w)
    gradient = lax.psum(x.T @ (x @ whole), "x")
    return lax.dynamic_slice_in_dim(gradient, lax.axis_index("x") * len(w), len(w))


def hidden_gathered(x: Any, w_in: Any, w_out: Any) -> Any:
    hidden = lax.all_gather(jnp.maximum(x @ w_in, 0), "x", axis=1, tiled=True)
    return hidden @ gathered(w_out)


def all_rows_in_one(w: Any, x: Any) -> Any:
    return lax.psum(x.T @ jnp.maximum(x @ w, 0), "x")


def summed_in_the_loop(w: Any, x: Any) -> Any:
    def add(total: Any, part: Any) -> Any:
        return total + lax.psum(part.T @ jnp.maximum(part @ w, 0), "x"), None

    return lax.scan(add, jnp.zeros((256, 1024)), x.reshape(8, -1, 256))[0]


def zero_all_reduced(w: Any, gradient: Any, momentum: Any) -> Any:
    total = lax.psum(gradient[0], "x")
    rows = lax.axis_index("x") * len(momentum)
    new = momentum / 2 + lax.dynamic_slice_in_dim(total, rows, len(momentum))
    return gathered(lax.dynamic_slice_in_dim(w, rows, len(momentum)) - new), new


def counted_four_times(split: Any, replicated: Any) -> Any:
    return jnp.sqrt(lax.psum((split**2).sum() + (replicated**2).sum(), "x"))[None]


def gathered_norm(split: Any, replicated: Any) -> Any:
    return jnp.sqrt((gathered(split) ** 2).sum() + (replicated**2).sum())[None]


def whole_halo(rows: Any) -> Any:
    whole = gathered(rows)
    result = jnp.roll(whole, 1, 0) + jnp.roll(whole, -1, 0)
    return lax.dynamic_slice_in_dim(result, lax.axis_index("x") * len(rows), len(rows))


def own_edges(rows: Any) -> Any:
    return jnp.roll(rows, 1, 0) + jnp.roll(rows, -1, 0)


def gathered_first(A: Any, B: Any) -> Any:
    return gathered(A) @ B


def collected_by_ring(A: Any, B: Any) -> Any:
    return one_step_more(A) @ B


def attention(q: Any, k: Any, v: Any, causal: bool = True) -> Any:
    k, v = gathered(k), gathered(v)
    rows = jnp.arange(len(q)) + lax.axis_index("x") * len(q)
    scores = q @ k.T
    if causal:
        scores = jnp.where(jnp.arange(len(k)) <= rows[:, None], scores, -jnp.inf)
    return jax.nn.softmax(scores) @ v


def cache_gathered(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(gathered(k) @ q) @ gathered(v)


def cache_by_part(q: Any, k: Any, v: Any) -> Any:
    return lax.pmean(jax.nn.softmax(k @ q) @ v, "x")


def weights_move(w: Any, h: Any) -> Any:
    return jnp.maximum(h @ lax.ppermute(w, "x", RING), 0)


def other_way(w: Any, h: Any) -> Any:
    back = [(after, before) for before, after in RING]
    return lax.ppermute(jnp.maximum(h @ w, 0), "x", back)


def sent_before_the_layer(w: Any, h: Any) -> Any:
    return jnp.maximum(lax.ppermute(h, "x", RING) @ w, 0)


def over_both(addend: Any) -> Any:
    return lax.psum(addend[0], ("slice", "chip"))


def slices_last(addend: Any) -> Any:
    return lax.psum(lax.psum(addend[0], "chip"), "slice")


def weights_gathered(boxes: Any, w: Any) -> Any:
    return boxes @ lax.all_gather(w[:, 0] if w.ndim == 4 else w, "x", tiled=True)


def not_returned(boxes: Any, w: Any) -> Any:
    return (lax.all_to_all(boxes[0], "x", 0, 0) @ w[0])[None]


def by_columns(A: Any, B: Any) -> Any:
    return jnp.matmul(A, B, out_sharding=P(None, "x"))


def replicated_product(A: Any, B: Any) -> Any:
    return jnp.matmul(A, B, out_sharding=P(None, None))


#: Exercise -> wrong functions.
FUNCTIONS: dict[str, list[Callable[..., Any]]] = {
    "collectives/ring-all-gather": [gathered, one_step_more, in_order_of_arrival],
    "collectives/ring-reduce-scatter": [
        lambda a: lax.psum_scatter(a[0], "x", tiled=True),
        lambda a: a[0, :256],
    ],
    "collectives/all-reduce-in-two": [summed, lambda a: a[0]],
    "matmul/scatter-the-sum": [all_pairs, all_of_the_sum],
    "parallelism/data-by-hand": [summed_gradient, gathered_rows],
    "parallelism/fsdp-by-hand": [fsdp_all_reduced],
    "parallelism/tensor-by-hand": [hidden_gathered],
    "memory/accumulate": [all_rows_in_one, summed_in_the_loop],
    "zero/step": [zero_all_reduced],
    "zero/global-norm": [counted_four_times, gathered_norm],
    "shard_map/halo": [whole_halo, own_edges],
    "shard_map/collective-matmul": [gathered_first, collected_by_ring],
    "ring/causal": [attention, functools.partial(attention, causal=False)],
    "cache/split-sequence": [cache_gathered, cache_by_part],
    "pipeline/tick": [weights_move, other_way, sent_before_the_layer],
    "slices/hierarchical": [over_both, slices_last],
    "experts/there-and-back": [weights_gathered, not_returned],
    "explicit/chosen-result": [by_columns, replicated_product, lambda A, B: A @ B],
}


def _answers() -> dict[str, tuple[list[Any], list[Any]]]:
    answers = {}
    for name, functions in FUNCTIONS.items():
        answers[name] = forms(registry.find(name).solution), [*WRONG, *functions]
    return answers


ANSWERS = _answers()
