"""Plans a program: trace and lower it without devices, propagate its shardings, estimate its cost.

Two kinds of programs need more to be lowered. Callbacks into Python need device objects, so fake
ones are made; a Pallas kernel cannot be lowered for CPUs, so the program is lowered for TPUs.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardviz.core.backend.bridge import abstract_mesh, stablehlo_module
from shardviz.core.backend.constraint_calls import ConstraintCalls, recorded_calls
from shardviz.core.backend.failures import failure, in_words, raised_by_signal
from shardviz.core.backend.jaxprs import (
    device_meshes_in,
    has_partial_sums,
    meshes_in,
    random_note,
    refusal_on,
    single_device_effects,
)
from shardviz.core.backend.shardy import pipeline
from shardviz.core.backend.shardy.attributes import AttributeCache
from shardviz.core.backend.shardy.builder import not_split
from shardviz.core.backend.shardy.estimate import read_estimate
from shardviz.core.backend.shardy.estimate_limits import with_uncertain_moves
from shardviz.core.backend.shardy.explicit_axes import diagnose, note_types
from shardviz.core.backend.shardy.one_mesh import axis_parts, merged_parts
from shardviz.core.backend.shardy.reader import PlanReader, argument_names
from shardviz.core.backend.targets import mesh_to_lower_on
from shardviz.core.backend.tracing import (
    Traced,
    donated_leaves,
    naming_operation,
    placed_spec,
    trace,
    two_meshes,
    with_partial_sums,
)
from shardviz.core.backend.worker.process import Settings, WorkerError, workers
from shardviz.core.errors import ProgramError, ShardvizError
from shardviz.core.format import joined, plural, shown
from shardviz.core.layout.layout import Misfit
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.resolution import Request, collector_paused
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_values import Origin, PlannedOp
from shardviz.core.program.program import Program
from shardviz.core.program.report import Failure

_WANTS_DEVICES = "require devices to be present"
_WANTS_ONE_MESH = "mesh should be the same across the entire program"
_MANUAL = "newly_manual_axes"  # a parameter of shard_map
_WANTS_TPU = "Only interpret mode is supported on CPU"


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
    run = _PlanRun(program)
    try:
        run.run()
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        if raised_by_signal(error):
            raise
        run.fail(error)
    return run.plan


class _PlanRun:
    """The stages of planning one program, and how far they came."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.plan = Plan(program.name, program.mesh, notes=program.notes)
        self.stage = "program"
        self.mesh = abstract_mesh(program.mesh)
        self.calls = ConstraintCalls()
        self.several = False  # meshes in the program

    def run(self) -> None:
        """Traces, lowers and propagates.

        Raises:
            Exception: whatever a stage raises; `self.stage` says which.
        """
        if words := pipeline.available():
            self.stage = "propagate"
            raise ProgramError(words)
        if self.program.problems:
            raise ProgramError(self.program.problems[0])
        self.stage = "trace"
        traced = self._trace()
        others = other_meshes(traced.stage.jaxpr, self.program.mesh)
        self.several = bool(others)
        random = random_note(traced.stage.jaxpr)
        notes = (*self.plan.notes, *traced.notes, *others, *random)
        self.plan = replace(self.plan, trace_s=traced.seconds, notes=notes)
        if words := self._refusal(traced):
            self.stage = "program"
            raise ProgramError(words)
        self.stage = "lower"
        lowered = lower_to_plan(self.program, with_partial_sums(traced))
        self.plan = replace(self.plan, lower_s=lowered.seconds)
        self.stage = "propagate"
        begun = time.perf_counter()
        with collector_paused():
            self._propagate(lowered)
        self.plan = replace(self.plan, propagate_s=time.perf_counter() - begun)

    def _trace(self) -> Traced:
        """The traced program; the plan has its constraint calls, also where it cannot be traced."""
        with recorded_calls() as self.calls:
            try:
                return trace(self.program, self.mesh)
            finally:
                words = self.calls.unknown
                notes = [f"Which constraints are called is unknown. {words}"] if words else []
                self.plan = replace(
                    self.plan,
                    constraints=tuple(self.calls.found),
                    notes=(*self.plan.notes, *notes),
                )

    def _refusal(self, traced: Traced) -> str:
        single = single_device_effects(traced.stage.jaxpr.effects)
        return refusal_on(single, self.program.mesh.size) or ""

    def _propagate(self, lowered: LoweredProgram) -> None:
        traced, mesh = lowered.traced, self.program.mesh
        own = list(mesh.shape.items()) if self.several else ()
        if has_partial_sums(traced.stage.jaxpr):
            try_in_worker(lowered.module, own)
        copy = pipeline.propagate(lowered.module, own)
        requested = {r.array.name: placed_spec(r.spec) for r in self.program.requests if r.spec}
        results = [o.name for o in traced.outputs]
        attributes = AttributeCache()
        with copy.context:
            names = self._arguments(traced, argument_names(copy, attributes))
            ops = PlanReader(copy, names, results, requested, mesh, attributes).read()
        ops = note_uneven(self._with_unused(ops), mesh)
        if "Explicit" in mesh.axis_types:
            ops = note_types(ops, traced.stage.jaxpr)
        collectives = read_estimate(pipeline.planned_module_on(copy), ops, mesh, attributes)
        ops = with_uncertain_moves(ops, collectives, mesh)
        notes = self._notes(ops, lowered.note)
        self.plan = replace(self.plan, ops=ops, collectives=tuple(collectives), notes=notes)

    def _arguments(self, traced: Traced, lowered: Sequence[str]) -> list[str]:
        """The names of the lowered arguments. jax leaves out arguments that are not used.

        Args:
            traced: the program.
            lowered: what jax calls the arguments.
        """
        names = traced.stage.jaxpr.jaxpr.debug_info.arg_names
        known = dict(zip(names, (a.name for a in self.program.arrays), strict=False))
        return [known.get(n, n) for n in lowered]

    def _with_unused(self, ops: Sequence[PlannedOp]) -> tuple[PlannedOp, ...]:
        """The values; the arguments as they are given, with those that nothing reads."""
        used = {op.name: op for op in ops if op.kind == "argument"}
        donated = set(donated_leaves(self.program))
        arguments = []
        for position, request in enumerate(self.program.requests):
            op = used.pop(request.array.name, None) or _unused(request)
            memory = request.array.memory_kind or ""
            if memory or position in donated:
                op = replace(op, memory_kind=memory, donated=position in donated)
            arguments.append(op)
        return (*arguments, *used.values(), *(op for op in ops if op.kind != "argument"))

    def _notes(self, ops: Sequence[PlannedOp], note: str) -> tuple[str, ...]:
        mesh, notes = self.program.mesh, [*self.plan.notes, *filter(None, [note])]
        single = [a for a, n in zip(mesh.axis_names, mesh.axis_sizes, strict=True) if n == 1]
        if single:
            many = len(single) > 1
            size, splits = ("have size 1", "they split") if many else ("has size 1", "it splits")
            notes.append(
                f"{joined(single)} {size}: {splits} nothing and no sharding names "
                f"{'them' if many else 'it'}."
            )
        if without := [op for op in ops if not op.covered]:
            notes.append(
                f"{plural(len(without), 'value')} not covered: {without[0].name}, for one."
            )
        if other := [op for op in ops if op.uncertain]:
            named = joined([op.name for op in other], "and", 3)
            notes.append(
                f"The estimate is uncertain at {plural(len(other), 'value')}: {named}."
                f" plan.why({shown(other[0].name)}) says why; a compile says what XLA's"
                " partitioner does."
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
        call = self.calls.raised if self.stage == "trace" else None
        if call is not None and found.source in ("", call.source):  # else it was caught
            words = f"{call.where}: {call.sentence} {found.message}"
            found = Failure(self.stage, words, call.source)
        if diagnosis is not None:
            words = f"{diagnosis.problem} {found.message}"
            found = Failure(self.stage, words, diagnosis.source or found.source)
        self.plan = replace(self.plan, error=found, diagnosis=diagnosis)


def other_meshes(jaxpr: Any, mesh: MeshSpec) -> list[str]:
    """Notes on the meshes with other axes that a program names, and how their axes are written.

    They may hold the same devices in another shape.

    Raises:
        ProgramError: where the axes of one cannot be written as those of the program's mesh.
    """
    own, notes = list(mesh.shape.items()), []
    for named, equation in meshes_in(jaxpr):
        axes = list(zip(named.axis_names, named.axis_sizes, strict=True))
        if axes == own:
            continue
        parts = axis_parts(axes, own)
        whole = equation.params.get(_MANUAL, ()) if parts is not None else ()
        manual = merged_parts([a for a in named.axis_names if a in whole], parts or {})
        start = f"{naming_operation(equation)} is over a mesh of its own"
        if parts is None or any(size != mesh.shape[name] for name, _, size in manual):
            raise ProgramError(
                f"{two_meshes(start, named, mesh)} The axes of one are not products or parts of"
                " those of the other: give both the same mesh, or use sv.compile, which shows what"
                " XLA makes of two."
            )
        words = []
        for axis, into in parts.items():
            names = [n if s == mesh.shape[n] else f"{n}:({b}){s}" for n, b, s in into]
            words += [f"{axis} is {' × '.join(names)}"] if names else []
        sizes = ", ".join(f"{name}={size}" for name, size in axes)
        notes.append(f"{start}, {sizes}, of the same devices: {joined(words)} here.")
    return list(dict.fromkeys(notes))


def try_in_worker(module: Any, axes: Sequence[tuple[str, int]]) -> None:
    """Runs the passes of a plan in the worker first: Shardy aborts at some partial sums.

    Args:
        module, axes: as for `pipeline.propagate`.

    Raises:
        ShardvizError: where they ended the worker, as they would have ended this process.
    """
    file = io.BytesIO()
    module.operation.write_bytecode(file)
    try:
        workers.call(Settings.of("cpu", 1, 1), pipeline.run_all, file.getvalue(), tuple(axes))
    except WorkerError as error:
        if not error.crashed:
            raise
        raise ProgramError(
            "Shardy ends the process that propagates the shardings of this program, so it was"
            f" tried in the worker and has no plan. {error}"
        ) from error


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


@dataclass(frozen=True, eq=False)
class LoweredProgram:
    """A program lowered for a plan.

    Attributes:
        traced: what it was lowered from.
        module: the StableHLO module.
        seconds: how long it took to lower.
        note: a note on how it was lowered, or `""`.
    """

    traced: Traced
    module: Any
    seconds: float
    note: str = ""


def lower_to_plan(program: Program, traced: Traced) -> LoweredProgram:
    """Lowers a traced program for a plan, without any device of its mesh.

    Args:
        program: the program.
        traced: what tracing on `abstract_mesh` made of it.

    Raises:
        ProgramError: for callbacks on a mesh too large for fake devices.
        Exception: whatever jax raises.
    """
    begun = time.perf_counter()
    try:
        return LoweredProgram(traced, _module(traced, "cpu"), time.perf_counter() - begun)
    except (ValueError, NotImplementedError) as error:
        if _WANTS_TPU in str(error):
            note = "It is lowered for TPUs: a Pallas kernel has no form for CPUs."
            return LoweredProgram(traced, _module(traced, "tpu"), time.perf_counter() - begun, note)
        if _WANTS_DEVICES not in str(error) and _WANTS_ONE_MESH not in str(error):
            raise
    # What calls Python is lowered for devices. The function may name them itself, in a mesh that
    # jax takes only beside an equal one.
    own = [mesh for mesh, _ in device_meshes_in(traced.stage.jaxpr)]
    equal = [m for m in own if tuple(m.shape.items()) == tuple(program.mesh.shape.items())]
    traced = trace(program, equal[0] if equal else mesh_to_lower_on(program.mesh))
    return LoweredProgram(traced, _module(traced, "cpu"), time.perf_counter() - begun)


def _module(traced: Traced, platform: str) -> Any:
    with traced.context():
        return stablehlo_module(traced.stage.lower(lowering_platforms=(platform,)))


def note_uneven(ops: Sequence[PlannedOp], mesh: MeshSpec) -> tuple[PlannedOp, ...]:
    """The same values, with a note on each that is not divisible by its mesh axes.

    >>> from shardviz.core.layout.partition_spec import Spec
    >>> split = PlannedOp("y", "op", shape=(10,), spec=Spec.parse("data"))
    >>> result = PlannedOp("output", "result", shape=(10,), operands=("y",))
    >>> noted = note_uneven((split, result), MeshSpec(("data",), (4,)))
    >>> print(noted[1].note)
    y is split over data along dimension 0, but not as a result of the program: ...
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
    """The note on a result that lost an axis because its dimension does not divide."""
    for dim, axes in enumerate(made.spec.dims[: len(made.shape)]):
        kept = result.spec.dims[dim] if dim < result.spec.rank else ()
        misfit = _misfit(made, dim, mesh) if kept != axes else None
        if misfit is not None:
            return (
                f"{made.name} is split over {' × '.join(axes)} along dimension {dim}, but not as a"
                f" result of the program: results must divide evenly, and {misfit.sentence()}"
            )
    return ""


def _padded(op: PlannedOp, mesh: MeshSpec) -> str:
    """The note on a value whose last shards are smaller or empty."""
    for dim, axes in enumerate(op.spec.dims[: len(op.shape)]):
        misfit = _misfit(op, dim, mesh) if axes else None
        if misfit is not None:
            size = -(-misfit.size // misfit.parts)
            full, rest = divmod(misfit.size, size)
            empty = misfit.parts - full - bool(rest)
            shards = [f"{plural(full, 'shard')} of {size:,}"]
            shards += [f"one of {rest:,}"] if rest else []
            shards += [f"{plural(empty, 'shard')} of padding alone"] if empty else []
            return (
                f"Dimension {dim} is uneven over {' × '.join(misfit.axes)}:"
                f" {', then '.join(shards)}; the compiler pads. {misfit.sentence()}"
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
