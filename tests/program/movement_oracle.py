"""What JAX gives for many collectives: `python -m tests.program.movement_oracle results.npz`.

In a process of its own, since groups of 16 need 16 simulated devices.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np

DEVICES, ROWS = 16, 48  # rows of each device's block: a multiple of the size of every group
# Sizes of axes, and the order of the devices: 1 as they come, else steps around.
MESHES: dict[str, tuple[tuple[int, ...], int]] = {
    "2": ((2,), 1), "3": ((3,), 1), "4": ((4,), 1), "8": ((8,), 3), "16": ((16,), 1),
    "4x2": ((4, 2), 1), "2x3": ((2, 3), 1), "2x8": ((2, 8), 5), "4x4": ((4, 4), 1),
    "2x2x4": ((2, 2, 4), 1), "3x2x2": ((3, 2, 2), 5),
}  # fmt: skip
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


def ids_of(name: str) -> np.ndarray:
    """The device ids of a mesh, in its shape."""
    sizes, step = MESHES[name]
    count = int(np.prod(sizes))
    return (np.arange(count) * step % count).reshape(sizes)


def axes_of(name: str) -> list[tuple[str, ...]]:
    """The sets of axes over which collectives run on a mesh; two of them in both orders."""
    names = "abc"[: len(MESHES[name][0])]
    found = [c for n in range(1, len(names) + 1) for c in itertools.combinations(names, n)]
    return [*found, ("b", "a")] if len(names) == 2 else found


def cases() -> list[tuple[str, tuple[str, ...], str]]:
    """Every mesh, set of axes and kind."""
    return [(m, a, k) for m in MESHES for a in axes_of(m) for k in KINDS]


def values_of(name: str) -> np.ndarray:
    """The block of each device, in the order of the mesh: int32 [devices, ROWS, 2]."""
    count = int(np.prod(MESHES[name][0]))
    return np.random.default_rng(count).integers(0, 1000, (count, ROWS, 2)).astype(np.int32)


def _collective(kind: str, axes: tuple[str, ...], size: int, block: Any) -> Any:
    from jax import lax

    return {
        "all-reduce": lambda: lax.psum(block, axes),
        "all-gather": lambda: lax.all_gather(block, axes, tiled=True),
        "reduce-scatter": lambda: lax.psum_scatter(block, axes, tiled=True),
        "all-to-all": lambda: lax.all_to_all(block, axes, 0, 0, tiled=True),
        "collective-permute": lambda: lax.ppermute(
            # In the order of the mesh: jax 0.12 refuses another one.
            block,
            tuple(sorted(axes)),
            [(n, (n + 1) % size) for n in range(size)],
        ),
    }[kind]()


def _results(name: str) -> dict[str, np.ndarray]:
    import jax
    from jax.sharding import AxisType, Mesh
    from jax.sharding import PartitionSpec as P

    sizes = dict(zip("abc", MESHES[name][0], strict=False))
    devices = np.array(jax.devices("cpu"))[ids_of(name)]
    mesh = Mesh(devices, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))
    wanted = [(axes, kind) for axes in axes_of(name) for kind in KINDS]

    def every(block: Any) -> Any:
        return [
            _collective(kind, axes, int(np.prod([sizes[a] for a in axes])), block)
            for axes, kind in wanted
        ]

    values = values_of(name)
    run = jax.jit(
        jax.shard_map(
            every, mesh=mesh, in_specs=P(tuple(sizes)), out_specs=P(tuple(sizes)), check_vma=False
        )
    )
    found = run(values.reshape(-1, *values.shape[2:]))
    return {
        f"{name} {''.join(axes)} {kind}": np.stack(np.split(np.asarray(one), len(values)))
        for (axes, kind), one in zip(wanted, found, strict=True)
    }


if __name__ == "__main__":
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.config.update("jax_disable_most_optimizations", True)
    np.savez(sys.argv[1], **{k: v for name in MESHES for k, v in _results(name).items()})
