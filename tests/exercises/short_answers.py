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
