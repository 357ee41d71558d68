"""Plans a program: traces, lowers, propagates shardings, and estimates collectives."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from shardviz.base.backend.jax_compat import is_untested
from shardviz.base.collective import Collective
from shardviz.base.display import StageClock
from shardviz.base.errors import ProgramError
from shardviz.base.format import shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.plans.backend import pipeline
from shardviz.plans.backend.attributes import AttributeCache
from shardviz.plans.backend.builder import not_split
from shardviz.plans.backend.estimate import read_estimate
from shardviz.plans.backend.estimate_limits import with_uncertain
from shardviz.plans.backend.lowering import (
    LoweredProgram,
    choose_passes,
    lower_to_plan,
)
from shardviz.plans.backend.reader import PlanReader, argument_names
from shardviz.plans.backend.shardy_passes import missing_estimate_passes
from shardviz.plans.backend.uneven import note_uneven
from shardviz.plans.plan import AFTER_LOWERING, Plan
from shardviz.plans.plan_notes import (
    EstimateFailed,
    NoEstimate,
    NotCovered,
    PlanNote,
    SizeOneAxes,
    UncertainValues,
    UnknownConstraints,
    UntriedPasses,
    Unused,
)
from shardviz.plans.plan_values import Origin, PlannedOp
from shardviz.programs.backend.bridge import abstract_mesh
from shardviz.programs.backend.constraint_calls import (
    ConstraintCalls,
    recorded_calls,
)
from shardviz.programs.backend.effect_rules import refusal_on
from shardviz.programs.backend.failures import failure, in_words
from shardviz.programs.backend.jaxprs import (
    forbidden_notes,
    has_partial_sums,
    meshes_in,
    notes_on,
)
from shardviz.programs.backend.named_meshes import (
    mesh_sizes,
    naming_operation,
)
from shardviz.programs.backend.operand_specs import operand_notes
from shardviz.programs.backend.refused import trace_failure
from shardviz.programs.backend.retraced import specs_of_types, with_partial_sums
from shardviz.programs.backend.trace import (
    Traced,
    donated_leaves,
    placed_spec,
    trace,
)
from shardviz.programs.failure import Failure
from shardviz.programs.notes import KernelNotMapped
from shardviz.programs.program import Program


def plan_program(
    program: Program,
    platform: str = "",
    clock: Callable[[Program, str], StageClock] | None = None,
    records_calls: bool = True,
) -> Plan:
    """Plans a program; the time does not depend on the number of devices.

    Traces and lowers the program in the user's context. The shardings are propagated
    when the plan's shardings or its error are first read.

    Args:
        program: the program to plan.
        platform: the platform to lower for, as `targets.lowering_platform` returns it;
            `""` if no target was chosen.
        clock: returns the clock to show during a stage; None to show none.
        records_calls: whether to record the program's constraint calls.

    Raises:
        ProgramError: if `program` is not a Program.

    >>> import jax.numpy as jnp
    >>> from shardviz.base.array_spec import ArraySpec
    >>> from shardviz.base.mesh import make_mesh
    >>> from shardviz.base.partition_spec import Spec
    >>> x = ArraySpec("x", (8, 4), spec=Spec.parse("data"))
    >>> plan = plan_program(Program(jnp.sin, (x,), make_mesh(data=4)))
    >>> plan.op("sin").spec, str(plan.op("sin").origins["data"])
    (P('data', None), 'data from argument x')
    """
    if not isinstance(program, Program):
        raise ProgramError(
            "sv.plan takes a program, made by sv.program(fn, ...); got"
            f" {shown(program)}."
        )
    run = _PlanRun(program, platform, records_calls)
    try:
        lowered = run.lowered()
    except Exception as error:  # noqa: BLE001  a user's function may raise anything
        run.fail(error)
        return run.plan
    plan = run.plan

    def complete() -> Mapping[str, object]:
        with nullcontext() if clock is None else clock(program, "propagate"):
            return run.after_lowering(plan, lowered)

    return Plan.completed_when_read(plan, complete)


class _PlanRun:
    """Runs the stages of planning one program, and records the current stage."""

    def __init__(self, program: Program, platform: str, records_calls: bool) -> None:
        self.program, self.platform = program, platform
        self.records_calls = records_calls
        self.plan = Plan(program.name, program.mesh, notes=program.notes, of=program)
        self.stage = "program"
        self.mesh = abstract_mesh(program.mesh)
        self.calls = ConstraintCalls()

    def lowered(self) -> LoweredProgram:
        """Traces and lowers the program.

        Raises:
            Exception: any error of a stage; `self.stage` names the failed stage.
        """
        self.stage = "propagate"
        pipeline.check_available()
        self.stage = "program"
        if self.program.problems:
            raise ProgramError(self.program.problems[0])
        self.stage = "trace"
        traced = self._trace()
        jaxpr = traced.stage.jaxpr
        self._note(*traced.notes, *notes_on(jaxpr), *operand_notes(traced))
        self.stage = "propagate"
        refuse_other_meshes(jaxpr, self.program.mesh)
        self.plan = replace(self.plan, trace_s=traced.seconds)
        refusal = refusal_on(jaxpr.effects, self.program.mesh.size)
        if refusal:
            self.stage = "program"
            raise ProgramError(refusal)
        self.stage = "lower"
        lowered = lower_to_plan(self.program, with_partial_sums(traced), self.platform)
        self.plan = replace(self.plan, lower_s=lowered.seconds)
        self._note(*lowered.notes)
        return lowered

    def after_lowering(self, plan: Plan, lowered: LoweredProgram) -> dict[str, object]:
        """Propagates the shardings, and returns the fields in AFTER_LOWERING.

        Args:
            plan: the plan of the traced and lowered program.
            lowered: the lowered program.
        """
        # Set again, because an interrupt may have ended an earlier call.
        self.stage, self.plan = "propagate", plan
        begun = time.perf_counter()
        try:
            self._propagate(lowered)
        except Exception as error:  # noqa: BLE001  a pass may raise anything
            self.fail(error)
        else:
            self.plan = replace(self.plan, propagate_s=time.perf_counter() - begun)
        return {name: vars(self.plan)[name] for name in AFTER_LOWERING}

    def _note(self, *notes: object) -> None:
        self.plan = replace(self.plan, notes=(*self.plan.notes, *notes))

    def _trace(self) -> Traced:
        """Traces the program, and keeps its constraint calls even if tracing fails."""
        if not self.records_calls:
            return trace(self.program, self.mesh)
        with recorded_calls() as self.calls:
            try:
                return trace(self.program, self.mesh)
            finally:
                self.plan = replace(self.plan, constraints=tuple(self.calls.found))
                if self.calls.unknown:
                    self._note(UnknownConstraints(self.calls.unknown))

    def _propagate(self, lowered: LoweredProgram) -> None:
        traced, mesh = lowered.traced, self.program.mesh
        jaxpr = traced.stage.jaxpr
        selection = choose_passes(lowered.module, has_partial_sums(jaxpr))
        if selection.untried or selection.left_out:
            self._note(UntriedPasses(selection.untried, selection.left_out))
        copy = pipeline.propagate(lowered.module, selection)
        results = [output.name for output in traced.outputs]
        attributes = AttributeCache()
        with copy.context:
            names = self._arguments(traced, argument_names(copy, attributes))
            reader = PlanReader(copy, lowered.module, names, results, mesh, attributes)
            ops = reader.read()
        ops = note_uneven(self._with_unused(ops), mesh)
        ops, collectives, notes = estimated(copy, reader, ops)
        self._note(*notes)
        ops = _with_axes_of_size_one(ops, self._written(traced, reader), mesh)
        self.plan = replace(self.plan, ops=ops, collectives=collectives)
        self._note(*notes_on_values(ops, mesh), *forbidden_notes(jaxpr, collectives))

    def _written(self, traced: Traced, reader: PlanReader) -> dict[str, Spec]:
        """Value name -> spec from jax's types, which include axes of size 1."""
        written = dict(reader.written)
        for request in self.program.requests:
            if request.spec:
                written[request.array.name] = placed_spec(request.spec)
        specs = specs_of_types(traced)
        for output, spec in zip(traced.outputs, specs, strict=True):
            if spec is not None:
                written[output.name] = spec
        return written

    def _arguments(self, traced: Traced, lowered: Sequence[str]) -> list[str]:
        """The names of the lowered arguments, without unused ones, which jax drops.

        Args:
            traced: the traced program.
            lowered: jax's names of the lowered arguments.
        """
        names = traced.stage.jaxpr.jaxpr.debug_info.arg_names
        names_of_arrays = {}
        for name, array in zip(names, self.program.arrays, strict=False):
            names_of_arrays[name] = array.name
        return [names_of_arrays.get(name, name) for name in lowered]

    def _with_unused(self, ops: Sequence[PlannedOp]) -> tuple[PlannedOp, ...]:
        """The values, with all arguments in the program's order, even unused ones."""
        used, operations = {}, []
        for op in ops:
            if op.kind == "argument":
                used[op.name] = op
            else:
                operations.append(op)
        donated = set(donated_leaves(self.program))
        arguments = []
        for position, request in enumerate(self.program.requests):
            array = request.array
            op = used.pop(array.name, None)
            if op is None:
                spec = request.spec or not_split(array.shape)
                op = PlannedOp(
                    array.name,
                    "argument",
                    shape=tuple(array.shape),
                    dtype=array.dtype,
                    spec=spec,
                    origins={a: Origin(a, "argument", array.name) for a in spec.axes},
                    notes=(Unused(),),
                )
            memory = array.memory_kind or ""
            if memory or position in donated:
                op = op.changed(memory_kind=memory, donated=position in donated)
            arguments.append(op)
        return (*arguments, *used.values(), *operations)

    def fail(self, error: BaseException) -> None:
        """Sets the error of the plan."""
        if self.stage == "trace":
            failed = trace_failure(self.program, error)
            call = self.calls.raised
            # On a different line, the call's error was probably caught by the program.
            if call is not None and failed.source in ("", call.source):
                said = failure(self.stage, error).message
                words = f"{call.where}: {call.sentence} {said}"
                failed = Failure(
                    self.stage, words, call.source, refusals=failed.refusals
                )
        else:
            failed = failure(self.stage, error)
        kernels = [n for n in self.plan.notes if isinstance(n, KernelNotMapped)]
        if self.stage == "lower" and kernels and "shard_map" in str(error):
            words = " ".join([failed.message, *map(str, kernels)])
            failed = Failure(self.stage, words, failed.source or kernels[0].line)
        self.plan = replace(self.plan, error=failed)


