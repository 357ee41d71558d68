"""A program lowered for a plan: on axes without devices, whatever it calls.

Two kinds of programs ask for more. Callbacks into Python want device objects to be there, so
stand-ins are; a Pallas kernel has no form for CPUs, so the program is lowered for TPUs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.devices import LEAST_SIMULATED, ask_for_cpus, chosen_cpus
from shardviz.core.backend.failures import failure, in_words
from shardviz.core.backend.jax_effects import refusal_on, single_device_effects
from shardviz.core.backend.program_meshes import in_context, refuse_other_meshes
from shardviz.core.backend.shardy import pipeline
from shardviz.core.backend.shardy.builder import not_split
from shardviz.core.backend.shardy.estimate import read_estimate
from shardviz.core.backend.shardy.explicit_axes import diagnose, note_types
from shardviz.core.backend.shardy.mlir_text import AttributeCache
from shardviz.core.backend.shardy.reader import PlanReader, argument_names
from shardviz.core.backend.tracing import Traced, placed_spec, trace
from shardviz.core.errors import ProgramError, ShardvizError
from shardviz.core.format import plural, shown
from shardviz.core.layout.divisibility import Misfit
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.request import Request
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_values import Origin, PlannedOp
from shardviz.core.program.program import Program
from shardviz.core.program.report import Failure

MOST_FAKE_DEVICES = 1 << 16
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
    traced = trace(program, _fake_mesh(program.mesh))
    return Planned(traced, _module(traced, "cpu"), time.perf_counter() - begun)


def _module(traced: Traced, platform: str) -> Any:
    with in_context(traced.mesh):
        return traced.stage.lower(lowering_platforms=(platform,)).compiler_ir("stablehlo")


def _fake_mesh(mesh: MeshSpec) -> Mesh:
    """A jax mesh of devices that only have names: enough to lower, never to run."""
    if mesh.size > MOST_FAKE_DEVICES:
        raise ProgramError(
            f"The program calls Python on the host, which jax lowers only where every device is"
            f" named; the mesh has {mesh.size:,}. Plan it on at most {MOST_FAKE_DEVICES:,} devices,"
            " or without the callback."
        )
    client = jax.devices("cpu")[0].client
    devices = np.empty(mesh.size, object)
    devices[:] = [_FakeDevice(i, client) for i in range(mesh.size)]
    return Mesh(devices.reshape(mesh.axis_sizes), mesh.axis_names, axis_types=_types(mesh))


class _FakeDevice:
    """What jax asks of a device while it lowers."""

    process_index = 0
    platform = device_kind = "cpu"

    def __init__(self, number: int, client: Any) -> None:
        self.id, self.client = number, client

    def __repr__(self) -> str:
        return f"StandIn({self.id})"


def _types(mesh: MeshSpec) -> tuple[AxisType, ...]:
    return tuple(AxisType[t] for t in mesh.axis_types)


def note_uneven(ops: Sequence[PlannedOp], mesh: MeshSpec) -> tuple[PlannedOp, ...]:
    """The same values, with a note on each that does not divide.

    >>> from shardviz.core.layout.partition_spec import Spec
    >>> split = PlannedOp("y", "op", shape=(10,), spec=Spec.parse("data"))
    >>> result = PlannedOp("output", "result", shape=(10,), operands=("y",))
    >>> noted = note_uneven((split, result), MeshSpec(("data",), (4,)))
    >>> print(noted[1].note)
    y is split over data along dimension 0, and as a result it is whole on every device: ...
    """
    by_name = {op.name: op for op in ops}
    return tuple(_noted(op, by_name, mesh) for op in ops)


def _noted(op: PlannedOp, by_name: dict[str, PlannedOp], mesh: MeshSpec) -> PlannedOp:
    if op.kind == "result" and op.operands and op.operands[0] in by_name:
        words = _lost(op, by_name[op.operands[0]], mesh)
    else:
        words = _padded(op, mesh)
    return replace(op, note=" ".join(filter(None, (op.note, words)))) if words else op


def _lost(result: PlannedOp, made: PlannedOp, mesh: MeshSpec) -> str:
    """What is said of a result that lost an axis because it did not divide."""
    for dim, axes in enumerate(made.spec.dims[: len(made.shape)]):
        kept = result.spec.dims[dim] if dim < result.spec.rank else ()
        misfit = _misfit(made, dim, mesh) if kept != axes else None
        if misfit is not None:
            return (
                f"{made.name} is split over {' × '.join(axes)} along dimension {dim}, and as a"
                " result it is whole on every device: results must divide evenly, and"
                f" {misfit.sentence()}"
            )
    return ""


def _padded(op: PlannedOp, mesh: MeshSpec) -> str:
    for dim, axes in enumerate(op.spec.dims[: len(op.shape)]):
        misfit = _misfit(op, dim, mesh) if axes else None
        if misfit is not None:
            block = -(-misfit.size // misfit.parts)
            full, rest = divmod(misfit.size, block)
            empty = misfit.parts - full - bool(rest)
            told = [f"{plural(full, 'block')} of {block:,}"]
            told += [f"one of {rest:,}"] if rest else []
            told += [f"{plural(empty, 'block')} of padding alone"] if empty else []
            return (
                f"Dimension {dim} is uneven over {' × '.join(misfit.axes)}:"
                f" {', then '.join(told)}; the compiler pads. {misfit.sentence()}"
            )
    return ""


def _misfit(op: PlannedOp, dim: int, mesh: MeshSpec) -> Misfit | None:
    axes = op.spec.dims[dim]
    # Parts of an axis, `data:(1)2`, are the compiler's own choice, and it chose what fits.
    sizes = mesh.shape
    if not axes or any(a not in sizes for a in axes):
        return None
    if op.shape[dim] % math.prod(sizes[a] for a in axes) == 0:
        return None
    used = {a for other in op.spec.dims for a in other}
    free = tuple(a for a in mesh.axis_names if a not in used)
    return Misfit.find(op.shape[dim], axes, mesh, free)


def plan_program(program: Program) -> Plan:
    """The plan of a program: every value's sharding, where it came from, and an estimate.

    Its cost does not depend on the number of devices.

    Raises:
        ProgramError: for what is no Program at all.

    >>> import jax.numpy as jnp
    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> x = ArraySpec("x", (8, 4), spec=Spec.parse("data"))
    >>> plan = plan_program(Program(jnp.sin, (x,), make_mesh(data=4)))
    >>> plan.op("sin").spec, str(plan.op("sin").origins["data"])
    (P('data', None), 'data from argument x')
    """
    if not isinstance(program, Program):
        raise ProgramError(
            f"What is planned is a program, made by sv.program(fn, ...); got {shown(program)}."
        )
    walk = _PlanBuild(program)
    try:
        walk.follow()
    except (Exception, SystemExit) as error:  # noqa: BLE001  a user's function may raise anything
        walk.fail(error)
    return walk.plan


class _PlanBuild:
    """One plan on its way."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.plan = Plan(program.name, program.mesh, notes=program.notes)
        self.stage = "program"
        self.mesh = abstract_mesh(program.mesh)
        # Lowering starts jax's backend, and a program with callbacks runs in this kernel later on.
        if chosen_cpus() < 0:
            ask_for_cpus(min(program.mesh.size, LEAST_SIMULATED))

    def follow(self) -> None:
        """From the program to its plan."""
        if words := pipeline.available():
            self.stage = "propagate"
            raise ProgramError(words)
        if self.program.problems:
            raise ProgramError(self.program.problems[0])
        self.stage = "trace"
        traced = trace(self.program, self.mesh)
        refuse_other_meshes(traced.stage.jaxpr, self.program.mesh)
        self.plan = self.plan.replace(trace_s=traced.seconds)
        if words := self._refusal(traced):
            self.stage = "program"
            raise ProgramError(words)
        self.stage = "lower"
        lowered = lower_to_plan(self.program, traced)
        self.plan = self.plan.replace(lower_s=lowered.seconds)
        self.stage = "propagate"
        begun = time.perf_counter()
        self._propagate(lowered)
        self.plan = self.plan.replace(propagate_s=time.perf_counter() - begun)

    def _refusal(self, traced: Traced) -> str:
        single = single_device_effects(traced.stage.jaxpr.effects)
        return refusal_on(single, self.program.mesh.size) or ""

    def _propagate(self, lowered: Planned) -> None:
        traced, mesh = lowered.traced, self.program.mesh
        copy = pipeline.propagate(lowered.module, per_call=True)
        asked = {r.array.name: placed_spec(r.spec) for r in self.program.requests if r.spec}
        results = [o.name for o in traced.outputs]
        texts = AttributeCache()
        with copy.context:
            names = self._arguments(traced, copy)
            ops = PlanReader(copy, names, results, asked, mesh, texts).read()
        ops = note_uneven(self._with_unused(ops), mesh)
        if "Explicit" in mesh.axis_types:
            ops = note_types(ops, traced.stage.jaxpr)
        collectives = read_estimate(pipeline.planned_module_on(copy), ops, mesh, texts)
        notes = self._notes(ops, lowered.note)
        self.plan = self.plan.replace(ops=ops, collectives=tuple(collectives), notes=notes)

    def _arguments(self, traced: Traced, module: Any) -> list[str]:
        """The names of the lowered arguments. jax leaves out arguments that are not used."""
        names = traced.stage.jaxpr.jaxpr.debug_info.arg_names
        known = dict(zip(names, (a.name for a in self.program.arrays), strict=False))
        return [known.get(n, n) for n in argument_names(module)]

    def _with_unused(self, ops: Sequence[PlannedOp]) -> tuple[PlannedOp, ...]:
        """The values, with those arguments that jax left out since nothing reads them."""
        used = {op.name: op for op in ops if op.kind == "argument"}
        arguments = [used.pop(r.array.name, None) or _unused(r) for r in self.program.requests]
        return (*arguments, *used.values(), *(op for op in ops if op.kind != "argument"))

    def _notes(self, ops: Sequence[PlannedOp], note: str) -> tuple[str, ...]:
        mesh, notes = self.program.mesh, [*self.program.notes, *filter(None, [note])]
        single = [a for a, n in zip(mesh.axis_names, mesh.axis_sizes, strict=True) if n == 1]
        if single:
            verb = "has size 1 and splits" if len(single) == 1 else "have size 1 and split"
            notes.append(f"{' and '.join(single)} {verb} nothing, so it stands in no sharding.")
        if without := [op for op in ops if not op.covered]:
            notes.append(
                f"{plural(len(without), 'value')} not covered: {without[0].name}, for one."
            )
        return tuple(notes)

    def fail(self, error: BaseException) -> None:
        """Ends the plan with an error."""
        found = failure(self.stage, error)
        if self.stage == "propagate" and not isinstance(error, ShardvizError):
            found = Failure(self.stage, f"Shardy could not propagate. {in_words(error)}")
        diagnosis = None
        if self.stage == "trace":
            diagnosis = diagnose(error, self.program, self.mesh)
        if diagnosis is not None:
            words = f"{diagnosis.problem} {found.message}"
            found = Failure(self.stage, words, diagnosis.source or found.source)
        self.plan = self.plan.replace(error=found, diagnosis=diagnosis)


def _unused(request: Request) -> PlannedOp:
    array, spec = request.array, request.spec or not_split(request.array.shape)
    return PlannedOp(
        array.name,
        "argument",
        shape=tuple(array.shape),
        dtype=array.dtype,
        spec=spec,
        origins={a: Origin(a, "argument", array.name) for a in spec.axes},
        note="The program does not use it.",
    )
