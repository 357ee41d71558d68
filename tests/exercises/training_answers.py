"""Right and wrong answers to the exercises of lessons 21, 25 and 27, as in `layout_answers`."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardviz.exercises import registry
from tests.exercises.code_answers import WRONG, forms, gathered


def block_all_reduced(x: Any, w_in: Any, w_out: Any) -> Any:
    total = lax.psum(jnp.maximum(gathered(x) @ w_in, 0) @ w_out, "x")
    rows = lax.axis_index("x") * len(x)
    return lax.dynamic_slice_in_dim(total, rows, len(x))


def block_of_own_rows(x: Any, w_in: Any, w_out: Any) -> Any:
    return lax.psum(jnp.maximum(x @ w_in, 0) @ w_out, "x")


def block_of_partial_sums(x: Any, w_in: Any, w_out: Any) -> Any:
    partial = jnp.maximum(gathered(x) @ w_in, 0) @ w_out
    return lax.dynamic_slice_in_dim(partial, lax.axis_index("x") * len(x), len(x))


def in_parts(w: Any, x: Any, after: Callable[[Any], Any], whole: Callable[[], Any]) -> Any:
    def add(total: Any, part: Any) -> Any:
        return total + after(part.T @ jnp.maximum(part @ whole(), 0)), None

    rows = len(w) if after(jnp.zeros((256, 1024))).shape[0] == len(w) else 256
    return lax.scan(add, jnp.zeros((rows, 1024)), x.reshape(8, -1, 256))[0]


def scattered(total: Any) -> Any:
    return lax.psum_scatter(total, "x", tiled=True)


def gathered_in_the_loop(w: Any, x: Any) -> Any:
    return scattered(in_parts(w, x, lambda total: total, lambda: gathered(w)))


def scattered_in_the_loop(w: Any, x: Any) -> Any:
    whole = gathered(w)
    return in_parts(w, x, scattered, lambda: whole)


def all_rows_at_once(w: Any, x: Any) -> Any:
    return scattered(x.T @ jnp.maximum(x @ gathered(w), 0))


def dropped(x: Any, key: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0)


def one_mask(seed: Any, x: Any) -> Any:
    return dropped(x, jax.random.key(seed[0]))


def folded_along_all(seed: Any, x: Any) -> Any:
    me = lax.axis_index(("data", "model"))
    return dropped(x, jax.random.fold_in(jax.random.key(seed[0]), me))


def folded_along_model(seed: Any, x: Any) -> Any:
    return dropped(x, jax.random.fold_in(jax.random.key(seed[0]), lax.axis_index("model")))


def without_seed(seed: Any, x: Any) -> Any:
    return dropped(x, jax.random.fold_in(jax.random.key(0), lax.axis_index("data")))


def not_doubled(seed: Any, x: Any) -> Any:
    key = jax.random.fold_in(jax.random.key(seed[0]), lax.axis_index("data"))
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)


def seldom_dropped(seed: Any, x: Any) -> Any:
    key = jax.random.fold_in(jax.random.key(seed[0]), lax.axis_index("data"))
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), 2 * x, 0)


def _code(name: str, *wrong: Callable[..., Any]) -> tuple[list[Any], list[Any]]:
    return forms(registry.find(name).solution), [*wrong, *WRONG]


# fmt: off
ANSWERS: dict[str, tuple[list[Any], list[Any]]] = {
    "sequence/kept": (
        ["7 GiB", 7 << 30, "7.52 GB", np.int64(7 << 30), Fraction(7 << 30), "7168 MiB"],
        [
            "8 GiB", "1 GiB", "28 GiB", "224 MiB", "14 GiB", 7, "7 GB", "32 GiB", 0, -(7 << 30),
            None, "7 layers", [7 << 30], True,
        ],
    ),
    "accumulation/sends": (
        ["30 GiB", 30 << 30, "32.2 GB", np.int64(30 << 30), Fraction(30 << 30), "30720 MiB"],
        [
            "52.5 GiB", "7.5 GiB", "26.25 GiB", "3.75 GiB", "32 GiB", "60 GiB", 30, "30 GB", 0,
            -(30 << 30), None, "8 collectives", [30 << 30],
        ],
    ),
    "random/folded-axes": (
        [
            "pod, data, seq", ["pod", "data", "seq"], {"seq", "pod", "data"},
            ("data", "seq", "pod"), "data; seq; pod", np.array(["pod", "data", "seq"]),
            [SimpleNamespace(name=axis) for axis in ("pod", "data", "seq")],
        ],
        [
            "pod, data", "data, seq", "pod, data, seq, model", "model", "seq", "", [], None, 3,
            "batch", ["tokens"], "pod, data, sequence", {"pod": 1}, True,
        ],
    ),
    "sequence/block-by-hand": _code(
        "sequence/block-by-hand", block_all_reduced, block_of_own_rows, block_of_partial_sums
    ),
    "accumulation/fsdp": _code(
        "accumulation/fsdp", gathered_in_the_loop, scattered_in_the_loop, all_rows_at_once
    ),
    "random/dropout-by-hand": _code(
        "random/dropout-by-hand", one_mask, folded_along_all, folded_along_model, without_seed,
        not_doubled, seldom_dropped,
    ),
}
