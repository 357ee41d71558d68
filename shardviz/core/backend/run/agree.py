"""What a process tells the others before it runs a program with them.

Every process of one `jax.distributed` makes the same call of `sv.run`. Here each says
what it is about to do; `rendezvous.py` compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh
from jaxlib.version import __version__ as jaxlib_version

from shardviz.core.backend.devices import processes_of, with_devices
from shardviz.core.backend.failures import calling_line
from shardviz.core.backend.jax_compat import key_value_store
from shardviz.core.backend.run.inputs import value_digests
from shardviz.core.backend.run.rendezvous import Rendezvous
from shardviz.core.backend.run.runner import Job
from shardviz.core.format import joined
from shardviz.core.program.agreement import Account, broken_blocks
from shardviz.core.program.checks import found


def join(job: Job, mesh: Mesh) -> None:
    """Meets the other processes that devices of a mesh belong to, where there are any."""
    devices = list(mesh.devices.flat)
    every = processes_of(devices)
    if len(every) < 2:
        return
    client = key_value_store()
    note = found("own shards", process=jax.process_index(), processes=len(every))
    job.add_notes([note if client is not None else found("no store")])
    if client is not None:
        call = "sv.compile" if job.repeat is None else "sv.run"
        name = f"{call}({job.program.name!r})"
        job.rendezvous = Rendezvous(client, jax.process_index(), every, name)
    on_devices = with_devices(job.program.mesh, devices)
    layouts = {
        name: replace(layout, mesh=on_devices)
        for name, layout in job.report.in_layouts.items()
    }
    if broken := broken_blocks(layouts):
        job.add_notes([broken])


def account_of(job: Job, devices: Sequence[Any]) -> Account:
    """What this process is about to do, for the others to compare with."""
    program, first = job.program, devices[0]
    assert job.rendezvous is not None  # there is nobody to compare with
    options = dict(program.options)
    if job.repeat is not None:
        options["repeat"] = job.repeat
    shown_options = joined(f"{name}={value!r}" for name, value in options.items())
    arrays = {}
    for request in program.requests:
        spec = request.spec if request.spec is not None else "unknown"
        arrays[request.array.name] = f"{request.array.short} as {spec}"
    return Account(
        jax.process_index(),
        job.rendezvous.call,
        f"jax {jax.__version__} with jaxlib {jaxlib_version}",
        f"{first.device_kind} ({' '.join(first.client.platform_version.split())})",
        ", ".join(f"{name}={size}" for name, size in program.mesh.shape.items()),
        tuple(d.id for d in devices),
        arrays,
        f"the options {shown_options}" if shown_options else "no options",
        job.report.key,
        value_digests(program, job.leaves),
        calling_line(),
    )
