"""Random meshes and layouts, small enough to look at every tile."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from shardviz.base.layout import Layout, lay_out
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec

NAMES = ("pod", "data", "fsdp", "seq", "expert", "model")
MOST = 128


@st.composite
def meshes(draw: st.DrawFn, most: int = MOST) -> MeshSpec:
    """Meshes of up to 6 axes: ids that start anywhere, in any order, on hosts that alternate."""
    sizes: list[int] = []
    for _ in range(draw(st.integers(1, 6))):
        sizes.append(draw(st.integers(1, max(1, min(40, most // math.prod(sizes))))))
    total = math.prod(sizes)
    ids = list(range(total))
    if draw(st.booleans()):
        ids = draw(st.permutations(ids))
    first = draw(st.sampled_from([0, 0, 2048]))
    hosts = draw(st.sampled_from([h for h in (1, 2, 4, 8, 16) if total % h == 0]))
    owner = [i * hosts // total for i in range(total)]
    if draw(st.booleans()):
        owner = [owner[i] for i in ids]
    shape = tuple(sizes)
    return MeshSpec(
        NAMES[: len(sizes)],
        shape,
        (),
        np.reshape([first + i for i in ids], shape),
        np.reshape(owner, shape),
    )


@st.composite
def layouts(draw: st.DrawFn, most: int = MOST) -> Layout:
    """Layouts of arrays of up to 5 dimensions, with tuples, unsplit dimensions and empty ones."""
    mesh = draw(meshes(most))
    axes = list(draw(st.permutations(mesh.axis_names)))
    dims: list[tuple[str, ...]] = []
    shape: list[int] = []
    for _ in range(draw(st.integers(0, 5))):
        count = draw(st.integers(0, min(2, len(axes))))
        mine, axes = tuple(axes[:count]), axes[count:]
        dims.append(mine)
        parts = math.prod(mesh.shape[a] for a in mine)
        shape.append(parts * draw(st.sampled_from([0, 1, 2, 3, 16, 100])))
    dtype = draw(st.sampled_from(["bfloat16", "float32", "int4"]))
    return lay_out(tuple(shape), Spec(tuple(dims)), mesh, dtype)
