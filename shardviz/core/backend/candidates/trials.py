"""Trials: changed programs, partitioned, compiled and compared with the original."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.candidates.apply import apply_edit
from shardviz.core.backend.devices import MOST_SIMULATED, mesh_of
from shardviz.core.backend.failures import said_by
from shardviz.core.backend.run.hosts.run import compile_program, run_program
from shardviz.core.backend.run.inputs import Inputs
from shardviz.core.backend.run.rounding import moved_results, step_of, values_check
from shardviz.core.backend.tracing.edited import as_jaxpr
from shardviz.core.backend.tracing.jaxprs import positive_arguments
from shardviz.core.backend.tracing.trace import Traced, trace
from shardviz.core.errors import ProgramError
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.candidates import Candidate, Edit, Refusal
from shardviz.core.program.checks import Check, found
from shardviz.core.program.program import Program, Target
from shardviz.core.program.report import Collective, Report

# Nothing of a quick compile is run, so XLA need not make it fast.
_QUICK = {"xla_backend_optimization_level": 0}
# Edits of what is inside of the function.
_INSIDE = ("constraint", "remat", "shard_map", "option")
_MOST_COMPARED = 256 << 20  # bytes of arguments and results, in all
_MOST_SECONDS = 15.0  # for one run that is compared
_TOO_SLOW = "too slow here"
_MOST_DEVICES = 64  # that are simulated for it


@dataclass(frozen=True, eq=False)
class Tried:
    """What XLA's partitioner made of a program.

    Attributes:
        collectives: the collectives straight after it; None where it failed.
        error: why it failed, in words; `""` where it did not.
        flops: what each device computes, with the body of a loop counted once.
    """

    collectives: tuple[Collective, ...] | None
    error: str = ""
    flops: float = 0.0


class Trials:
    """Tries changed programs, for one target, next to the original.

    The function is traced once. What was compiled is kept by its fingerprint.

    Args:
        program: the original.
        target: what it is compiled for, as for `sv.compile`.
        clock: called with the name of every stage as it begins.
        cancelled: called between stages, and while a worker works; True ends it.

    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> x = ArraySpec("x", (8,), spec=Spec.parse("data"))
    >>> trials = Trials(Program(jax.numpy.sum, (x,), make_mesh(data=2)))
    >>> [one.kind for one in trials.partitioned(trials.program).collectives]
    ['all-reduce']
    """

    def __init__(
        self,
        program: Program,
        target: Target | str | None = None,
        clock: Callable[[str], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.program, self.target = program, target
        self.clock = clock or (lambda _: None)
        self.cancelled = cancelled
        self.cache = ExecutableCache(size=512)
        #: Whether the partitioner of the target is asked, and not that of CPUs.
        self.on_target = False

    @cached_property
    def traced(self) -> Traced:
        """The original, traced on its mesh without devices."""
        return trace(self.program, abstract_mesh(self.program.mesh))

    @cached_property
    def as_jaxpr(self) -> Program:
        """The original with what was traced as its function."""
        return as_jaxpr(self.program, self.traced)

    @cached_property
    def before(self) -> Report:
        """The compile of the original."""
        return self.compiled(self.program)

    def apply(self, edits: Sequence[Edit]) -> Program:
        """The program after some edits, without tracing the function again.

        Raises:
            Exception: where one does not fit.
        """
        inside = any(one.code in _INSIDE for one in edits)
        # With a smaller batch the function is traced anew.
        inside = inside and edits[0].code != "microbatches"
        program = self.as_jaxpr if inside else self.program
        for one in edits:
            program = apply_edit(program, one)
        return program

    def made(self, edits: Sequence[Edit]) -> Program | Refusal:
        """The program after some edits; or what was raised where they do not fit."""
        try:
            return self.apply(edits)
        # Some edits call the user's function, which may raise anything; what it said is
        # shown with the edit.
        except Exception as error:  # noqa: BLE001
            return Refusal(tuple(edits), "not made", said_by(error))

    def require_original(self) -> None:
        """Compiles the original, with which all is compared.

        Raises:
            ProgramError: where it does not compile.
        """
        if self.before.error is not None:
            raise ProgramError(
                "The program does not compile, so no change of it can be compared with"
                f" it. {self.before.error}"
            )

    def quick(self, program: Program) -> Program:
        """A program of the original function, with what was traced in its place."""
        same = program.fn is self.program.fn and program.mesh == self.program.mesh
        # On Explicit axes an operation has the sharding of its operands in it.
        if not same or set(program.mesh.axis_types) != {"Auto"}:
            return program
        frozen = self.as_jaxpr
        if program.out_specs is self.program.out_specs:
            program = program.replace(out_specs=frozen.out_specs)
        return program.replace(fn=frozen.fn)

    def partitioned(self, program: Program) -> Tried:
        """What the partitioner makes of a program: a quick compile for simulated CPUs.

        What the final program sends may differ from it.
        """
        self.clock("partition")
        size = program.mesh.size
        target: Any = f"cpu:{size}"
        options = {**_QUICK}
        if size > MOST_SIMULATED or self.on_target:
            target, options = self.target, dict(program.options)
        elif "donate" in program.options:
            options["donate"] = program.options["donate"]
        report = compile_program(
            self.quick(program).replace(options=options),
            target,
            cache=self.cache,
            cancelled=self.cancelled,
        )
        if report.error is not None:
            return Tried(None, str(report.error))
        found = report.partitioned
        flops = report.cost.get("flops", 0.0)
        return Tried(report.collectives if found is None else found, flops=flops)

    def compiled(self, program: Program) -> Report:
        """The compile of a program for the target."""
        self.clock("compile")
        return compile_program(
            program, self.target, cache=self.cache, cancelled=self.cancelled
        )

    def candidate(
        self, edits: Sequence[Edit], program: Program | None = None
    ) -> Candidate | Refusal:
        """Some edits as a candidate, compiled and compared; or why it is none.

        Args:
            edits: what is changed.
            program: the program after the edits; None to make it here.
        """
        edits = tuple(edits)
        made = program or self.made(edits)
        if isinstance(made, Refusal):
            return made
        program, report = made, self.compiled(made)
        if report.error is not None:
            return Refusal(edits, "does not compile", str(report.error))
        if report.fit is not None and report.fit.ok is False:
            return Refusal(edits, "no memory", str(report.fit))
        values = self.values(program)
        if any(one.code == "option" for one in edits):
            # They are as random, and the same on every mesh.
            values = Check("values", None, found("other random numbers"))
        if values.ok is False:
            return Refusal(edits, "values differ", values.detail)
        return Candidate(edits, program, report, self.before, values)

    def values(self, program: Program) -> Check:
        """The results of a program next to those of the original, on simulated devices.

        Both run on the same made-up arguments.

        Returns:
            A Check whose `ok` is None where the program has effects, is too large, or
            does not run there.
        """
        why = self._why_not_run(program)
        if why is not None:
            return Check("values", None, found("not run", said=why))
        expected, error = self._original
        if error == _TOO_SLOW:
            return Check("values", None, found("not run", said=error))
        if error:
            return Check("values", None, found("original failed", said=error))
        results, error = self._run(program)
        if error == _TOO_SLOW:
            return Check("values", None, found("not run", said=error))
        if error:
            # It compiled for the target, which may do what simulated devices do not.
            return Check("values", None, found("candidate failed", said=error))
        return self._compared(results, expected)

    def _why_not_run(self, program: Program) -> str | None:
        if self.traced.effects:
            return "effects"
        size = sum(array.bytes for array in program.arrays)
        for output in self.traced.outputs:
            count = 1
            for dim in output.shape:
                count *= dim
            size += count * output.dtype.itemsize
        if size > _MOST_COMPARED or program.mesh.size > _MOST_DEVICES:
            return "too large"
        return None

    @cached_property
    def _original(self) -> tuple[list[Any], str]:
        return self._run(self.program)

    def _run(self, program: Program, values: Sequence[Any] = ()) -> tuple[list, str]:
        """The leaves of the results; or why there are none."""
        self.clock("run")
        end = time.monotonic() + _MOST_SECONDS

        def ended() -> bool:
            return time.monotonic() > end or (self.cancelled or (lambda: False))()

        options = {k: v for k, v in program.options.items() if k == "donate"}
        report = run_program(
            self.quick(program).replace(options=options),
            *values,
            target=f"cpu:{program.mesh.size}",
            cache=self.cache,
            cancelled=ended,
        )
        if time.monotonic() > end:
            return [], _TOO_SLOW
        if report.error is not None:
            return [], str(report.error)
        return jax.tree.leaves(report.outputs), ""

    def _compared(self, results: list[Any], expected: list[Any]) -> Check:
        """All results in one Check: the worst of them."""
        program, dtypes = self.program, []
        for array in program.arrays:
            if not array.dtype.startswith("key<"):
                dtypes.append(array.dtype)
        worst: Check | None = None
        names = [output.name for output in self.traced.outputs]
        if len(results) != len(expected):
            return Check("values", False, found("other results"))
        names += ["result"] * (len(expected) - len(names))
        for number, (mine, other) in enumerate(zip(results, expected, strict=True)):

            def moved(number: int = number) -> list[Any]:
                return [outputs[number] for outputs in self._moved]

            check = values_check(names[number], mine, other, dtypes, "cpu", moved)
            if check.ok is False:
                about = names[number]
                return Check("values", False, found("value differs", name=about))
            if check.ok is None:
                worst = check
        if worst is not None:
            return Check("values", None, found("undecided", name=worst.about))
        return Check("values", True, found("as the original", count=len(expected)))

    @cached_property
    def _moved(self) -> list[list[Any]]:
        """Two results of the original, for arguments moved by one rounding step."""
        program = self.program
        mesh = MeshSpec(program.mesh.axis_names, (1,) * len(program.mesh.axis_names))
        single = program.replace(
            mesh=mesh,
            arrays=tuple(array.replace(spec=Spec()) for array in program.arrays),
            out_specs=None,
            options={},
        )
        jaxpr = self.traced.stage.jaxpr
        placed = Inputs(
            single, mesh_of(jax.devices()[:1], mesh), None, positive_arguments(jaxpr)
        ).place_all()

        def run(*leaves: Any) -> list[Any]:
            values = leaves
            if program.tree is not None:
                values = program.tree.unflatten(leaves)
            return self._run(program, values)[0]

        return moved_results(run, placed, step_of(str(jaxpr), "cpu"))
