"""The gradient of a transformer block, for described hardware."""

from __future__ import annotations

from dataclasses import replace

from shardviz.base.mesh import make_mesh
from shardviz.gallery import programs
from shardviz.programs.program import Program

#: Each target and the sizes of its mesh axes.
PODS = {
    "tpu:v5p:8x8x16": {"data": 64, "model": 16},
    "gpu:h100:2x8": {"data": 8, "model": 2},
}


def block(axes: dict[str, int]) -> Program:
    """The gallery's block with a batch that is divisible by the mesh axis."""
    program = programs.get("transformer block, gradient")
    batch = max(16, axes["data"])
    arrays = tuple(
        replace(a, shape=(batch, *a.shape[1:])) if a.name == "x" else a for a in program.arrays
    )
    return program.replace(arrays=arrays, mesh=make_mesh(axes))
