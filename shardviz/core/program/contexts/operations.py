"""operations(): what one can do with a Mesh, with an AbstractMesh, or with both.

Each row is a small function that is really called, so the table is what JAX of this machine does
and not what somebody wrote down. `EXPECTED` is what holds from jax 0.10 to 0.12 for Auto axes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardviz.core.errors import TargetError
from shardviz.core.program.running.failures import in_words

BOTH, MESH, ABSTRACT = (True, True), (True, False), (False, True)

#: Operation to whether it exists on a Mesh, and on an AbstractMesh.
EXPECTED: dict[str, tuple[bool, bool]] = {
    "axis_names": BOTH,
    "axis_sizes": BOTH,
    "axis_types": BOTH,
    "shape": BOTH,
    "size": BOTH,
    "empty": BOTH,
    "abstract_mesh": BOTH,
    "== and hash": BOTH,
    "devices": MESH,
    "device_ids": MESH,
    "local_devices": MESH,
    "local_mesh": MESH,
    "is_multi_process": MESH,
    "with mesh:": MESH,
    "jax.set_mesh": MESH,
    "jax.sharding.use_abstract_mesh": ABSTRACT,
    "NamedSharding": BOTH,
    "NamedSharding.shard_shape": BOTH,
    "NamedSharding.devices_indices_map": MESH,
    "NamedSharding.device_set": MESH,
    "NamedSharding.addressable_devices": MESH,
    "jax.device_put": MESH,
    "lower": MESH,
    "lower for named platforms": BOTH,
    "compile": MESH,
    "with_sharding_constraint in jit": BOTH,
    "shard_map in jit": BOTH,
    "shard_map of an array on devices": BOTH,
    "shard_map of a bare array": MESH,
}


@dataclass(frozen=True)
class Operation:
    """One operation, tried on both kinds of mesh.

    Attributes:
        name: what it is called.
        on_mesh: whether it exists on a `Mesh`.
        on_abstract_mesh: whether it exists on an `AbstractMesh`.
        refusals: what JAX said where it does not, by the name of the kind.

    >>> Operation("devices", True, False, {"AbstractMesh": "ValueError: …"}).where
    'Mesh alone'
    """

    name: str
    on_mesh: bool
    on_abstract_mesh: bool
    refusals: dict[str, str]

    @property
    def where(self) -> str:
        """On which kinds it exists, in words."""
        if self.on_mesh and self.on_abstract_mesh:
            return "both"
        if self.on_mesh:
            return "Mesh alone"
        return "AbstractMesh alone" if self.on_abstract_mesh else "neither"


def operations(mesh: Mesh | None = None) -> tuple[Operation, ...]:
    """Every operation of the table, tried on a Mesh and on its AbstractMesh.

    Args:
        mesh: a Mesh of attached devices; one of a single device where none is given.

    Raises:
        TargetError: if the mesh is of devices on which nothing can run.

    >>> {o.name: o.where for o in operations()}["devices"]
    'Mesh alone'
    """
    tried: Any = Mesh(np.array(jax.devices()[:1]), ("x",)) if mesh is None else mesh
    if not isinstance(tried, Mesh) or tried.empty:
        raise TargetError("Operations are tried on a jax Mesh of attached devices.")
    rows = []
    for name, trial in _trials(tried).items():
        refusals = {}
        for kind in (tried, tried.abstract_mesh):
            try:
                trial(kind)
            except Exception as error:  # noqa: BLE001  what JAX raises is the answer
                refusals[type(kind).__name__] = in_words(error)
        rows.append(
            Operation(name, "Mesh" not in refusals, "AbstractMesh" not in refusals, refusals)
        )
    return tuple(rows)


def _trials(mesh: Mesh) -> dict[str, Callable[[Any], Any]]:
    """What stands behind each name: a function of a Mesh or AbstractMesh."""
    spec = PartitionSpec(mesh.axis_names[0])
    bare = np.zeros((mesh.devices.shape[0],), np.float32)
    placed = jax.device_put(bare, NamedSharding(mesh, spec))
    attributes = (
        "axis_names", "axis_sizes", "axis_types", "shape", "size", "empty", "abstract_mesh",
        "devices", "device_ids", "local_devices", "local_mesh", "is_multi_process",
    )  # fmt: skip
    trials: dict[str, Callable[[Any], Any]] = {
        name: lambda m, name=name: getattr(m, name) for name in attributes
    }
    return {
        **trials,
        "== and hash": lambda m: {m: m == m},
        "with mesh:": _entered,
        "jax.set_mesh": lambda m: _inside(jax.set_mesh(m)),
        "jax.sharding.use_abstract_mesh": lambda m: _inside(jax.sharding.use_abstract_mesh(m)),
        **_sharding_trials(spec, bare, placed),
    }


def _sharding_trials(spec: Any, bare: Any, placed: Any) -> dict[str, Callable[[Any], Any]]:
    shape = bare.shape

    def traced(mesh: Any) -> Any:
        asked = jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, spec))
        return jax.jit(lambda x: x * 2).trace(asked)

    def constrained(mesh: Any) -> Any:
        sharding = NamedSharding(mesh, spec)
        return jax.jit(lambda x: jax.lax.with_sharding_constraint(x, sharding))(placed)

    def mapped(mesh: Any) -> Any:
        return jax.shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=spec)

    return {
        "NamedSharding": lambda m: NamedSharding(m, spec),
        "NamedSharding.shard_shape": lambda m: NamedSharding(m, spec).shard_shape(shape),
        "NamedSharding.devices_indices_map": (
            lambda m: NamedSharding(m, spec).devices_indices_map(shape)
        ),
        "NamedSharding.device_set": lambda m: NamedSharding(m, spec).device_set,
        "NamedSharding.addressable_devices": lambda m: NamedSharding(m, spec).addressable_devices,
        "jax.device_put": lambda m: jax.device_put(bare, NamedSharding(m, spec)),
        "lower": lambda m: traced(m).lower(),
        "lower for named platforms": lambda m: traced(m).lower(lowering_platforms=("cpu",)),
        "compile": lambda m: traced(m).lower().compile(),
        "with_sharding_constraint in jit": constrained,
        "shard_map in jit": lambda m: jax.jit(mapped(m))(placed),
        "shard_map of an array on devices": lambda m: mapped(m)(placed),
        "shard_map of a bare array": lambda m: mapped(m)(bare),
    }


def _entered(mesh: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # `with mesh:` says that it is old
        _inside(mesh)


def _inside(manager: Any) -> None:
    with manager:
        pass
