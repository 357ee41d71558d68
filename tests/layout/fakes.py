"""Devices that are not there: enough of one for JAX's own Mesh and NamedSharding to answer."""

from __future__ import annotations

import jax
import numpy as np

from shardviz.base.mesh import MeshSpec


class FakeClient:
    platform = "cpu"
    runtime_type = "fake"

    def __init__(self, process: int = 0):
        self._process = process

    def process_index(self) -> int:
        return self._process


class FakeDevice:
    platform = "cpu"
    device_kind = "fake"

    def __init__(self, id: int, process_index: int = 0, client: FakeClient | None = None):
        self.id, self.process_index = id, process_index
        self.client = client or FakeClient()

    def __repr__(self) -> str:
        return f"FakeDevice({self.id})"


_CLIENT = FakeClient()
_DEVICES = [FakeDevice(i, client=_CLIENT) for i in range(4096)]


def jax_mesh(mesh: MeshSpec) -> jax.sharding.Mesh:
    """JAX's own Mesh over fake devices of the same ids, processes and axis types."""
    ids, processes = mesh.device_ids, mesh.process_indices
    devices = np.empty(ids.size, object)
    if ids.max(initial=0) < len(_DEVICES) and not processes.any():
        devices[:] = [_DEVICES[id] for id in ids.flat]
    else:
        found = zip(ids.ravel().tolist(), processes.ravel().tolist(), strict=True)
        devices[:] = [FakeDevice(id, process, _CLIENT) for id, process in found]
    types = tuple(jax.sharding.AxisType[t] for t in mesh.axis_types)
    return jax.sharding.Mesh(devices.reshape(ids.shape), mesh.axis_names, axis_types=types)
