"""The unsharded function: the same program on one device, to hold the sharded results against."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from shardviz.core.backend.compile import Executable, Lowered, compile_lowered, lower
from shardviz.core.backend.devices import (
    bytes_in_words,
    capacity_of,
    mesh_of,
    needed_bytes,
    refusal,
)
from shardviz.core.backend.failures import in_words
from shardviz.core.backend.inputs import Inputs
from shardviz.core.backend.numeric_checks import moved_results, step_of, values_check
from shardviz.core.format import listed
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
    given: Inputs,
    results: Sequence[jax.Array],
) -> tuple[Check, ...]:
    """One Check an output, or one that says why there is nothing to compare with.

    Args:
        program: what ran.
        lowered, executable: what was made of it.
        devices: where it ran.
        given: the values it was given, or made-up ones.
        results: what came out.
    """
    if not results:
        return ()
    if reason := _reason_against(program, lowered, devices):
        return (Check(_TITLE, None, reason),)
    alone = unsharded(program)
    try:
        return _compared(alone, lowered, executable, devices, given, results)
    except Exception as error:  # noqa: BLE001  a function may be made for many devices alone
        return (Check(_TITLE, None, f"It does not run on one device. {in_words(error)}"),)


def unsharded(program: Program) -> Program:
    """The program on a mesh of the same axes, all of size 1: whatever is split stays whole.

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


def _reason_against(program: Program, lowered: Lowered, devices: Sequence[Any]) -> str | None:
    if program.mesh.size == 1:
        return "The mesh has one device: what ran is the unsharded function."
    if lowered.effects:
        return (
            f"Not compared: the program has effects ({listed(lowered.effects)}), and a second run"
            " would repeat them."
        )
    whole = sum(a.bytes for a in program.arrays) + sum(
        o.dtype.itemsize * _size(o.shape) for o in lowered.traced.outputs
    )
    return _too_big(Memory(arguments=whole), devices)


def _compared(
    alone: Program,
    lowered: Lowered,
    executable: Executable,
    devices: Sequence[Any],
    given: Inputs,
    results: Sequence[jax.Array],
) -> tuple[Check, ...]:
    mesh = mesh_of(devices[:1], alone.mesh)

    def make() -> Executable:
        return compile_lowered(lower(alone, mesh), alone.mesh)

    # Kept with the executable: the same text is the same function.
    single = executable.reference(make) if lowered.cacheable else make()
    if reason := _too_big(single.memory, devices):
        return (Check(_TITLE, None, reason),)
    inputs = given.whole(mesh)
    expected = jax.block_until_ready(single.stage(*inputs))
    dtypes = [i.dtype for i in inputs if not jax.numpy.issubdtype(i.dtype, jax.dtypes.prng_key)]
    platform = devices[0].platform
    moved = functools.cache(
        lambda: moved_results(single.stage, inputs, step_of(lowered.text, platform))
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


def _undecided(check: Check) -> Check:
    """Inside `shard_map` a function sees its place in the mesh, and may rightly differ on one."""
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
        f"Not compared: on one device it needs {bytes_in_words(needed_bytes(memory))}, and"
        f" {bytes_in_words(capacity.free or 0)} are free."
    )


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
