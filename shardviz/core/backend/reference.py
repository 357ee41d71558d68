"""The unsharded function: the same program on one device, compared with the sharded results."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from shardviz.core.backend.checks import moved_results, step_of, values_check
from shardviz.core.backend.compile import Executable, Lowered, compile_lowered
from shardviz.core.backend.devices import capacity_of, mesh_of, refusal, run_bytes
from shardviz.core.backend.failures import in_words
from shardviz.core.backend.inputs import Inputs
from shardviz.core.format import bytes_text, listed
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.program import Program
from shardviz.core.program.report import Check, Memory

_TITLE = "unsharded function"


def checks(
    program: Program,
    lowered: Lowered,
    executable: Executable,
    devices: Sequence[Any],
    inputs: Inputs,
    lower: Callable[[Program, Mesh], Lowered],
    results: Sequence[jax.Array],
) -> tuple[Check, ...]:
    """One Check per output, or one that says why there is nothing to compare with.

    Args:
        program: what ran.
        lowered, executable: the program as it was lowered and compiled.
        devices: where it ran.
        inputs: the values it ran with.
        lower: lowers the unsharded function for one device.
        results: its outputs.
    """
    if not results:
        return ()
    if reason := _why_not_comparable(program, lowered, devices) or _elsewhere(inputs):
        return (Check(_TITLE, None, reason),)
    single = unsharded(program)
    try:
        return _compared(
            lambda mesh: compile_lowered(lower(single, mesh), single.mesh),
            single,
            lowered,
            executable,
            devices,
            inputs,
            results,
        )
    except Exception as error:  # noqa: BLE001  a function may be made for many devices only
        return (Check(_TITLE, None, f"It does not run on one device. {in_words(error)}"),)


def unsharded(program: Program) -> Program:
    """The program on a mesh of the same axes, all of size 1: nothing is split.

    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> program = Program(abs, (ArraySpec("x", (8,)),), make_mesh(data=4, model=2))
    >>> unsharded(program).mesh.shape
    {'data': 1, 'model': 1}
    """
    mesh = program.mesh
    ones = MeshSpec(mesh.axis_names, (1,) * len(mesh.axis_sizes), mesh.axis_types)
    options = {k: v for k, v in program.options.items() if k != "donate"}
    arrays = tuple(a.replace(spec=Spec()) for a in program.arrays)
    return program.replace(mesh=ones, arrays=arrays, out_specs=None, options=options)


def _why_not_comparable(program: Program, lowered: Lowered, devices: Sequence[Any]) -> str | None:
    if program.mesh.size == 1:
        return "The mesh has one device: what ran is the unsharded function."
    if lowered.effects:
        return (
            f"Not compared: the program has effects ({listed(lowered.effects)}), and a second run"
            " would repeat them."
        )
    size = sum(a.bytes for a in program.arrays) + sum(
        o.dtype.itemsize * math.prod(o.shape) for o in lowered.traced.outputs
    )
    return _too_big(Memory(arguments=size), devices)


def _elsewhere(inputs: Inputs) -> str | None:
    leaves = [v for v in inputs.leaves or () if isinstance(v, jax.Array)]
    if all(leaf.is_fully_addressable for leaf in leaves):
        return None
    return (
        "Not compared: the values are spread over several processes, and no process has all of"
        " them. Without values, sv.run makes some up that each process has."
    )


def _compared(
    compile_on: Callable[[Mesh], Executable],
    program: Program,
    lowered: Lowered,
    executable: Executable,
    devices: Sequence[Any],
    inputs: Inputs,
    results: Sequence[jax.Array],
) -> tuple[Check, ...]:
    mesh = mesh_of(_first_here(devices), program.mesh)
    make = functools.partial(compile_on, mesh)
    # Kept with the executable: the same text is the same function.
    single = executable.reference(make) if lowered.cacheable else make()
    if reason := _too_big(single.memory, devices):
        return (Check(_TITLE, None, reason),)
    arguments = inputs.place_unsharded(mesh)
    expected = jax.block_until_ready(single.stage(*arguments))
    dtypes = [i.dtype for i in arguments if not jax.numpy.issubdtype(i.dtype, jax.dtypes.prng_key)]
    platform = devices[0].platform
    moved = functools.cache(
        lambda: moved_results(single.stage, arguments, step_of(lowered.text, platform))
    )
    found = tuple(
        values_check(
            output.name,
            results[i],
            expected[i],
            dtypes,
            platform,
            lambda i=i: [r[i] for r in moved()],
        )
        for i, output in enumerate(lowered.traced.outputs)
    )
    return tuple(map(_undecided, found)) if lowered.manual else found


def _first_here(devices: Sequence[Any]) -> list[Any]:
    """The first of the devices that belongs to this process; each process compares by itself."""
    here = [d for d in devices if d.process_index == jax.process_index()]
    return (here or list(devices))[:1]


def _undecided(check: Check) -> Check:
    """Inside `shard_map` a function sees its device coordinates, and may differ on one device."""
    if check.ok is not False:
        return check
    detail = (
        f"{check.detail} The program has shard_map regions, whose results may depend on the number"
        " of devices, so this decides nothing."
    )
    return Check(check.name, None, detail)


def _too_big(memory: Memory, devices: Sequence[Any]) -> str | None:
    capacity = capacity_of(devices[:1])
    if refusal(memory, capacity, 1) is None:
        return None
    return (
        f"Not compared: on one device it needs {bytes_text(run_bytes(memory))}, and"
        f" {bytes_text(capacity.free or 0)} are free."
    )
