"""plan_program(): a Program -> its Plan. No device of its mesh is needed, and none is made.

Nothing that a program does wrong is raised from here: it is the `error` of the Plan.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from shardviz.core.errors import ProgramError, ShardvizError, plural, shown
from shardviz.core.layout.request import Request
from shardviz.core.program.compiling.context_meshes import refuse_other_meshes
from shardviz.core.program.compiling.tracing import Traced, placed_spec, trace
from shardviz.core.program.devices.attached import ROOM, ask_for_cpus, chosen_cpus
from shardviz.core.program.effects.rules import refusal_on, single_device_effects
from shardviz.core.program.program import Program
from shardviz.core.program.propagation import pipeline
from shardviz.core.program.propagation.draft import whole
from shardviz.core.program.propagation.estimate.collectives import read_estimate
from shardviz.core.program.propagation.explicit.diagnosis import diagnose
from shardviz.core.program.propagation.explicit.value_types import note_types
from shardviz.core.program.propagation.lowering import Planned, abstract_mesh, lower_to_plan
from shardviz.core.program.propagation.plan import Plan
from shardviz.core.program.propagation.planned import Origin, PlannedOp
from shardviz.core.program.propagation.reading import Reader, argument_names
from shardviz.core.program.propagation.texts import Texts
from shardviz.core.program.propagation.uneven import note_uneven
from shardviz.core.program.report import Failure
from shardviz.core.program.running.failures import failure, in_words


def plan_program(program: Program) -> Plan:
    """The plan of a program: every value's sharding, where it came from, and an estimate.

    Its cost does not depend on the number of devices.

    Raises:
        ProgramError: for what is no Program at all.

    >>> import jax.numpy as jnp
    >>> from shardviz.core.layout.array import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.spec import Spec
    >>> x = ArraySpec("x", (8, 4), spec=Spec.parse("data"))
    >>> plan = plan_program(Program(jnp.sin, (x,), make_mesh(data=4)))
    >>> plan.op("sin").spec, str(plan.op("sin").origins["data"])
    (P('data', None), 'data from argument x')
    """
    if not isinstance(program, Program):
        raise ProgramError(
            f"What is planned is a program, made by sv.program(fn, ...); got {shown(program)}."
        )
    walk = _Walk(program)
    try:
        walk.follow()
    except (Exception, SystemExit) as error:  # noqa: BLE001  a user's function may raise anything
        walk.fail(error)
    return walk.plan


class _Walk:
    """One plan on its way."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.plan = Plan(program.name, program.mesh, notes=program.notes)
        self.stage = "program"
        self.mesh = abstract_mesh(program.mesh)
        # Lowering starts jax's backend, and a program with callbacks runs in this kernel later on.
        if chosen_cpus() < 0:
            ask_for_cpus(min(program.mesh.size, ROOM))

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
        texts = Texts()
        with copy.context:
            names = self._arguments(traced, copy)
            ops = Reader(copy, names, results, asked, mesh, texts).read()
        ops = note_uneven(self._with_unused(ops), mesh)
        if "Explicit" in mesh.axis_types:
            ops = note_types(ops, traced.stage.jaxpr)
        collectives = read_estimate(pipeline.planned_on(copy), ops, mesh, texts)
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
    array, spec = request.array, request.spec or whole(request.array.shape)
    return PlannedOp(
        array.name,
        "argument",
        shape=tuple(array.shape),
        dtype=array.dtype,
        spec=spec,
        origins={a: Origin(a, "argument", array.name) for a in spec.axes},
        note="The program does not use it.",
    )