def _with_axes_of_size_one(
    ops: Sequence[PlannedOp], written: Mapping[str, Spec], mesh: MeshSpec
) -> tuple[PlannedOp, ...]:
    """Adds to specs the Explicit axes of size 1 that jax's types include."""
    size_one = set()
    for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True):
        if mesh.shape[axis] == 1 and kind == "Explicit":
            size_one.add(axis)
    typed = []
    for op in ops:
        spec = written.get(op.name) if size_one else None
        if spec is not None and not size_one.isdisjoint(spec.axes):
            dims = []
            for axes in spec.dims:
                dims.append(tuple(axis for axis in axes if mesh.shape[axis] > 1))
            # If the specs differ, the partitioner did not follow the type.
            if replace(spec, dims=tuple(dims)).equivalent(op.spec):
                op = op.changed(spec=spec)
        typed.append(op)
    return tuple(typed)


def estimated(
    propagated: Any, reader: PlanReader, ops: Sequence[PlannedOp]
) -> tuple[tuple[PlannedOp, ...], tuple[Collective, ...], tuple[PlanNote, ...]]:
    """Returns the values (marked if uncertain), Shardy's collectives, and notes.

    There are no collectives, but a note, if this jaxlib lacks the passes, or if reading
    the collectives fails with an untested jax.
    """
    collectives: tuple[Collective, ...] = ()
    notes: tuple[PlanNote, ...] = ()
    missing = missing_estimate_passes()
    if missing:
        notes = (NoEstimate(missing),)
    else:
        try:
            collectives = read_estimate(propagated, reader, ops)
        except Exception as error:
            if not is_untested():
                raise
            notes = (EstimateFailed(in_words(error)),)
    return with_uncertain(ops, collectives, reader.mesh), collectives, notes


