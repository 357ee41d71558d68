"""Right and wrong answers to the exercises of the short lessons; as `layout_answers`."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import shardviz as sv
from tests.exercises.layout_answers import named

LONG = {"data": 4, "model": 8}
GRID = {"U": 4, "V": 2}
KEYS = (1, 131072, 8, 128)
REFUSED = ("total", "outer", "inner")

# fmt: off
ANSWERS: dict[str, tuple[list[Any], list[Any]]] = {
    "memory/saved": (
        [
            "8 GiB", 8 << 30, "8.59 GB", np.int64(8 << 30), Fraction(8 << 30), "8192 MiB",
            "8,589,934,592 bytes",
        ],
        [
            "64 GiB", "2 GiB", "256 MiB", "16 GiB", 8, "8 GB", "8.50 GB", "4 GiB", -(8 << 30),
            "8 layers", True, None, [8 << 30],
        ],
    ),
    "memory/groups": (
        [12, "12", 12.0, np.int32(12), Fraction(12), np.array(12)],
        [144, 1, 6, 24, "12 layers", 0, -12, 11.5, None, "sqrt(144)", [12], 10**9, True],
    ),
    "overlap/tokens": (
        [1912.5, "1912.5", 1913, np.float32(1912.5), Fraction(3825, 2), "1,912"],
        [3825, 2550, 5100, 1434, 956, 1.9, 0, -1912, None, "2000 tokens", 1e9, [1912]],
    ),
    "overlap/exposed": (
        ["7 ms", 0.007, "7000 us", np.float64(0.007), Fraction(7, 1000), "0.007 s"],
        [
            "10 ms", "6 ms", "5.5 ms", 7000, 7, "4 ms", "7", "8 ms", 0, -0.007, None, "7 minutes",
        ],
    ),
    "zero/state": (
        [
            "36 GiB", 36 << 30, "38.7 GB", np.int64(36 << 30), Fraction(36 << 30), "38.65 GB",
            "36864 MiB",
        ],
        [
            "96 GiB", "6 GiB", "34 GiB", "32 GiB", 36, "36 GB", "38.6 GB", "4 GiB", 0, -(36 << 30),
            None, "36 bytes for each", [36 << 30],
        ],
    ),
    "zero/devices": (
        [64, "64", 64.0, np.int64(64), Fraction(64), np.array(64)],
        [32, 40, 128, 16, 1, 0, -64, 1e9, "many", None, [64], "64 devices"],
    ),
    "shard_map/sends": (
        ["112 MiB", 112 << 20, "117 MB", np.int64(112 << 20), Fraction(112 << 20), 117440512.0],
        [
            "128 MiB", "16 MiB", "1 GiB", "14 MiB", "896 MiB", 112, "112 MB", "118 MB", "56 MiB", 0,
            None, -(112 << 20),
        ],
    ),
    "shard_map/owner": (
        [5, "5", {5}, [5], (5,), np.array([5])],
        [7, 2, 3, 4, 6, 8, -3, "five", [], [5, 6], None, 5.5],
    ),
    "ring/sends": (
        ["240 MiB", 240 << 20, "252 MB", np.int64(240 << 20), Fraction(240 << 20), 251658240.0],
        [
            "120 MiB", "256 MiB", "16 MiB", "8 MiB", "3.75 GiB", 240, "240 MB", "251 MB", "480 MiB",
            0, None, -(240 << 20),
        ],
    ),
    "ring/tokens": (
        [3940, "3940", 3940.0, np.float32(3940), Fraction(3940), "3,940"],
        [7880, 1970, 985, 3.94, 4096, "4 k", 0, -3940, 1e9, None, [3940], "3940 tokens"],
    ),
    "cache/long-context": (
        [
            P(None, "data", "model"), "None, model, data", (None, ("data", "model")),
            sv.Spec.parse("None, data, model"), named(P(None, "data", "model"), **LONG),
            sv.layout(KEYS, "None, data, model", sv.mesh(**LONG)),
            jax.ShapeDtypeStruct(KEYS, "bfloat16", sharding=named(P(None, *LONG), **LONG)),
        ],
        [
            "", "None, data", "None, None, model", "(data, model)", "data, None, model",
            "None, data, data", "None, data, heads", "None, None, (data, model)",
            "None, data, model, None, None", named(P(None, "data", "model"), data=8, model=4),
            sv.layout((8, 8), "data, model", sv.mesh(**LONG)), None, 8,
        ],
    ),
    "cache/step-seconds": (
        ["10.1 ms", 0.01015, "10 ms", np.float32(0.0101), Fraction(101, 10000), "10150 us"],
        [
            "4.9 ms", "5.25 ms", "40.6 ms", 10.1, "20 ms", "10.1", 0, -0.0101, "10 minutes", None,
            "8 ms", [0.0101],
        ],
    ),
    "pipeline/microbatches": (
        [63, "63", 63.0, np.int64(63), Fraction(63), np.array(63)],
        [70, 72, 7, 8, 80, 62, 64, 0, -63, "63 %", None, [63], 1e9],
    ),
    "pipeline/seconds": (
        [0.625, "625 ms", "0.625 s", np.float32(0.625), Fraction(5, 8), "625,000 us"],
        [0.5, 2, "667 ms", 625, 0.6, "1 s", 0, -0.625, "625", "half a second", None, [0.625]],
    ),
    "slices/network-bytes": (
        ["21 MiB", 21 << 20, "22.0 MB", np.int64(21 << 20), Fraction(21 << 20), "21504 KiB"],
        [
            "672 MiB", "10.5 MiB", "28 MiB", "14 MiB", 21, "21 MB", "22.1 MB", "448 MiB", 0, None,
            -(21 << 20), "21 MiB/s",
        ],
    ),
    "slices/tokens": (
        [42027, "42027", 42027.0, np.float32(42000), Fraction(42000), "42,027"],
        [84053, 21013, 2627, 42, 50000, 30000, "42 k", 0, -42027, 1e9, None, [42027]],
    ),
    "experts/dropped": (
        [28, "28", 28.0, np.int64(28), Fraction(28), np.array(28)],
        [60, 0, 100, 72, 26, 30, -28, 28.5, "28 tokens", None, [28], 1e9],
    ),
    "experts/sent-bytes": (
        ["14 MiB", 14 << 20, "14.7 MB", np.int64(14 << 20), Fraction(14 << 20), "14336 KiB"],
        [
            "7 MiB", "16 MiB", "8 MiB", "112 MiB", 14, "14 MB", "14.6 MB", "28 MiB", 0, None,
            -(14 << 20), "14 boxes",
        ],
    ),
    "explicit/type": (
        [
            P("U", "V"), "U, V", ("U", "V"), sv.Spec.parse("U, V"), named(P("U", "V"), **GRID),
            sv.layout((1024, 2048), "U, V", sv.mesh(**GRID)),
        ],
        [
            "U", "None, V", "V, U", "", "(U, V)", "None, U", "U, U", "U, W", "U, V, None",
            named(P("U", "V"), U=2, V=4), None, 2,
        ],
    ),
    "explicit/refused": (
        [
            {"total", "outer", "inner"}, "total, outer, inner", ["inner", "outer", "total"],
            ("outer", "total", "inner"), "{total; inner; outer}", dict.fromkeys(REFUSED),
        ],
        [
            "total", "outer", "inner", "total, outer", {"aligned"}, "sine", [], "A + B",
            [*REFUSED, "sine"], [*REFUSED, "aligned"], "total, outer, innner", None, 3,
        ],
    ),
}
# fmt: on
