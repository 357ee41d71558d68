"""How long `sv.reshard` takes: a train state of 723 and of 7,203 arrays, on 8 to 65,536 devices.

Every array is split over both axes, and the mesh becomes half as long and twice as wide. What the
sends of one array amount to is compared with the collectives that XLA makes of it.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter

import numpy as np

import shardviz as sv
from tests.bench.timing import Table, best

RULES = [("embed", "fsdp"), ("mlp", "tp"), ("vocab", "tp")]
KINDS = {
    "wq": ("embed mlp", (8192, 8192)),
    "wo": ("mlp embed", (8192, 8192)),
    "wi": ("embed mlp", (8192, 28672)),
    "wg": ("embed mlp", (8192, 28672)),
    "wd": ("mlp embed", (28672, 8192)),
    "ln": ("norm", (8192,)),
}
LIMIT = 2.0  # seconds, for 723 arrays
PAIRS = 120


def state(layers: int) -> dict:
    """Parameters and two moments of a transformer."""
    params = {
        f"layers/{n}/{name}": (shape, names, "bfloat16")
        for n in range(layers)
        for name, (names, shape) in KINDS.items()
    }
    params["embed"] = ((131072, 8192), "vocab embed", "bfloat16")
    return {"params": params, "mu": params, "nu": params}


def agreement() -> str:
    """For how many random pairs of specs XLA uses the collective that the row names."""
    import jax
    from jax.sharding import AxisType, Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    with contextlib.suppress(RuntimeError):  # another benchmark has started jax
        jax.config.update("jax_num_cpu_devices", 8)
    if len(jax.devices()) < 8:
        return "not compared, as jax has fewer than 8 devices"
    rng, found = np.random.default_rng(0), Counter()
    value = jax.ShapeDtypeStruct((64, 64), "float32")
    for _ in range(PAIRS):
        sizes = [(8,), (4, 2), (2, 4), (2, 2, 2)][rng.integers(4)]
        names = tuple("xyz"[: len(sizes)])
        mesh = Mesh(np.reshape(jax.devices()[: math.prod(sizes)], sizes), names,
                    axis_types=(AxisType.Auto,) * len(sizes))  # fmt: skip
        sides = []
        for _ in range(2):
            at, axes = rng.integers(0, 3, len(sizes)), rng.permutation(list(names)).tolist()
            parts = [tuple(a for a, d in zip(axes, at, strict=True) if d == n) for n in (0, 1)]
            sides.append(NamedSharding(mesh, P(*parts)))
        same = jax.jit(lambda v: v, in_shardings=sides[0], out_shardings=sides[1])
        compiled = same.lower(value).compile().as_text()
        kinds = set(re.findall(r" (all-\w+|reduce-scatter|collective-permute)\b[\w-]*\(", compiled))
        kinds = {"all-to-all" if k == "all-to" else k for k in kinds}
        ours = sv.reshard({"w": value}, *sides).rows[0].kind
        found["the same" if kinds == {ours} - {""} else "more" if ours in kinds else "others"] += 1
    return ", ".join(f"{n} {what}" for what, n in found.most_common())


def main() -> int:
    """Prints the table; returns how many targets were missed."""
    table = Table()
    for fsdp, tp in ((4, 2), (8, 8), (128, 8), (512, 8), (4096, 16)):
        sides = [
            (sv.mesh(fsdp=a, tp=b, processes=a * b // 4), RULES)
            for a, b in ((fsdp, tp), (fsdp // 2, tp * 2))
        ]
        for layers, limit in ((40, 2.0), (400, 10.0)):
            tree = state(layers)
            seconds = best(lambda tree=tree, sides=sides: sv.reshard(tree, *sides), 0.0, 1)
            count = layers * 18 + 3
            table.within(f"{count:,} arrays on {fsdp * tp:,} devices", limit, seconds)
    print(f"  XLA's collectives for {PAIRS} random pairs of specs on one mesh: {agreement()}")
    return table.missed


if __name__ == "__main__":
    main()
