"""Checks of values fail for mistakes and not for rounding."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardviz.compiled.checks import NotRepeatable, RoundingMoves
from shardviz.compiled.report import Report
from shardviz.runs.backend import here
from shardviz.runs.backend.checks import unsharded_checks
from shardviz.runs.backend.rounding import Comparison, step_of
from tests.program.helpers import array, program, run_here

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32


def mlp(dtype):
    def loss(ws, x):
        for w in ws:
            x = jax.nn.gelu(x.astype(dtype) @ w.astype(dtype))
        return (x.astype(F32) ** 2).mean()

    return lambda ws, x: jax.value_and_grad(loss)(ws, x)


def weights(dtype):
    return [array(f"w{i}", (128, 128), "None, b", dtype) for i in range(3)]


def vocabulary(embedding, head, tokens, labels):
    def loss(embedding, head):
        scores = jax.nn.log_softmax(embedding[tokens] @ head)
        return -jnp.take_along_axis(scores, labels[..., None], -1).mean()

    return jax.value_and_grad(loss, (0, 1))(embedding, head)


def attention(ws, x):
    def body(x, w):
        h = x * lax.rsqrt((x.astype(F32) ** 2).mean(-1, keepdims=True) + 1e-6).astype(BF16)
        q, k, v = h @ w["q"], h @ w["k"], h @ w["v"]
        p = jax.nn.softmax((q @ k.swapaxes(-1, -2)).astype(F32) / 8).astype(BF16)
        return x + (p @ v) @ w["o"], None

    def loss(ws):
        return (lax.scan(body, x, ws)[0].astype(F32) ** 2).mean()

    return jax.grad(loss)(ws)


PROGRAMS = {
    "bfloat16": (mlp(BF16), weights("bfloat16"), array("x", (64, 128), "a", "bfloat16")),
    "bfloat16 inside": (mlp(BF16), weights("float32"), array("x", (64, 128), "a")),
    "float16 inside": (mlp(F16), weights("float32"), array("x", (64, 128), "a")),
    "float32": (mlp(F32), weights("float32"), array("x", (64, 128), "a")),
    "a vocabulary": (vocabulary, array("e", (512, 64), "b", "bfloat16"),
                     array("h", (64, 512), "None, b", "bfloat16"),
                     array("t", (8, 32), "a", "int32"), array("l", (8, 32), "a", "int32")),
    "attention": (attention,
                  {k: array(k, (4, 64, 64), "None, None, b", "bfloat16") for k in "qkvo"},
                  array("x", (8, 16, 64), "a", "bfloat16")),
    "an inverse": (lambda x: jnp.linalg.inv(x @ x.T), array("x", (64, 64), "a, b")),
    "it cancels": (lambda x: jax.grad(lambda x: jax.nn.softmax(x).sum())(x),
                   array("x", (64, 256), "a, b")),
    "long sums": (lambda x: (x.sum(), x.sum(0)), array("x", (4096, 256), "a, b")),
    "the largest": (lambda x, w: (jnp.argmax(x @ w, -1), lax.top_k(x @ w, 4)),
                    array("x", (64, 512), "a", "bfloat16"),
                    array("w", (512, 256), "None, b", "bfloat16")),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _optimised():
    """Machine code as people run it: the other tests compile without what LLVM does to sums."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def checked():
    """By name the report of a program's one run, and what `unsharded_checks` was called with."""
    real: Any = unsharded_checks

    @functools.cache
    def run_once(name: str) -> tuple[Report, list[Any]]:
        fn, *arrays = PROGRAMS[name]
        seen: list[Any] = []

        def spied(*given):
            seen.append(given)
            return real(*given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(here, "unsharded_checks", spied)
            return run_here(program(fn, *arrays)), seen

    return run_once


@pytest.mark.parametrize("name", PROGRAMS)
def test_rounding_is_no_failure(name, checked):
    report, _ = checked(name)
    assert report.error is None, report.error
    assert report.ok, [c for c in report.checks if c.ok is False]


def _last(x, values):
    return x.addressable_shards[-1].index


def zero_block(x, values):
    values[_last(x, values)] = 0


def swapped(x, values):
    values[:] = np.roll(values, values.shape[0] // 2, 0)


def half(x, values):
    """As a missing all-reduce over two devices."""
    values[:] = (values.astype(np.float32) / 2).astype(values.dtype)


def twice(x, values):
    """As one all-reduce too many."""
    values[:] = (values.astype(np.float32) * 2).astype(values.dtype)


def nan_block(x, values):
    values[_last(x, values)] = np.nan


def one_row(x, values):
    values[values.shape[0] // 2] = values[0]


MISTAKES = [zero_block, swapped, half, twice, nan_block, one_row]
PLANTED = ["bfloat16", "bfloat16 inside", "float16 inside", "float32", "a vocabulary", "attention"]


@pytest.mark.parametrize("name", PLANTED)
def test_every_planted_mistake_is_found(name, checked):
    report, seen = checked(name)
    assert report.ok
    *given, results = seen[0]
    for mistake in MISTAKES:
        for position, right in enumerate(results):
            if right.ndim == 0:
                continue
            values = np.asarray(right).copy()
            mistake(right, values)
            wrong = list(results)
            wrong[position] = jax.device_put(values, right.sharding)
            found = [c for c in unsharded_checks(*given, wrong) if c.name.endswith("values")]
            check = found[position]
            assert check.ok is not True, (mistake.__name__, check)
            if name != "attention":  # whose gradients rounding moves by a large part of them
                assert check.ok is False, (mistake.__name__, check)


def judged(values, right, *moved):
    """The check of values against those that are right, where rounding moves these as given."""
    values, right = jnp.asarray(values, F32), jnp.asarray(right, F32)
    comparison = Comparison("y", values, right, ["float32"], "cpu")
    if not comparison.decided:
        for result in moved:
            comparison.add(jnp.asarray(result, F32))
    return comparison.check()


ONES = np.ones(8, np.float32)
OUTLIER = np.array([1, 1, 1, 1, 1, 1, 1, 1000], np.float32)
JUDGED = {
    "within what is usual": (ONES * 1.00001, ONES, (ONES,), True, ""),
    "explained": (ONES * 1.01, ONES, (ONES * 1.005,), True, "rounding"),
    "more than rounding": (ONES * 1.1, ONES, (ONES * 1.005,), False, ""),
    "rounding does not move it": (ONES * 1.01, ONES, (ONES,), False, ""),
    "moved too far to tell": (ONES * 1.5, ONES, (ONES * 2,), None, "inconclusive"),
    "a block behind an outlier": (OUTLIER + OUTLIER % 1000, OUTLIER,
                                  (OUTLIER + OUTLIER // 1000 * 50,), False, ""),
    "zero": ([1e-9, 2e-9], [0, 0], ([0, 3e-9],), True, "rounding"),
    "small but no rounding": ([1e-8, 2e-8], [1e-8, 1e-8], ([1e-8, 1e-8],), False, ""),
    "undefined in one": ([np.nan, 1], [1, 1], ([1, 1],), False, ""),
    "undefined by rounding": ([np.nan, 1], [1, 1], ([np.nan, 1],), None, "inconclusive"),
}  # fmt: skip


@pytest.mark.parametrize(("values", "right", "moved", "ok", "why"), JUDGED.values(), ids=JUDGED)
def test_differences_are_held_against_rounding(values, right, moved, ok, why):
    check = judged(values, right, *moved)
    reason = check.finding.reason
    decided = ""
    if isinstance(reason, RoundingMoves):
        decided = "rounding" if reason.conclusive else "inconclusive"
    assert (check.ok, decided) == (ok, why), check


def test_the_step_is_that_of_the_narrowest_floats():
    assert step_of("tensor<8x8xf32>", "cpu") == 0.0
    assert step_of("tensor<f32>, tensor<f16>, tensor<bf16>", "cpu") == 2.0**-8
    assert step_of("tensor<8xf32>", "tpu") == 2.0**-8


def test_a_reference_that_is_split_over_an_explicit_axis_is_compared(eight_devices):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    right, wrong = jax.device_put((ONES, OUTLIER), split)
    for values, ok in ((right, True), (wrong, False)):
        comparison = Comparison("y", values, right, ["float32"], "cpu")
        if not comparison.decided:
            comparison.add(right)
        assert comparison.check().ok is ok


def test_a_block_that_moves_in_a_later_draw_only_is_rounding(eight_devices):
    """As Adam's step of a gradient that is only rounding: each block flips or stays."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    flipped = np.repeat(np.array([1, 1, 1, 1, 1, 1, 1, -1], F32), 4)
    others, last = np.ones(32, F32), np.ones(32, F32)
    others[:4], last[-4:] = -1, -1
    for later, ok in ((last, None), (others, False)):
        comparison = Comparison(
            "y", jax.device_put(flipped, split), jnp.ones(32), ["float32"], "cpu"
        )
        for draw in (others, others):
            assert not comparison.decided
            comparison.add(jnp.asarray(draw))
        assert comparison.check().ok is False
        comparison.add(jnp.asarray(later))
        assert comparison.check().ok is ok


def attend_on_one_token(q, k, tokens):
    """Adam's first step: the loss does not depend on `k`, so its gradient is rounding."""

    def loss(q, k):
        x = q[tokens]
        scores = jnp.einsum("bsd,btd->bst", x, x + k) / 8
        out = jax.nn.softmax(scores) @ x
        return jnp.mean(jax.nn.log_softmax(out @ q.T)[..., 0])

    gradients = jax.grad(loss, (0, 1))(q, k)
    return tuple(g / (jnp.sqrt(g * g) + 1e-8) for g in gradients)


def test_outputs_that_are_only_rounding_fail_nothing(eight_devices):
    arrays = array("q", (64, 128), "None, b"), array("k", (128,), "b")
    report = run_here(program(attend_on_one_token, *arrays, array("t", (16, 32), "a", "int32")))
    assert report.error is None, report.error
    assert report.ok, [c for c in report.checks if c.ok is False]


def test_a_random_function_decides_nothing(eight_devices):
    rng = np.random.default_rng(0)

    def noisy(x: Any) -> Any:
        def add_noise(values: Any) -> np.ndarray:
            return np.asarray(values) + rng.random(values.shape, dtype=np.float32) / 1000

        return jax.pure_callback(add_noise, x, x)

    report = run_here(program(noisy, array("x", (16, 8), "a")))
    (check,) = [check for check in report.checks if check.about == "values"]
    assert (check.ok, check.finding, check.array) == (None, NotRepeatable(), "output")