def notes_on_values(ops: Sequence[PlannedOp], mesh: MeshSpec) -> list[PlanNote]:
    """Notes on axes of size 1, on values not covered, and on uncertain estimates."""
    axes_in_specs = set().union(*(op.spec.axes for op in ops))
    size_one = []
    for axis, size in mesh.shape.items():
        if size == 1 and axis not in axes_in_specs:
            size_one.append(axis)
    not_covered = tuple(op.name for op in ops if not op.covered)
    uncertain = tuple(op.name for op in ops if op.uncertain)
    notes: list[PlanNote] = []
    if size_one:
        notes.append(SizeOneAxes(tuple(size_one)))
    if not_covered:
        notes.append(NotCovered(not_covered))
    if uncertain:
        notes.append(UncertainValues(uncertain))
    return notes


def refuse_other_meshes(jaxpr: Any, mesh: MeshSpec) -> None:
    """Refuses a program that also uses a mesh whose axes differ from `mesh`'s.

    Shardy does not propagate shardings between meshes.

    Raises:
        ProgramError: if the program uses such a mesh.
    """
    mesh_axes = list(mesh.shape.items())
    for other_mesh, equation in meshes_in(jaxpr):
        if (
            list(zip(other_mesh.axis_names, other_mesh.axis_sizes, strict=True))
            != mesh_axes
        ):
            raise ProgramError(
                "Plans do not cover programs over two meshes:"
                f" {naming_operation(equation)} is over {mesh_sizes(other_mesh)}, and the"
                f" program's mesh is {mesh}. sv.compile shows what XLA makes of both."
            )
