"""Programs for several processes, whose results are compared with those of one device.

Their mesh is `data=4, model=2`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import PartitionSpec as P

import shardviz as sv

AXES = {"data": 4, "model": 2}
TABLE = np.arange(8 * 16, dtype=np.float32).reshape(8, 16) / 128


@dataclass(frozen=True)
class Case:
    """A function, the specs of its arguments, and their shapes and dtypes."""

    name: str
    fn: Callable[..., Any]
    arrays: tuple[tuple[tuple[int, ...], str, str], ...]
    out: Any = None

    def program(self, mesh: Any) -> Any:
        arrays = [
            sv.array(f"a{i}", shape, spec=spec, dtype=dtype)
            for i, (shape, spec, dtype) in enumerate(self.arrays)
        ]
        return sv.program(self.fn, *arrays, mesh=mesh, out_specs=self.out, name=self.name)

    def values(self) -> list[np.ndarray]:
        rng = np.random.default_rng(len(self.name))
        return [_values(rng, shape, dtype) for shape, _, dtype in self.arrays]

    def expected(self, values: list[np.ndarray]) -> list[np.ndarray]:
        """The results of the function, unsharded, on one device of this process."""
        return [np.asarray(v) for v in jax.tree.leaves(jax.jit(self.fn)(*values))]


def _values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind.kind in "iu":
        return rng.integers(0, 8, shape).astype(kind)
    if kind.kind == "c":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(kind)
    return rng.uniform(0.1, 1, shape).astype(kind)


X, W = ((16, 8), "data, None", "float32"), ((8, 16), "None, model", "float32")
BOTH = ((16, 8), "data, model", "float32")


def loss(x, w):
    return jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)


def attention(q, k, v):
    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2.0)
    return jnp.einsum("bhqk,bkhd->bqhd", scores, v)


def without_mean(x):
    return x - x.mean(axis=0, keepdims=True)


def scanned(x, w):
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w @ w.T), c.sum()), x, None, length=3)


def while_loop(x):
    return jax.lax.while_loop(lambda c: c.sum() < 1e3, lambda c: c * 2, x)


HEADS = ((4, 8, 2, 4), "data, None, model, None", "float32")
CASES = (
    Case("matmul", lambda x, w: jnp.tanh(x @ w), (X, W)),
    Case("gradient", loss, (X, W)),
    Case("contraction split", lambda x, w: x @ w, (BOTH, ((8, 16), "model, None", "float32"))),
    Case("sum", lambda x: x.sum(), (BOTH,)),
    Case("largest of rows", lambda x: (x.max(1), x.argmax(1)), (BOTH,)),
    Case("mean taken off", without_mean, (BOTH,)),
    Case("transposed", lambda x: x.T + 1, (BOTH,)),
    Case("attention", attention, (HEADS, HEADS, HEADS)),
    Case("scan", scanned, (X, W)),
    Case("while", while_loop, (BOTH,)),
    Case("sorted", lambda x: jnp.sort(x, axis=0), (BOTH,)),
    Case("cumulated", lambda x: jnp.cumsum(x, axis=0), (X,)),
    Case("taken", lambda x, i: jnp.take(x, i, axis=0), (X, ((8,), "model", "int32"))),
    Case("integers", lambda x: (x * 3, x.sum(0)), (((16, 8), "data, model", "int32"),)),
    Case("bfloat16", lambda x: x * x + 1, (((16, 8), "data, model", "bfloat16"),)),
    Case("truth values", lambda x: (~x, x.any(0)), (((16, 8), "data, None", "bool"),)),
    Case("complex", lambda x: (x * x.conj()).real, (((16, 8), "data, None", "complex64"),)),
    Case("table", lambda x: x @ TABLE, (X,)),
    Case("out specs", lambda x, w: x @ w, (X, W), P("model", "data")),
    Case("nested", lambda x, w: {"y": [x @ w, x.sum()], "z": (w,)}, (X, W)),
)
QUICK = ("gradient", "attention", "scan", "bfloat16", "out specs", "nested")


def orders(device_ids: Any) -> dict[str, Any]:
    """Two meshes of the same devices: in order, and with neighbours in different processes."""
    ids = np.array(device_ids)
    interleaved = ids.reshape(2, -1).T if len(ids) % 2 == 0 else ids
    return {
        "in order": sv.mesh(AXES, device_ids=ids),
        "interleaved": sv.mesh(AXES, device_ids=interleaved.ravel()),
    }


def wrong(case: Case, report: Any, values: list[np.ndarray]) -> list[str]:
    """The mistakes in the report of a run, in words; empty for a right one."""
    if report.error is not None:
        return [f"{case.name}: {report.error}"]
    mistakes = [f"{case.name}: {c.name}: {c.detail}" for c in report.checks if c.ok is not True]
    leaves, expected = jax.tree.leaves(report.outputs), case.expected(values)
    compared = [c.name for c in report.checks if ": indices of 8 shards" in c.name]
    if len(compared) != len(case.arrays) + len(expected):
        mistakes.append(f"{case.name}: only the indices of {compared} were compared")
    for number, (result, right) in enumerate(zip(leaves, expected, strict=True)):
        result = np.asarray(result)
        tolerance = 2e-2 if result.dtype == ml_dtypes.bfloat16 else 1e-5
        if result.dtype != right.dtype or result.shape != right.shape:
            types = f"{result.dtype}{result.shape} for {right.dtype}{right.shape}"
            mistakes.append(f"{case.name}: {types}")
        elif not np.allclose(result.astype(complex), right.astype(complex), tolerance, tolerance):
            mistakes.append(f"{case.name}: result {number} differs")
    return mistakes
