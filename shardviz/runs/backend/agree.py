"""Describes this process's call, for other processes to compare with theirs.

All processes of `jax.distributed` must make the same `sv.run` call. `rendezvous.py`
exchanges and compares the descriptions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeGuard

import jax
import numpy as np
from jax.sharding import Mesh
from jaxlib.version import __version__ as jaxlib_version

from shardviz.base.array_spec import dtype_name
from shardviz.base.backend.jax_compat import key_value_store
from shardviz.base.format import joined
from shardviz.compiled.checks import NoStore, OwnShards
from shardviz.programs.backend.devices import Device, processes_of
from shardviz.programs.backend.failures import calling_line
from shardviz.runs.agreement import Account
from shardviz.runs.backend.inputs import copies_allowed, is_global, partial_axes
from shardviz.runs.backend.rendezvous import Rendezvous
from shardviz.runs.backend.runner import Job

# Arrays with more bytes than this are sampled.
_MOST_DIGESTED = 64 << 20


def join(job: Job, mesh: Mesh) -> None:
    """Prepares the exchange with other processes that own devices of the mesh."""
    processes = processes_of(list(mesh.devices.flat))
    if len(processes) < 2:
        return
    store, process = key_value_store(), jax.process_index()
    if store is None:
        job.add_notes([NoStore()])
        return
    job.add_notes([OwnShards(process, len(processes))])
    function = "sv.compile" if job.repeat is None else "sv.run"
    call = f"{function}({job.program.name!r})"
    job.rendezvous = Rendezvous(store, process, processes, call)


@copies_allowed()
def account_of(job: Job, devices: Sequence[Device], call: str) -> Account:
    """Describes the call that this process is about to make."""
    program, first = job.program, devices[0]
    requests = program.requests
    # With different `repeat`, processes would run different numbers of collectives.
    options = {**program.options, "repeat": job.repeat}
    platform = " ".join(first.client.platform_version.split())
    fields = {
        "call": call,
        "jax versions": f"{jax.__version__}, {jaxlib_version}",
        "devices": f"{first.device_kind} ({platform})",
        "mesh": joined(f"{name}={size}" for name, size in program.mesh.shape.items()),
        # Meshes with the same axes can order the devices differently.
        "order of devices": joined(d.id for d in devices),
        "arguments": joined(request.array.name for request in requests),
    }
    for request in requests:
        spec = request.spec if request.spec is not None else "unknown"
        array = request.array
        fields[f"argument {array.name}"] = f"{array.short} as {spec}"
    fields["options"] = joined(f"{name}={value!r}" for name, value in options.items())
    fields["lowered program"] = job.report.key
    for request, leaf in zip(requests, job.leaves or (), strict=False):
        fields.update(_values(f"values of {request.array.name}", leaf))
    return Account(jax.process_index(), fields, calling_line())


def _values(name: str, leaf: object) -> dict[str, str]:
    """Digests a value that must be the same in every process that holds it."""
    if not is_global(leaf):
        return {name: _digest(leaf)}
    fields = {name: "spread over processes"}
    if partial_axes(leaf):
        return fields  # jax returns no shards of an unreduced array

    # Only a shard that several processes hold can be compared.
    holders: dict[str, set[int]] = {}
    for device, index in leaf.sharding.devices_indices_map(leaf.shape).items():
        holders.setdefault(_bounds(index, leaf.shape), set()).add(device.process_index)
    for shard in leaf.addressable_shards:
        bounds = _bounds(shard.index, leaf.shape)
        shard_name = f"{name}[{bounds}]"
        if len(holders[bounds]) > 1 and shard_name not in fields:
            fields[shard_name] = _digest(shard.data)
    return fields


def _bounds(index: Sequence[slice], shape: Sequence[int]) -> str:
    bounds = []
    for dim_slice, size in zip(index, shape, strict=False):
        start, stop, _ = dim_slice.indices(size)
        bounds.append(f"{start}:{stop}")
    return ", ".join(bounds)


def _digest(value: object) -> str:
    if _is_keys(value):
        value = jax.random.key_data(value)
    host = np.ascontiguousarray(np.asarray(value))
    data = host.reshape(-1).view(np.uint8)
    title = f"{dtype_name(host.dtype)}{host.shape}"
    # Send a digest: the key-value store is not meant for large data.
    digest = hashlib.blake2b(title.encode(), digest_size=6)
    # With an odd step, the samples cover every byte position of an element.
    step = data.size // _MOST_DIGESTED | 1
    digest.update(np.ascontiguousarray(data[::step]).data)
    return digest.hexdigest()


def _is_keys(value: object) -> TypeGuard[jax.Array]:
    """Returns whether a value is an array of PRNG keys."""
    is_array = isinstance(value, jax.Array)
    return is_array and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)
