"""What a process tells the others before it runs a program with them.

Every process of one `jax.distributed` makes the same call of `sv.run`. Here each says
what it is about to do; `rendezvous.py` compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxlib.version import __version__ as jaxlib_version

from shardviz.base.array_spec import dtype_name
from shardviz.base.backend.jax_compat import key_value_store
from shardviz.base.format import joined
from shardviz.compiled.checks import NoStore, OwnShards
from shardviz.programs.backend.devices import processes_of
from shardviz.programs.backend.failures import calling_line
from shardviz.runs.agreement import Account
from shardviz.runs.backend.inputs import copies_allowed, is_global, partial_axes
from shardviz.runs.backend.rendezvous import Rendezvous
from shardviz.runs.backend.runner import Job

_MOST_DIGESTED = 64 << 20  # bytes; of a larger array only every n-th byte counts


def join(job: Job, mesh: Mesh) -> None:
    """Meets the other processes that devices of a mesh belong to, where there are any."""
    every = processes_of(list(mesh.devices.flat))
    if len(every) < 2:
        return
    store, process = key_value_store(), jax.process_index()
    if store is None:
        job.add_notes([NoStore()])
        return
    job.add_notes([OwnShards(process, len(every))])
    call = "sv.compile" if job.repeat is None else "sv.run"
    job.rendezvous = Rendezvous(store, process, every, f"{call}({job.program.name!r})")


@copies_allowed()
def account_of(job: Job, devices: Sequence[Any], call: str) -> Account:
    """What this process is about to do, for the others to compare with."""
    program, first = job.program, devices[0]
    requests = program.requests
    # A run that is repeated otherwise executes its collectives another number of times.
    options = {**program.options, "repeat": job.repeat}
    platform = " ".join(first.client.platform_version.split())
    fields = {
        "call": call,
        "jax versions": f"{jax.__version__}, {jaxlib_version}",
        "devices": f"{first.device_kind} ({platform})",
        "mesh": joined(f"{name}={size}" for name, size in program.mesh.shape.items()),
        # The same devices in another order are another mesh, with the same axes.
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


def _values(name: str, leaf: Any) -> dict[str, str]:
    """What must be the same of a value in each process that has it."""
    if not is_global(leaf):
        return {name: _digest(leaf)}
    fields = {name: "spread over processes"}
    if partial_axes(leaf):
        return fields  # jax does not say which shards it has
    # A shard that no other process holds cannot differ from anything.
    holders: dict[str, set[int]] = {}
    for device, index in leaf.sharding.devices_indices_map(leaf.shape).items():
        holders.setdefault(_bounds(index, leaf.shape), set()).add(device.process_index)
    for shard in leaf.addressable_shards:
        bounds = _bounds(shard.index, leaf.shape)
        shard_name = f"{name}[{bounds}]"
        if len(holders[bounds]) > 1 and shard_name not in fields:
            fields[shard_name] = _digest(shard.data)
    return fields


def _bounds(index: Any, shape: Sequence[int]) -> str:
    bounds = []
    for part, size in zip(index, shape, strict=False):
        start, stop, _ = part.indices(size)
        bounds.append(f"{start}:{stop}")
    return ", ".join(bounds)


def _digest(value: Any) -> str:
    is_array = isinstance(value, jax.Array)
    if is_array and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    host = np.ascontiguousarray(np.asarray(value))
    data = host.reshape(-1).view(np.uint8)
    title = f"{dtype_name(host.dtype)}{host.shape}"
    # So that the store need not carry arrays.
    digest = hashlib.blake2b(title.encode(), digest_size=6)
    # An odd step, so that every byte of an element has its turn.
    step = data.size // _MOST_DIGESTED | 1
    digest.update(np.ascontiguousarray(data[::step]).data)
    return digest.hexdigest()
