"""A program lowered for a plan: on axes without devices, whatever it calls.

Two kinds of programs ask for more. Callbacks into Python want device objects to be there, so
stand-ins are; a Pallas kernel has no form for CPUs, so the program is lowered for TPUs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from shardviz.core.errors import ProgramError
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.compiling.tracing import Traced, in_context, trace
from shardviz.core.program.program import Program

MOST_STAND_INS = 1 << 16
_WANTS_DEVICES = "require devices to be present"
_WANTS_TPU = "Only interpret mode is supported on CPU"


@dataclass(frozen=True, eq=False)
class Planned:
    """A program lowered for a plan.

    Attributes:
        traced: what it was lowered from.
        module: the StableHLO module.
        seconds: how long it took to lower.
        note: what a person should know about how; or `""`.
    """

    traced: Traced
    module: Any
    seconds: float
    note: str = ""


def abstract_mesh(mesh: MeshSpec) -> AbstractMesh:
    """The jax mesh to plan on: axes without devices, also where the mesh names devices.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> abstract_mesh(make_mesh(data=4)).size
    4
    """
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=_types(mesh))


def lower_to_plan(program: Program, traced: Traced) -> Planned:
    """Lowers a traced program for a plan, without any device of its mesh.

    Args:
        program: the program.
        traced: what tracing on `abstract_mesh` made of it.

    Raises:
        ProgramError: for callbacks on a mesh too large for stand-ins.
        Exception: whatever jax raises.
    """
    begun = time.perf_counter()
    try:
        return Planned(traced, _module(traced, "cpu"), time.perf_counter() - begun)
    except (ValueError, NotImplementedError) as error:
        if _WANTS_TPU in str(error):
            note = "It is lowered for TPUs: a Pallas kernel has no form for CPUs."
            return Planned(traced, _module(traced, "tpu"), time.perf_counter() - begun, note)
        if _WANTS_DEVICES not in str(error):
            raise
    traced = trace(program, _stand_in_mesh(program.mesh))
    return Planned(traced, _module(traced, "cpu"), time.perf_counter() - begun)


def _module(traced: Traced, platform: str) -> Any:
    with in_context(traced.mesh):
        return traced.stage.lower(lowering_platforms=(platform,)).compiler_ir("stablehlo")


def _stand_in_mesh(mesh: MeshSpec) -> Mesh:
    """A jax mesh of devices that only have names: enough to lower, never to run."""
    if mesh.size > MOST_STAND_INS:
        raise ProgramError(
            f"The program calls Python on the host, which jax lowers only where every device is"
            f" named; the mesh has {mesh.size:,}. Plan it on at most {MOST_STAND_INS:,} devices, or"
            " without the callback."
        )
    client = jax.devices("cpu")[0].client
    devices = np.empty(mesh.size, object)
    devices[:] = [_StandIn(i, client) for i in range(mesh.size)]
    return Mesh(devices.reshape(mesh.axis_sizes), mesh.axis_names, axis_types=_types(mesh))


class _StandIn:
    """What jax asks of a device while it lowers."""

    process_index = 0
    platform = device_kind = "cpu"

    def __init__(self, number: int, client: Any) -> None:
        self.id, self.client = number, client

    def __repr__(self) -> str:
        return f"StandIn({self.id})"


def _types(mesh: MeshSpec) -> tuple[AxisType, ...]:
    return tuple(AxisType[t] for t in mesh.axis_types)
