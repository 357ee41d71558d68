"""Right and wrong answers to the exercises of lessons 16, 17 and 19; as `layout_answers`."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

import shardviz as sv
from shardviz.exercises import registry
from tests.exercises.code_answers import WRONG, forms


def corrected_weight(x: Any, w: Any, a: Any, b: Any) -> Any:
    return x @ (w + a @ b)


def without_correction(x: Any, w: Any, a: Any, b: Any) -> Any:
    return x @ w


def wrong_order(x: Any, w: Any, a: Any, b: Any) -> Any:
    return x @ w + x @ (a @ b)


def without_products(x: Any, w: Any, a: Any, b: Any) -> Any:
    weight = w + (a[:, :, None] * b).sum(1)
    return (x[:, :, None] * weight).sum(1)


def in_a_loop(x: Any, w: Any, a: Any, b: Any) -> Any:
    _, rows = jax.lax.scan(lambda carry, row: (carry, row @ (w + a @ b)), 0, x)
    return rows


def part(name: str) -> Any:
    return SimpleNamespace(name=name)


MESH: dict[str, Any] = {"fsdp": 32, "tensor": 8}

# fmt: off
ANSWERS: dict[str, tuple[list[Any], list[Any]]] = {
    "arithmetic/attention-length": (
        [52224, "52224", 52224.0, np.int64(52224), Fraction(52224), "52,224", np.array(52224)],
        [
            104448, 43008, 9216, 26112, 37888, 8192, 0, -52224, 52, "52 k", None, [52224],
            "52224 bytes", 1e12, True,
        ],
    ),
    "arithmetic/low-rank": (
        forms(registry.find("arithmetic/low-rank").solution),
        [*WRONG, corrected_weight, without_correction, wrong_order, without_products, in_a_loop],
    ),
    "far/tensor-degree": (
        [28, "28", 28.0, np.int64(28), Fraction(28), np.array(28)],
        [14, 29, 57, 6, 28.9, 28.5, 16, 32, 0, -28, None, [28], "28 devices", 1e9],
    ),
    "far/mesh": (
        [
            "fsdp=32, tensor=8", MESH, sv.mesh(**MESH), sv.mesh(tensor=8, fsdp=32),
            jax.sharding.AbstractMesh((32, 8), ("fsdp", "tensor")), "tensor=8, fsdp=32",
        ],
        [
            "fsdp=256", "tensor=256", "fsdp=64, tensor=4", "fsdp=16, tensor=16",
            "fsdp=8, tensor=32", "fsdp=128, tensor=2", "fsdp=32, tensor=4", "data=32, tensor=8",
            "fsdp=32", None, 8, "fsdp=32, tensor", {"fsdp": 0, "tensor": 8}, "fsdp=32, model=8",
        ],
    ),
    "measured/exposed": (
        ["350 us", 350e-6, "0.35 ms", np.float64(0.00035), Fraction(350, 10**6), "350 µs"],
        [
            "750 us", "400 us", "100 us", "250 us", "150 us", 350, "350 ms", "350", 0, -350e-6,
            None, [350e-6], "350 bytes",
        ],
    ),
    "measured/first": (
        [
            "all-gather params", ["all-gather params"], {"all-gather params"},
            ("all-gather params",), "'all-gather params'", part("all-gather params"),
        ],
        [
            "dot_general mlp", "dot_general attention", "all-reduce norm", "exp", "all-gather", "",
            [], None, 3, ["exp", "dot_general mlp"], "dot_general", "all-gather parms", True,
        ],
    ),
}
# fmt: on
