"""Programs on states that orbax restores."""

from __future__ import annotations

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding

from tests.real_programs.registry import Real, Registry, grid, numbers, split

PROGRAMS = Registry()


def _step(params, x):
    return jnp.tanh(x @ params["up"]) @ params["down"] + params["bias"]


def _params(mesh):
    return {
        "up": split(mesh, numbers(16, 32), None, "model"),
        "down": split(mesh, numbers(32, 8), "model"),
        "bias": split(mesh, numbers(8)),
    }


@PROGRAMS
def restored_on_another_mesh() -> Real:
    """Saved on one mesh, restored on another by abstract arrays with shardings."""
    mesh = grid(data=2, model=4)
    target = jax.tree.map(
        lambda v: jax.ShapeDtypeStruct(
            v.shape, v.dtype, sharding=NamedSharding(mesh, v.sharding.spec)
        ),
        _params(mesh),
    )
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpoints:
        path = Path(folder) / "step_0"
        checkpoints.save(path, _params(grid(data=4, model=2)))
        checkpoints.wait_until_finished()
        params = checkpoints.restore(path, target)
    return Real(jax.jit(_step), (params, split(mesh, numbers(8, 16), "data")))
