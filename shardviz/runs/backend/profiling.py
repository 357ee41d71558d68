"""profiled(): takes a profile of a program's calls, and joins it with the program."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from shardviz.compiled.measured import Measured, NotMeasured, measured
from shardviz.compiled.profile import device_events
from shardviz.programs.backend.devices import Device
from shardviz.runs.backend.compile import Executable, final_module

#: The number of calls in a profile.
CALLS = 3
#: Without this option, a GPU runs its operations as a graph, which hides their times.
ONE_BY_ONE = {"xla_gpu_enable_command_buffer": ""}


def profiled(
    executable: Executable, devices: Mapping[Device, int], call: Callable[[], object]
) -> Measured | NotMeasured:
    """Profiles calls of a program, and returns the time of each of its operations.

    A profile that the user has started goes on; nothing is then measured.

    Args:
        executable: the program.
        devices: the devices that it runs on -> their ids in the program's mesh.
        call: runs the program once, and waits for its results.
    """
    # Python's own calls, and the threads' bookkeeping, would slow the calls down.
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level, options.host_tracer_level = 0, 1
    with tempfile.TemporaryDirectory(prefix="shardviz-profile-") as folder:
        try:
            jax.profiler.start_trace(folder, profiler_options=options)
        except RuntimeError:
            return NotMeasured("other profile")
        try:
            for _ in range(CALLS):
                call()
        finally:
            jax.profiler.stop_trace()
        profiles = [path.read_bytes() for path in Path(folder).rglob("*.xplane.pb")]
    if not profiles:
        return NotMeasured("no events")
    runtime: Any = executable.stage.runtime_executable()
    ids: dict[int, int] = {}
    for device, number in devices.items():
        if device.process_index == jax.process_index():
            # Profiles number the devices of a process from 0.
            ids[getattr(device, "local_hardware_id", device.id)] = number
    return measured(
        device_events(profiles[0], runtime.hlo_modules()[0].name),
        final_module(executable.stage),
        executable.collectives,
        ids,
        CALLS,
    )
