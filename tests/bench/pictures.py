"""How long pictures take and whether they lose a device id, beside `jax.debug.visualize_sharding`.

Every picture is of a new mesh and a new layout, so that no cache helps.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import statistics
import time
from collections.abc import Callable

import jax
import numpy as np

from shardviz.base.layout import Layout, lay_out
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.draw.picture import Picture
from shardviz.draw.serialization import serialize
from shardviz.figures import png
from shardviz.pictures import draw
from tests.layout.fakes import jax_mesh

REPEATS = 15
SMALL_MS, LARGE_MS, PNG_MS = 10.0, 30.0, 1000.0
AXES = ("a", "b", "c", "d", "e", "f")
# The sizes of the mesh axes, by rank.
MESHES_512 = ((512,), (16, 32), (8, 8, 8), (4, 4, 4, 8), (4, 4, 4, 4, 2), (4, 4, 4, 2, 2, 2))
MESH_65536 = (256, 256)


def layout_of(sizes: tuple[int, ...]) -> Layout:
    """A new layout of an array of that rank, every dimension split over an axis of its own."""
    names = AXES[: len(sizes)]
    mesh = make_mesh(dict(zip(names, sizes, strict=True)), processes=math.prod(sizes) // 8)
    return lay_out(tuple(4 * n for n in sizes), Spec(tuple((n,) for n in names)), mesh)


def median_ms(work: Callable[[], object]) -> float:
    """The median over repeats, in milliseconds."""
    work()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def lost(picture: Picture, layout: Layout) -> int:
    """How many device ids of the layout the picture does not name."""
    return len(np.setdiff1d(layout.device_ids, picture.device_ids()))


def row(name: str, taken: float, target: float, missing: int = 0) -> int:
    """Prints one row; 1 where a target is missed."""
    missed = taken > target or missing > 0
    print(
        f"  {name:<44} {taken:8.2f} ms   target {target:6.0f} ms: {'MISSED' if missed else 'ok':<6}"
        f"   {missing} ids lost"
    )
    return int(missed)


def pictures_of(sizes: tuple[int, ...], target: float) -> int:
    """The rows of one mesh: its devices, and a layout by shards and by devices."""
    count, rank = math.prod(sizes), len(sizes)
    layout = layout_of(sizes)
    kinds: dict[str, Callable[[], Picture]] = {
        "mesh": lambda: draw(layout_of(sizes).mesh),
        "mesh by host": lambda: draw(layout_of(sizes).mesh, by="host"),
        "shards of an array": lambda: draw(layout_of(sizes)),
        "devices of an array": lambda: draw(layout_of(sizes), view="devices"),
    }
    return sum(
        row(
            f"{count:,} devices, rank {rank}: {name}", median_ms(make), target, lost(make(), layout)
        )
        for name, make in kinds.items()
    )


def peer() -> None:
    """JAX's own picture of the same arrays: time, and the ids that its text does not contain."""
    print("  for comparison, jax.debug.visualize_sharding:")
    for sizes in MESHES_512[:3]:
        layout = layout_of(sizes)
        sharding = jax.sharding.NamedSharding(jax_mesh(layout.mesh), layout.spec.to_jax())  # type: ignore[union-attr]
        name = f"    {math.prod(sizes)} devices, rank {len(sizes)}"
        try:
            text, taken = _peer_text(layout.shape, sharding)
        except (ValueError, ImportError) as error:
            print(f"{name}: refuses: {error}")
            continue
        found = {int(v) for v in re.findall(r"\d+", text)}
        missing = len(set(layout.device_ids.tolist()) - found)
        ratio = taken / median_ms(lambda sizes=sizes: draw(layout_of(sizes)))
        print(f"{name}: {taken:8.1f} ms, {ratio:5.0f} times ours; {missing} of 512 ids lost")


def _peer_text(shape: tuple[int, ...], sharding: jax.sharding.NamedSharding) -> tuple[str, float]:
    times, out = [], io.StringIO()
    for _ in range(3):
        out = io.StringIO()
        start = time.perf_counter()
        with contextlib.redirect_stdout(out):
            jax.debug.visualize_sharding(shape, sharding, use_color=False)
        times.append((time.perf_counter() - start) * 1e3)
    return out.getvalue(), statistics.median(times)


def main() -> int:
    """Prints the table; how many targets were missed."""
    print(f"\nPictures, median of {REPEATS}, with a new mesh and layout each time")
    missed = sum(pictures_of(sizes, SMALL_MS) for sizes in MESHES_512)
    missed += pictures_of(MESH_65536, LARGE_MS)
    missed += row(
        "65,536 devices: picture to JSON and bytes",
        median_ms(lambda: serialize(draw(layout_of(MESH_65536)))),
        LARGE_MS,
    )
    large = layout_of(MESH_65536)
    start = time.perf_counter()
    png(large)
    missed += row("65,536 devices: a PNG", (time.perf_counter() - start) * 1e3, PNG_MS)
    peer()
    return missed


if __name__ == "__main__":
    main()
