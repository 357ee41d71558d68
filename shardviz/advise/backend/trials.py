"""Trials: plan, partition and compile edited programs, and compare their values.

`changes.py`, `lower.py`, `types.py` and `search.py` try their edits here. A trial has
up to three steps of increasing cost. A plan takes milliseconds, a quick compile that
runs XLA's partitioner takes longer, and a compile for the target takes longest. A
`Budget` counts these steps.
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
from shardviz.hardware.targets import TargetLike
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

# The program of a quick compile is never run, so XLA need not optimise it.
_QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0}
if jax.__version_info__ < (0, 11):
    # The older emitters compile three times faster. Newer versions lack them.
    _QUICK["xla_cpu_use_fusion_emitters"] = False
# Values of larger programs are not compared: bytes of all arguments, number of devices,
# and FLOPs plus bytes of one run over all devices.
_MOST_COMPARED = 256 << 20
_MOST_DEVICES = 64
_MOST_WORK = 3e10
# Time limit of one run: a plan may not know the trip counts of its loops.
_MOST_SECONDS = 120.0
_Item = TypeVar("_Item")
# The values of `Check.ok`, worst first.
_OUTCOMES = (False, None, True)

PLAN, PARTITION, COMPILE = "plan", "partition", "compile"


class Cancelled(Exception):
    """Raised if trials are cancelled while a program is being compiled."""


@dataclass
class Budget:
    """A limit on the number of plans, quick compiles and compiles.

    A Budget counts work rather than time, so that a busy machine finds the same
    changes.

    Attributes:
        limits: PLAN, PARTITION or COMPILE -> the most allowed. A step that is missing
            has no limit.
        used: PLAN, PARTITION or COMPILE -> the number used so far.

    >>> budget = Budget({COMPILE: 1})
    >>> budget.use(COMPILE)
    >>> budget.left(COMPILE), budget.allows(COMPILE), budget.allows(PLAN)
    (0, False, True)
    """

    limits: dict[str, int] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)

    def use(self, step: str) -> None:
        """Counts one use of a step."""
        self.used[step] += 1

    def left(self, step: str) -> int | None:
        """Returns how many uses of a step remain; None if it has no limit."""
        if step not in self.limits:
            return None
        return max(0, self.limits[step] - self.used[step])

    def allows(self, step: str) -> bool:
        """Whether one more use of a step is allowed."""
        return self.left(step) != 0


class Trial(NamedTuple):
    """An edited program and its plan.

    Attributes:
        edits: the edits that were made.
        program: the program after the edits.
        plan: the plan of `program`, which may have an error.
    """

    edits: tuple[Edit, ...]
    program: Program
    plan: Plan


class Trials:
    """Tries edits of a program for one target, and compares them with the original.

    The function is traced once per mesh. Compiles are cached by fingerprint, and plans
    by their inputs, so that no work is done twice.

    Args:
        program: the original.
        target: the compile target, as in `sv.compile`.
        clock: called with the name of each stage as it starts.
        cancelled: called between stages and while a worker runs. If it returns True,
            the trials end.
        before: the original's report for the target, if it was compiled already.

    Attributes:
        budget: how much work is allowed; no limits unless it is replaced.
        progress: the position in a series of trials, as text for the clock.
        untried: how many changes were not tried when the budget ran out.
        on_target: whether quick compiles use the target's partitioner instead of the
            partitioner for simulated CPUs.

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
        target: TargetLike = None,
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
        # (mesh, edits inside the function) -> the program traced on that mesh with
        # these edits.
        self._traced: dict[tuple[MeshSpec, tuple[FunctionEdit, ...]], Program] = {}
        # Cache key -> program and plan. A key contains ids of the program's objects, so
        # the program is kept alive.
        self._plans: dict[object, tuple[Program, Plan]] = {}

    # --- the original -----------------------------------------------------------------

    @cached_property
    def traced(self) -> Traced:
        """The original, traced on its abstract mesh."""
        return trace(self.program, abstract_mesh(self.program.mesh))

    @property
    def as_jaxpr(self) -> Program:
        """The original with its function replaced by its jaxpr."""
        return self._traced_on(self.program.mesh)

    @cached_property
    def before(self) -> Report:
        """The original's report."""
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
        """FLOPs plus bytes of one run over all devices, as counted by the plan."""
        total = 0.0
        for cost in op_costs(self.plan_of(self.program)):
            total += ((cost.flops or 0.0) + cost.bytes) * cost.executions
        return total * self.program.mesh.size

    def require_original(self) -> None:
        """Checks that the original compiles, because every change is compared with it.

        A program that does not fit its target passes, because the compiler still
        reports the memory that it needs.

        Raises:
            ProgramError: if the original does not compile for another reason.
        """
        if self.before.error is not None and self.before.too_large is None:
            raise ProgramError(
                "The program does not compile, so changes cannot be compared with it."
                f" {self.before.error}"
            )

    # --- one trial, step by step ------------------------------------------------------

    def edited(self, edits: Sequence[Edit]) -> Program | Refusal:
        """Returns the program after some edits; a refusal if they raise an error."""
        try:
            return self._edited(edits)
        # Some edits call the user's function, which may raise anything. The refusal
        # shows the error.
        except Exception as error:  # noqa: BLE001
            return _not_made(edits, error)

    def plan(self, edits: Sequence[Edit]) -> Trial | Refusal:
        """Edits and plans the program; counts as one plan."""
        self.budget.use(PLAN)
        edits, program = tuple(edits), self.edited(edits)
        if isinstance(program, Refusal):
            return program
        try:
            return Trial(edits, program, self.plan_of(program))
        # On another mesh, the user's function is traced again and may raise anything.
        except Exception as error:  # noqa: BLE001
            return _not_made(edits, error)

    def partition(self, trial: Trial) -> Report:
        """Runs the partitioner on a trial's program; counts as one quick compile."""
        self.budget.use(PARTITION)
        return self.partitioned(trial.program)

    def compile(
        self,
        edits: Sequence[Edit],
        program: Program,
        limit: float | None = None,
        must_fit: bool = True,
    ) -> Candidate | Refusal:
        """Compiles an edited program for the target; counts as one compile.

        Args:
            edits: the edits that were made.
            program: the program after the edits.
            limit: the most bytes allowed per device; None for the target's memory.
            must_fit: whether to refuse a program that does not fit the target.

        Returns:
            A candidate whose values are not compared yet, or a refusal.

        Raises:
            Cancelled: if the trials are cancelled during the compile.
        """
        self.budget.use(COMPILE)
        edits, report = tuple(edits), self.compiled(program)
        if report.error is not None and isinstance(
            report.error.cause, failure.Cancelled
        ):
            raise Cancelled
        reached = report.without_error
        needed = peak_bytes(reached.memory)
        if report.too_large is not None:
            if must_fit:
                return NoRoom(edits, str(report.too_large), needed)
        # The compiler rejects a program that exceeds the chip's memory, but does not
        # know of a lower `limit`.
        elif limit is not None and (needed or 0) > limit:
            return NoRoom(edits, str(reached.fit), needed)
        elif report.error is not None:
            if report.error.lacks_memory:
                return NoRoom(edits, str(report.error))
            return DoesNotCompile(edits, str(report.error))
        report = with_least_time(report, lambda: self.plan_of(program))
        return Candidate(edits, program, report, self.before)

    def compare(self, candidate: Candidate) -> Candidate | ValuesDiffer:
        """Compares a candidate's values with the original's.

        Returns:
            The candidate with the comparison, or a refusal if the values differ.
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
        """Yields items to try while the budget allows.

        Items that are not reached, for example after an interrupt, count in `untried`.

        Args:
            step: PLAN, PARTITION or COMPILE; also the stage reported to the clock.
            items: the items, the most promising first.
            skips: whether the caller skips some items and checks the budget itself.
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
        """Returns the plan of a program; the order of its mesh axes does not matter.

        Raises:
            Exception: any error that the user's function raises when traced on another
                mesh.
        """
        mesh, own_mesh = program.mesh, self.program.mesh
        is_original = program.fn is self.program.fn
        # Only the original function can use another axis order: a jaxpr refers to the
        # mesh it was traced on.
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
            # On Python 3.11, recording calls takes as long as the trace.
            self._plans[key] = program, plan_program(planned, records_calls=False)
        return self._plans[key][1]

    def quick(self, program: Program) -> Program:
        """Replaces the original function in a program by its jaxpr.

        Programs with another function or mesh, or with axes that are not Auto, are
        returned unchanged.
        """
        is_original = (
            program.fn is self.program.fn and program.mesh == self.program.mesh
        )
        if not is_original or not _is_auto(program.mesh):
            return program
        return self._with_function_of(program, self.as_jaxpr)

    def partitioned(self, program: Program) -> Report:
        """Compiles quickly for simulated CPUs, to get the partitioner's collectives.

        Returns:
            A Report with the collectives right after partitioning; the final program's
            may differ. Its `cost` counts a loop body once.
        """
        target: TargetLike = f"cpu:{program.mesh.size}"
        options = _QUICK | _donated(program)
        if self.on_target:
            options, target = program.options, self.target
        report = self.compiled(self.quick(program).replace(options=options), target)
        if report.error is not None or report.partitioned is None:
            return report
        return report.replace(collectives=report.partitioned)

    def compiled(self, program: Program, target: TargetLike = None) -> Report:
        """Compiles a program for the target."""
        return compile_program(
            program,
            target or self.target,
            cache=self.cache,
            progress=self.enter,
            cancelled=self.cancelled,
        )

    def values(self, program: Program) -> Check:
        """Compares a program's results with the original's on simulated devices.

        Both run on the same random arguments.

        Returns:
            A Check whose `ok` is None if the program has effects, is too large, or
            fails to run.
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
        """Whether the original is small enough to run on simulated devices."""
        size = sum(array.bytes for array in self.program.arrays)
        if size > _MOST_COMPARED or self.program.mesh.size > _MOST_DEVICES:
            return False
        return self.work <= _MOST_WORK

    @cached_property
    def _original(self) -> tuple[list[Any], str]:
        return self._run(self.program)

    @cached_property
    def _unsplit(self) -> list[Any]:
        """The original's results when all arguments are replicated.

        That program sums in another order, so its results differ from the original's by
        rounding, as the results of a change may.
        """
        arrays = [array.replace(spec=Spec()) for array in self.program.arrays]
        program = self.program.replace(arrays=tuple(arrays), out_specs=None)
        return self._run(program)[0] or self._original[0]

    def _run(self, program: Program) -> tuple[list[Any], str]:
        """Runs a program; returns its result leaves, and an error text or `""`."""
        end = time.monotonic() + _MOST_SECONDS
        report = run_program(
            self.quick(program).replace(options=_donated(program)),
            target=f"cpu:{program.mesh.size}",
            cache=self.cache,
            progress=self.enter,
            # The method `values` compares the results instead.
            compare=False,
            cancelled=lambda: time.monotonic() > end or self.cancelled(),
        )
        if report.error is None:
            leaves = jax.tree.leaves(report.outputs)
            return [leaf for leaf in leaves if hasattr(leaf, "dtype")], ""
        if time.monotonic() > end:
            return [], "too slow here"
        return [], str(report.error)

    # --- tracing ----------------------------------------------------------------------

    def _edited(self, edits: Sequence[Edit]) -> Program:
        program, inside = self.program, list[FunctionEdit]()
        for edit in edits:
            if isinstance(edit, FunctionEdit):
                inside.append(edit)
            else:
                program = apply_edit(program, edit)
        # Apply constraints first: they find operations by number, which other edits
        # change.
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
        """Returns the original traced on a mesh, after edits of its jaxpr."""
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
        """Returns a program with the function and the result specs of a traced program.

        Result specs that an edit has changed are kept.
        """
        out_specs = program.out_specs
        if out_specs is self.program.out_specs:
            out_specs = traced.out_specs
        return program.replace(fn=traced.fn, out_specs=out_specs)


def with_least_time(report: Report, plan: Callable[[], Plan]) -> Report:
    """Adds the plan's least times to a report, if the chip's rates are known."""
    if not report.has("roofline") or report.roofline is None:
        return report
    return report.replace(roofline=with_operations(report, plan()))


def _not_made(edits: Sequence[Edit], error: Exception) -> NotMade:
    refusal = Misfit if isinstance(error, ShardvizError) else NotMade
    return refusal(tuple(edits), said_by(error))


def _is_auto(mesh: MeshSpec) -> bool:
    """Whether a jaxpr traced on the mesh is valid for any argument shardings.

    On Explicit axes, a jaxpr contains the shardings of its values.
    """
    return set(mesh.axis_types) == {"Auto"}


def _donated(program: Program) -> dict[str, Any]:
    """Returns a program's donation, the only option that applies to all targets."""
    donated = program.options.get("donate")
    return {} if donated is None else {"donate": donated}
