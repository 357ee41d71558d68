"""Right and wrong answers to the exercises on placement, rooflines and networks."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import shardviz as sv
from shardviz import exercises
from shardviz.exercises import registry
from shardviz.hardware.targets import Target
from tests.exercises.code_answers import WRONG, forms, one_step_more

REFUSED = ("pair", "mixed", "jitted")


def elsewhere(a: Any, b: Any, device: Any) -> Any:
    return jax.device_put(a, b.sharding) @ b


def other_product(a: Any, b: Any, device: Any) -> Any:
    a, b = jax.device_put((a, b), device)
    return (a @ b) * 2


def in_a_loop(A: Any, B: Any, v: Any) -> Any:
    """Each row of A times all of B: the loop reads B again for every row."""
    return lax.map(lambda row: (row @ B) @ v, A)


def in_the_wrong_order(part: Any) -> Any:
    rows = lax.all_gather(part, "x", tiled=True)
    return lax.all_gather(rows, "y", tiled=True)


def both_axes(part: Any) -> Any:
    return lax.all_gather(part, ("x", "y"), tiled=True)


def summed(part: Any) -> Any:
    place = lax.axis_index(("x", "y"))
    whole = jnp.zeros((1024, 256)).at[place * 128 + jnp.arange(128)].set(part)
    return lax.psum(whole, ("x", "y"))


# fmt: off
ANSWERS: dict[str, tuple[list[Any], list[Any]]] = {
    "running/refused": (
        [
            "pair, mixed, jitted", REFUSED, list(REFUSED), set(REFUSED), np.array(REFUSED),
            dict.fromkeys(REFUSED, True), "jitted mixed pair",
        ],
        [
            "pair", "pair, mixed", "pair, jitted", "pair, mixed, jitted, moved", "loose", "spread",
            "moved", "pair, mixed, jitted, loose", "pair, mixed, jitted, spread", "pears", None, [],
            7,
        ],
    ),
    "running/arguments": (
        [
            "2.5 MiB", 5 << 19, "2.62 MB", np.int64(5 << 19), Fraction(5 << 19), "2560 KiB",
            2621440.0,
        ],
        [
            "10 MiB", "640 KiB", "1.25 MiB", "2 MiB", "2.5 MB", "5 MiB", 3, 0, None, "8 MiB",
            -(5 << 19), [5 << 19],
        ],
    ),
    "running/meet": (
        forms(registry.find("running/meet").solution)[:-1],  # jit refuses two devices
        [
            *WRONG, elsewhere, other_product, lambda a, b, d: a @ b,
            lambda a, b, d: jax.device_put(a, d), lambda a, b, d: jax.device_get(a @ a.T),
        ],
    ),
    "roofline/rows": (
        [173, 173.01, "173", np.float32(173), Fraction(173), "173.0"],
        [166, 169.4, 361, 332, 16, 0, -173, "173 MB", None, [173], 100, 200, 1e9],
    ),
    "roofline/elementwise": (
        ["160 us", 0.00016, "0.16 ms", np.float32(0.00016), Fraction(16, 100000), "160.3 µs"],
        ["80 us", "320 us", "40 us", 160, "160 ms", 0, "0.1 us", "100 us", "200 us", None, [1]],
    ),
    "roofline/int8": (
        [120, 120.3, "120", np.float32(120.3), Fraction(120), "120.0"],
        [240, 481, 60, 0, -120, 1, "120 MB", 100, 130, None, [120], 1e6, "many"],
    ),
    "roofline/chain": (
        forms(registry.find("roofline/chain").solution),
        [*WRONG, lambda A, B, v: A @ B @ v, in_a_loop, lambda A, B, v: B @ (A @ v)],
    ),
    "torus/ring-seconds": (
        [
            "10 ms", 0.01007, "10.07 ms", np.float32(0.01), "10000 us",
        ],
        [
            "20 ms", "5 ms", "1.31 ms", 40.3e-3, "80 ms", 1.34e-3, 10, "15 ms", "7 ms", "10",
            "10 min", None, -0.01,
        ],
    ),
    "torus/all-rings": (
        [
            "tpu:v5p:4x4x12", "tpu:v4:4x4x12", sv.topology("tpu:7x:4x4x12"),
            "TPU : v5p : 4 x 4 x 12", "tpu:v5p:4x12x4",
            Target("described", "tpu", 192, "tpu:v4:4x4x12"),
        ],
        [
            "tpu:v5e:12x16", "tpu:v5p:2x8x12", "tpu:v5p:4x4x4", "tpu:v6e:12x16", "gpu:h100:24x8",
            "tpu:v5e:16x16", "tpu:v5p:4x4x6*2", "tpu:v5p:12x16x1", "tpu:v5q:4x4x8", "192", 192,
            None,
        ],
    ),
    "torus/small": (
        ["914 KB", 914286, "893 KiB", np.float64(914285.7), Fraction(6400000, 7), "0.914 MB"],
        [
            "1.83 MB", "1.6 MB", "457 KB", "800 KB", "229 KB", "400 KB", 914, "50 KB", 0, None,
            -914286, "8 MiB", [914286],
        ],
    ),
    "torus/axis-by-axis": (
        forms(registry.find("torus/axis-by-axis").solution),
        [*WRONG, in_the_wrong_order, both_axes, summed, one_step_more],
    ),
}
# fmt: on

assert set(ANSWERS) == {n for lesson in (2, 3, 5) for n in exercises.names(lesson)}
