"""Lowers a traced program for a plan, without the devices of its mesh.

Two kinds of programs are special. Python callbacks need device objects, so they get
fake ones. Pallas kernels cannot be lowered for CPUs, so they are lowered for TPUs.
"""

from __future__ import annotations

import io
import time
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from shardviz.base.backend.jax_compat import stablehlo_module
from shardviz.base.errors import ProgramError
from shardviz.plans.backend import pipeline
from shardviz.plans.backend.shardy_passes import PassSelection, settling_passes
from shardviz.plans.plan_notes import (
    LoweredForTpus,
    NotLowered,
    PlanNote,
    PlatformDependent,
)
from shardviz.programs.backend.devices import mesh_to_lower_on
from shardviz.programs.backend.failures import in_words
from shardviz.programs.backend.jaxprs import (
    depends_on_platform,
    device_meshes_in,
)
from shardviz.programs.backend.trace import Traced, trace
from shardviz.programs.backend.worker.process import WorkerError, workers
from shardviz.programs.backend.worker.settings import Settings
from shardviz.programs.program import Program

# Messages of jax 0.10 to 0.12 for programs that need device objects or TPUs.
_WANTS_DEVICES = "require devices to be present"
_WANTS_ONE_MESH = "mesh should be the same across the entire program"
_WANTS_TPU = "Only interpret mode is supported on CPU"


@dataclass(frozen=True, eq=False)
class LoweredProgram:
    """A program lowered for a plan.

    Attributes:
        traced: the traced program.
        module: the StableHLO module.
        platform: the platform that the program was lowered for.
        seconds: the duration of lowering.
        notes: notes on the choice of the platform.
    """

    traced: Traced
    module: ir.Module
    seconds: float
    platform: str = "cpu"
    notes: tuple[PlanNote, ...] = ()


def lower_to_plan(
    program: Program, traced: Traced, platform: str = ""
) -> LoweredProgram:
    """Lowers a traced program for a plan.

    Args:
        program: the program.
        traced: the program, traced on `abstract_mesh`.
        platform: the platform to lower for: `"cpu"`, `"tpu"` or `"cuda"`. `""` means
            CPUs, with a note if the module differs on other platforms.

    Raises:
        ProgramError: for callbacks on a mesh too large for fake devices.
        Exception: any error of jax.
    """
    begun = time.perf_counter()
    notes: list[PlanNote] = []
    names = depends_on_platform(traced.stage.jaxpr)
    # Other programs lower alike on all platforms, and jax may have cached the result.
    chosen = platform if names and platform else "cpu"
    try:
        traced, module = _lowered(program, traced, chosen)
    except Exception as error:
        if chosen == "cpu" and _WANTS_TPU in str(error):
            chosen = "tpu"
            notes.append(LoweredForTpus())
        elif chosen != "cpu":
            chosen = "cpu"
            notes.append(NotLowered(platform, in_words(error)))
        else:
            raise
        traced, module = _lowered(program, traced, chosen)
    if names and not platform and chosen == "cpu" and _differs(traced, module):
        notes.append(PlatformDependent(names))
    seconds = time.perf_counter() - begun
    return LoweredProgram(traced, module, seconds, chosen, tuple(notes))


def _lowered(program: Program, traced: Traced, platform: str) -> tuple[Traced, Any]:
    """Lowers a traced program; if jax requires devices, traces it again with them."""
    try:
        return traced, _module(traced, platform)
    except (ValueError, NotImplementedError) as error:
        words = str(error)
        if _WANTS_DEVICES not in words and _WANTS_ONE_MESH not in words:
            raise
        traced = trace(program, _device_mesh(program, traced, platform))
        return traced, _module(traced, platform)


def _differs(traced: Traced, on_cpus: ir.Module) -> bool:
    """True if the module for TPUs or GPUs differs from the module for CPUs."""
    for platform in ("tpu", "cuda"):
        try:
            module = _module(traced, platform)
        except Exception:  # noqa: BLE001  the rules of a platform may raise anything
            return True
        if str(module) != str(on_cpus):
            return True
    return False


def _device_mesh(program: Program, traced: Traced, platform: str) -> Any:
    """A mesh of devices for lowering a program with Python callbacks.

    If the program itself contains a mesh of devices, returns that mesh, because jax
    requires equal meshes.
    """
    shape = tuple(program.mesh.shape.items())
    for mesh, _ in device_meshes_in(traced.stage.jaxpr):
        if tuple(mesh.shape.items()) == shape:
            return mesh
    return mesh_to_lower_on(program.mesh, platform)


def _module(traced: Traced, platform: str) -> Any:
    with traced.context():
        return stablehlo_module(traced.stage.lower(lowering_platforms=(platform,)))


def choose_passes(module: ir.Module, has_partial_sums: bool) -> PassSelection:
    """Chooses propagation passes that do not crash this process.

    Passes that may crash run in a worker process first: Shardy aborts for some partial
    sums (on jaxlib 0.10.0 and 0.12), and so may passes that `PASSES` lacks. If a plan
    with such passes fails in the worker, all passes that `PASSES` lacks are left out.

    Args:
        module: the lowered module, as in `pipeline.propagate`.
        has_partial_sums: whether the program has arrays of partial sums.

    Raises:
        ShardvizError: if the passes crash the worker.
    """
    selection = settling_passes()
    if selection.untried:
        try:
            _try_in_worker(module, with_untried=True)
        except Exception:  # noqa: BLE001  a pass may raise anything, or end the worker
            selection = selection.without_untried()
        else:
            return selection
    if has_partial_sums:
        _try_in_worker(module, with_untried=False)
    return selection


def _try_in_worker(module: ir.Module, with_untried: bool) -> None:
    file = io.BytesIO()
    module.operation.write_bytecode(file)
    bytecode, settings = file.getvalue(), Settings.of("cpu", 1, 1)
    try:
        workers.call(settings, pipeline.run_all, bytecode, with_untried)
    except WorkerError as error:
        if not error.crashed:
            raise
        raise ProgramError(
            "Shardy ends the process that propagates the shardings of this program, so it"
            f" was tried in the worker and has no plan. {error}"
        ) from error
