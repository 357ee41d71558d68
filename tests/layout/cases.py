"""Random meshes, specs and shapes. One generator, seeded: a case is found again by its number."""

from __future__ import annotations

import math
import random

import numpy as np

from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec

AXES = ("x", "y", "z", "data", "model", "long axis name")
AXIS_SIZES = (1, 1, 2, 2, 2, 3, 4, 5)


def random_mesh(rng: random.Random, most: int = 48) -> MeshSpec:
    """One to five axes, some of size 1; ids in order, permuted, or from anywhere."""
    sizes = []
    for _ in range(rng.randint(1, 5)):
        sizes.append(rng.choice([s for s in AXIS_SIZES if s * math.prod(sizes) <= most]))
    names = rng.sample(AXES, len(sizes))
    total = math.prod(sizes)
    order = rng.random()
    ids = None
    if order < 0.4:
        ids = rng.sample(range(total), total)
    elif order < 0.6:
        ids = rng.sample(range(4096), total)
    grid = None if ids is None else np.array(ids).reshape(sizes)
    return MeshSpec(tuple(names), tuple(sizes), (), grid)


def random_spec(rng: random.Random, mesh: MeshSpec, rank: int) -> Spec:
    """Axes dealt to dimensions in any order, one or more each; often shorter than the rank."""
    axes = rng.sample(mesh.axis_names, rng.randint(0, len(mesh.axis_names)))
    dims: list[list[str]] = [[] for _ in range(rng.randint(0, rank))]
    if dims:
        for axis in axes:
            rng.choice(dims).append(axis)
    free = frozenset(d for d, a in enumerate(dims) if not a and rng.random() < 0.05)
    return Spec(tuple(map(tuple, dims)), free)


def random_shape(rng: random.Random, mesh: MeshSpec, spec: Spec, rank: int) -> tuple[int, ...]:
    """Sizes that divide, 0 among them."""
    dims = spec.dims + ((),) * (rank - len(spec.dims))
    return tuple(
        math.prod(mesh.shape[a] for a in axes) * rng.choice((0, 1, 1, 2, 3, 7)) for axes in dims
    )


def random_case(rng: random.Random, most: int = 48) -> tuple[MeshSpec, Spec, tuple[int, ...]]:
    """A mesh, a spec that fits it, and a shape that the spec divides; rank 0 to 6."""
    mesh, rank = random_mesh(rng, most), rng.randint(0, 6)
    spec = random_spec(rng, mesh, rank)
    return mesh, spec, random_shape(rng, mesh, spec, rank)
