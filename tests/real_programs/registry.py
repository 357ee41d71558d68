"""Real: one program as a user of a library has it; Registry: those of one module.

Every entry makes its functions and arrays anew, so that nothing of them is in a cache of jax.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# Module -> the packages that it imports, beside jax.
MODULES: dict[str, tuple[str, ...]] = {
    "jax_arrays": (),
    "jax_shard_map": (),
    "flax_linen": ("flax", "optax"),
    "flax_nnx": ("flax", "optax"),
    "optax_steps": ("optax",),
    "equinox_models": ("equinox", "optax"),
    "keras_models": ("keras",),
    "differential_equations": ("diffrax", "equinox", "lineax", "optimistix"),
    "named_axes": ("equinox", "haliax"),
    "penzai_models": ("optax", "penzai"),
    "numpyro_models": ("numpyro",),
    "haiku_models": ("haiku", "optax"),
    "graphs_and_samplers": ("blackjax", "chex", "distrax", "jaxopt", "jraph"),
    "orbax_checkpoints": ("orbax",),
}


@dataclass
class Real:
    """A program of a library's user.

    Attributes:
        step: what the user calls.
        args, kwargs: with what.
        context: makes the context of the call, such as `jax.set_mesh`.
        jitted: what the user runs; `jax.jit(step)` by default, or the step if that is jitted.
        own: what `sv.program` is given beside the call.
        called: whether the arguments are values, so that the user can call the step.
        runs: whether `sv.run` is tried on it, too.
    """

    step: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    context: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    jitted: Any = None
    own: Mapping[str, Any] = field(default_factory=dict)
    called: bool = True
    runs: bool = True

    def __post_init__(self) -> None:
        if self.jitted is None:
            self.jitted = self.step if hasattr(self.step, "lower") else jax.jit(self.step)

    def compiled(self) -> Any:
        """What jax makes of it, without shardviz."""
        with self.context():
            compiled = self.jitted.lower(*self.args, **self.kwargs).compile()
        return getattr(compiled, "compiled", compiled)  # equinox wraps it

    def call(self) -> Any:
        """The user's own call."""
        with self.context():
            return jax.block_until_ready(self.jitted(*self.args, **self.kwargs))


class Registry(dict[str, Callable[[], Real]]):
    """The programs of one module, by name; a decorator for what makes one."""

    def __call__(self, make: Callable[[], Real]) -> Callable[[], Real]:
        self[make.__name__] = make
        return make


def grid(*, explicit: bool = False, **axes: int) -> Mesh:
    """A mesh of the first simulated devices, such as `grid(data=4, model=2)`."""
    size = int(np.prod(list(axes.values())))
    devices = np.array(jax.devices()[:size]).reshape(tuple(axes.values()))
    kind = AxisType.Explicit if explicit else AxisType.Auto
    return Mesh(devices, tuple(axes), axis_types=(kind,) * len(axes))


def split(mesh: Mesh, value: Any, *dims: Any) -> Any:
    """A value on the devices of a mesh, split as a PartitionSpec of these parts says."""
    return jax.device_put(value, NamedSharding(mesh, P(*dims)))


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Random numbers, always the same ones."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def tokens(*shape: int, below: int = 32, seed: int = 0) -> np.ndarray:
    """Random token numbers, always the same ones."""
    return np.random.default_rng(seed).integers(0, below, shape, np.int32)
