"""Trials: edited programs, planned, partitioned, compiled and compared with the original.

Changes, memory and search all try edits here. One trial costs more with each step: a
plan takes milliseconds, a quick compile by the partitioner longer, a compile for the
target most. A `Budget` counts these steps.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import jax

from shardviz.advise.backend.apply import apply_edit
from shardviz.advise.candidates import (
    Candidate,
    DoesNotCompile,
    Misfit,
    NoRoom,
    NotMade,
    Refusal,
    ValuesDiffer,
)
from shardviz.advise.edits import ConstrainArgument, ConstrainValue, Edit, FunctionEdit
from shardviz.base.errors import ProgramError, ShardvizError
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.compiled.checks import (
    ChangeNotRun,
    Check,
    DiffersFromOriginal,
    OriginalAmplifiesRounding,
    SameAsOriginal,
)
from shardviz.compiled.op_costs import op_costs
from shardviz.compiled.report import Report, peak_bytes
from shardviz.compiled.roofline import with_operations
from shardviz.hardware.targets import Target
from shardviz.plans.backend.build_plan import plan_program
from shardviz.plans.plan import Plan
from shardviz.programs import failure
from shardviz.programs.backend.bridge import abstract_mesh
from shardviz.programs.backend.devices import MOST_SIMULATED
from shardviz.programs.backend.failures import said_by
from shardviz.programs.backend.jaxpr_function import as_jaxpr
from shardviz.programs.backend.trace import Traced, trace
from shardviz.programs.program import Program
from shardviz.runs.backend.hosts.run import compile_program, run_program
from shardviz.runs.backend.rounding import Comparison
from shardviz.runs.cache import ExecutableCache, cache

# A quick compile's program is never run, so XLA need not optimise it.
_QUICK = {"xla_backend_optimization_level": 0}
_MOST_COMPARED = 256 << 20  # bytes of arguments and results together
_MOST_DEVICES = 64  # simulated to compare values
_MOST_WORK = 3e10  # operations and bytes of one compared run, on all devices
# Of one run: its loops may run longer than a plan can know.
_MOST_SECONDS = 120.0
_Item = TypeVar("_Item")
# The outcome of a comparison of values, the worst first.
_OUTCOMES = (False, None, True)

PLAN, PARTITION, COMPILE = "plan", "partition", "compile"


class Cancelled(Exception):
    """The trials were cancelled while a program was compiled."""


@dataclass
class Budget:
    """How much work trials may do: how many plans, quick compiles and compiles.

    It counts work and not time, so that a busy machine finds the same changes.

    Attributes:
        limits: the most of each of PLAN, PARTITION and COMPILE; without a limit there
            may be any number.
        used: how many of each were done.

    >>> budget = Budget({COMPILE: 1})
    >>> budget.use(COMPILE)
    >>> budget.left(COMPILE), budget.allows(COMPILE), budget.allows(PLAN)
    (0, False, True)
    """

    limits: dict[str, int] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)

    def use(self, step: str) -> None:
        """Counts one more step."""
        self.used[step] += 1

    def left(self, step: str) -> int | None:
        """How many more such steps there may be; None for any number."""
        if step not in self.limits:
            return None
        return max(0, self.limits[step] - self.used[step])

    def allows(self, step: str) -> bool:
        """Whether there may be one more such step."""
        return self.left(step) != 0


class Trial(NamedTuple):
    """An edited program and its plan.

    Attributes:
        edits: what was changed.
        program: the program after the edits.
        plan: its plan, which may have an error.
    """

    edits: tuple[Edit, ...]
    program: Program
    plan: Plan


class Trials:
    """Tries edits of a program for one target, and compares them with the original.

    The function is traced once for each mesh. Compiles are kept by their fingerprints
    and plans by what they depend on, so that no work is done twice.

    Args:
        program: the original.
        target: what it is compiled for, as for `sv.compile`.
        clock: called with the name of every stage as it begins.
        cancelled: called between stages, and while a worker works; True ends it.
        before: the compile of the original for the target, if there is one already.

    Attributes:
        budget: how much work is allowed; any amount until it is replaced.
        progress: how far a series of trials is, as text for the clock.
        untried: how many changes were left when the budget was used up.
        on_target: whether the target's partitioner is asked, and not that of CPUs.

    >>> from shardviz.base.array_spec import ArraySpec
    >>> from shardviz.base.mesh import make_mesh
    >>> x = ArraySpec("x", (8,), spec=Spec.parse("data"))
    >>> trials = Trials(Program(jax.numpy.sum, (x,), make_mesh(data=2)))
    >>> report = trials.partitioned(trials.program)
    >>> [collective.kind for collective in report.collectives]
    ['all-reduce']
    """

    def __init__(
        self,
        program: Program,
        target: Target | str | None = None,
        clock: Callable[[str], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
        before: Report | None = None,
    ) -> None:
        self.program, self.target, self._before = program, target, before
        self.clock = clock or (lambda _: None)
        self.cancelled = cancelled or (lambda: False)
        self.cache = ExecutableCache(size=512)
        self.budget = Budget()
        self.progress = ""
        self.untried = 0
        self.on_target = program.mesh.size > MOST_SIMULATED
        # The traced program on each mesh, after edits inside the function.
        self._traced: dict[tuple[MeshSpec, tuple[FunctionEdit, ...]], Program] = {}
        # Plans by what they depend on. The programs are kept since keys have their ids.
        self._plans: dict[object, tuple[Program, Plan]] = {}

    # --- the original -----------------------------------------------------------------

    @cached_property
    def traced(self) -> Traced:
        """The original, traced on its mesh without devices."""
        return trace(self.program, abstract_mesh(self.program.mesh))

    @property
    def as_jaxpr(self) -> Program:
        """The original with its jaxpr as the function."""
        return self._traced_on(self.program.mesh)

    @cached_property
    def before(self) -> Report:
        """The compile of the original."""
        report = self._before
        if report is None:
            report = compile_program(
                self.program,
                self.target,
                cache=cache,
                progress=self.enter,
                cancelled=self.cancelled,
            )
        return with_least_time(report, lambda: plan_program(self.program))

    @cached_property
    def work(self) -> float:
        """Operations and bytes of one run on all devices, by the plan's count."""
        total = 0.0
        for cost in op_costs(self.plan_of(self.program)):
            total += ((cost.flops or 0.0) + cost.bytes) * cost.executions
        return total * self.program.mesh.size

    def require_original(self) -> None:
        """Compiles the original, with which every change is compared.

        A program that does not fit its target is compiled except for the last step, so
        its memory is known.

        Raises:
            ProgramError: if it does not compile.
        """
        if self.before.error is not None and self.before.too_large is None:
            raise ProgramError(
                "The program does not compile, so no change of it can be compared with"
                f" it. {self.before.error}"
            )

    # --- one trial, step by step ------------------------------------------------------

    def edited(self, edits: Sequence[Edit]) -> Program | Refusal:
        """The program after some edits, or the error that they raised."""
        try:
            return self._edited(edits)
        # Some edits call the user's function, which may raise anything; the error is
        # shown with the edit.
        except Exception as error:  # noqa: BLE001
            return _not_made(edits, error)

    def plan(self, edits: Sequence[Edit]) -> Trial | Refusal:
        """Edits the program and plans it, which counts as one plan."""
        self.budget.use(PLAN)
        edits, program = tuple(edits), self.edited(edits)
        if isinstance(program, Refusal):
            return program
        try:
            return Trial(edits, program, self.plan_of(program))
        # On another mesh the user's function is traced, which may raise anything.
        except Exception as error:  # noqa: BLE001
            return _not_made(edits, error)

    def partition(self, trial: Trial) -> Report:
        """The partitioner's answer for a trial, which counts as one quick compile."""
        self.budget.use(PARTITION)
        return self.partitioned(trial.program)

    def compile(
        self,
        edits: Sequence[Edit],
        program: Program,
        limit: float | None = None,
        must_fit: bool = True,
    ) -> Candidate | Refusal:
        """Compiles an edited program for the target, which counts as one compile.

        Args:
            edits: what was changed.
            program: the program after the edits.
            limit: the most bytes it may need per device; None for the target's memory.
            must_fit: whether a program that does not fit the target is refused.

        Returns:
            A candidate whose values are not compared yet, or why there is none.

        Raises:
            Cancelled: if it was cancelled meanwhile.
        """
        self.budget.use(COMPILE)
        edits, report = tuple(edits), self.compiled(program)
        if report.error is not None and isinstance(
            report.error.cause, failure.Cancelled
        ):
            raise Cancelled
        needed = peak_bytes(report.memory)
        if report.too_large is not None:
            if must_fit:
                return NoRoom(edits, str(report.too_large), needed)
        # The compiler refuses a program that exceeds the chip, but not one that exceeds
        # the limit.
        elif limit is not None and (needed or 0) > limit:
            return NoRoom(edits, str(report.fit), needed)
        elif report.error is not None:
            if report.error.lacks_memory:
                return NoRoom(edits, str(report.error))
            return DoesNotCompile(edits, str(report.error))
        report = with_least_time(report, lambda: self.plan_of(program))
        return Candidate(edits, program, report, self.before)

    def compare(self, candidate: Candidate) -> Candidate | ValuesDiffer:
        """Compares the values of a candidate with those of the original.

        Returns:
            The candidate with its comparison, or a refusal if they differ.
        """
        values = self.values(candidate.program)
        if values.ok is False:
            return ValuesDiffer(candidate.edits, values.detail)
        return replace(candidate, values=values)

    def candidate(self, edits: Sequence[Edit]) -> Candidate | Refusal:
        """Edits the program, compiles it for the target and compares its values."""
        program = self.edited(edits)
        if isinstance(program, Refusal):
            return program
        candidate = self.compile(edits, program)
        if isinstance(candidate, Refusal):
            return candidate
        return self.compare(candidate)

    # --- a series of trials -----------------------------------------------------------

    def enter(self, stage: str) -> None:
        """Reports a stage to the clock."""
        self.clock(stage + self.progress)

    def in_turn(
        self, step: str, items: Sequence[_Item], skips: bool = False
    ) -> Iterator[_Item]:
        """Yields items to try while the budget allows a step for each.

        Items that are left, also after an interrupt, are counted in `untried`.

        Args:
            step: PLAN, PARTITION or COMPILE, which is also the stage for the clock.
            items: the items, the most promising first.
            skips: whether the caller skips some items, and so checks the budget itself.
        """
        self.untried += len(items)
        allowed, count = self.budget.left(step), len(items)
        if allowed is not None and not skips:
            count = min(allowed, count)
        for number, item in enumerate(items[:count], 1):
            if self.cancelled():
                break
            self.progress = f" {number} of {count}"
            self.enter(step)
            yield item
            self.untried -= 1
        self.progress = ""

    # --- the compilers ----------------------------------------------------------------

    def plan_of(self, program: Program) -> Plan:
        """The plan of a program; the order of mesh axes makes no other plan.

        Raises:
            Exception: what the function raises when it is traced on another mesh.
        """
        mesh, own_mesh = program.mesh, self.program.mesh
        is_original = program.fn is self.program.fn
        # A jaxpr refers to the very mesh it was traced on.
        if (
            mesh.ids_are_positions
            and is_original
            and {*mesh.shape} == {*own_mesh.shape}
        ):
            sizes = tuple(map(mesh.shape.__getitem__, own_mesh.axis_names))
            mesh = MeshSpec(own_mesh.axis_names, sizes, own_mesh.axis_types)
        specs = tuple(str(request.spec) for request in program.requests)
        donated = str(program.options.get("donate"))
        key = (id(program.fn), id(program.out_specs), mesh, donated, specs)
        if key not in self._plans:
            planned = program.replace(mesh=mesh)
            if is_original and _is_auto(mesh):
                planned = self._with_function_of(planned, self._traced_on(mesh))
            self._plans[key] = program, plan_program(planned)
        return self._plans[key][1]

    def quick(self, program: Program) -> Program:
        """A program with the original function, with its jaxpr in place of the function.

        Other programs are returned unchanged.
        """
        is_original = (
            program.fn is self.program.fn and program.mesh == self.program.mesh
        )
        if not is_original or not _is_auto(program.mesh):
            return program
        return self._with_function_of(program, self.as_jaxpr)

    def partitioned(self, program: Program) -> Report:
        """A quick compile for simulated CPUs, for the partitioner's collectives.

        Returns:
            A Report with the collectives straight after the partitioner; those of the
            final program may differ. Its `cost` counts the body of a loop once.
        """
        target: Target | str | None = f"cpu:{program.mesh.size}"
        options = _QUICK | _donated(program)
        if self.on_target:
            options, target = program.options, self.target
        report = self.compiled(self.quick(program).replace(options=options), target)
        if report.error is not None or report.partitioned is None:
            return report
        return report.replace(collectives=report.partitioned)

    def compiled(self, program: Program, target: Target | str | None = None) -> Report:
        """The compile of a program for the target."""
        return compile_program(
            program,
            target or self.target,
            cache=self.cache,
            progress=self.enter,
            cancelled=self.cancelled,
        )

    def values(self, program: Program) -> Check:
        """Compares the results of a program with the original's on simulated devices.

        Both run on the same random arguments.

        Returns:
            A Check whose `ok` is None if the program has effects, is too large, or
            does not run there.
        """
        expected: list[Any] = []
        results: list[Any] = []
        if self.traced.effects:
            why_not = "effects"
        elif not self.is_comparable:
            why_not = "too large"
        else:
            expected, why_not = self._original
            if not why_not:
                results, why_not = self._run(program)
        if why_not:
            return Check("values", None, ChangeNotRun(why_not))
        dtypes, checks = [array.dtype for array in program.arrays], []
        for number, (result, expected_result) in enumerate(
            zip(results, expected, strict=True)
        ):
            comparison = Comparison(
                f"output[{number}]", result, expected_result, dtypes, "cpu"
            )
            if not comparison.decided:
                comparison.add(self._unsplit[number])
            checks.append(comparison.check())
        worst = min(checks, key=lambda check: _OUTCOMES.index(check.ok))
        if worst.ok:
            return Check("values", True, SameAsOriginal())
        kind = OriginalAmplifiesRounding if worst.ok is None else DiffersFromOriginal
        return Check("values", worst.ok, kind(worst.name))

    @cached_property
    def is_comparable(self) -> bool:
        """Whether the original is small enough to run it on simulated devices."""
        size = sum(array.bytes for array in self.program.arrays)
        if size > _MOST_COMPARED or self.program.mesh.size > _MOST_DEVICES:
            return False
        return self.work <= _MOST_WORK

    @cached_property
    def _original(self) -> tuple[list[Any], str]:
        return self._run(self.program)

    @cached_property
    def _unsplit(self) -> list[Any]:
        """The original's results with no argument split.

        It sums in another order, so its results differ by rounding, as those of a
        change may.
        """
        arrays = [array.replace(spec=Spec()) for array in self.program.arrays]
        program = self.program.replace(arrays=tuple(arrays), out_specs=None)
        return self._run(program)[0] or self._original[0]

    def _run(self, program: Program) -> tuple[list[Any], str]:
        """The leaves of a program's results, or why there are none."""
        end = time.monotonic() + _MOST_SECONDS
        report = run_program(
            self.quick(program).replace(options=_donated(program)),
            target=f"cpu:{program.mesh.size}",
            cache=self.cache,
            progress=self.enter,
            # The caller compares it with the original.
            compare=False,
            cancelled=lambda: time.monotonic() > end or self.cancelled(),
        )
        if report.error is None:
            leaves = jax.tree.leaves(report.outputs)
            return [leaf for leaf in leaves if hasattr(leaf, "dtype")], ""
        if time.monotonic() > end:
            return [], "too slow here"
        return [], str(report.error)

    # --- what was traced --------------------------------------------------------------

    def _edited(self, edits: Sequence[Edit]) -> Program:
        program, inside = self.program, list[FunctionEdit]()
        for edit in edits:
            if isinstance(edit, FunctionEdit):
                inside.append(edit)
            else:
                program = apply_edit(program, edit)
        # Constraints find their place by counting operations, which other edits change.
        inside.sort(
            key=lambda edit: not isinstance(edit, ConstrainValue | ConstrainArgument)
        )
        if inside and (_is_auto(program.mesh) or program is self.program):
            traced = self._traced_on(program.mesh, tuple(inside))
            return self._with_function_of(program, traced)
        for edit in inside:
            program = apply_edit(program, edit)
        return program

    def _traced_on(
        self, mesh: MeshSpec, edits: tuple[FunctionEdit, ...] = ()
    ) -> Program:
        """The original on a mesh with its jaxpr as the function, after edits of it."""
        key = mesh, edits
        if key not in self._traced:
            if edits:
                traced = self._traced_on(mesh)
                for edit in edits:
                    traced = apply_edit(traced, edit)
            elif mesh == self.program.mesh:
                traced = as_jaxpr(self.program, self.traced)
            else:
                traced = as_jaxpr(self.program.replace(mesh=mesh))
            self._traced[key] = traced
        return self._traced[key]

    def _with_function_of(self, program: Program, traced: Program) -> Program:
        """A program with the function of another, and its specs of results.

        Specs of results that an edit has changed stay.
        """
        out_specs = program.out_specs
        if out_specs is self.program.out_specs:
            out_specs = traced.out_specs
        return program.replace(fn=traced.fn, out_specs=out_specs)


def with_least_time(report: Report, plan: Callable[[], Plan]) -> Report:
    """A compile with the least times that its plan counts, if the chip's rates are known."""
    if report.roofline is None:
        return report
    return report.replace(roofline=with_operations(report, plan()))


def _not_made(edits: Sequence[Edit], error: Exception) -> NotMade:
    refusal = Misfit if isinstance(error, ShardvizError) else NotMade
    return refusal(tuple(edits), said_by(error))


def _is_auto(mesh: MeshSpec) -> bool:
    """Whether a jaxpr traced on the mesh fits any sharding of its arguments.

    On Explicit axes its operations have the sharding of their operands in them.
    """
    return set(mesh.axis_types) == {"Auto"}


def _donated(program: Program) -> dict[str, Any]:
    """The donation of a program, the one option that counts on all targets."""
    donated = program.options.get("donate")
    return {} if donated is None else {"donate": donated}
