"""Trials: changed programs, partitioned, compiled and compared with the original."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

import jax

from shardviz.advise.backend.apply import INSIDE, apply_edit
from shardviz.advise.candidates import Candidate, Edit, Refusal
from shardviz.base.errors import ProgramError
from shardviz.base.partition_spec import Spec
from shardviz.compiled.checks import (
    ChangeNotRun,
    Check,
    DiffersFromOriginal,
    OriginalAmplifiesRounding,
    SameAsOriginal,
)
from shardviz.compiled.op_costs import op_costs
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import with_operations
from shardviz.hardware.targets import Target
from shardviz.plans.backend.build_plan import plan_program
from shardviz.plans.plan import Plan
from shardviz.programs.backend.bridge import abstract_mesh
from shardviz.programs.backend.devices import MOST_SIMULATED
from shardviz.programs.backend.failures import said_by
from shardviz.programs.backend.jaxpr_function import as_jaxpr
from shardviz.programs.backend.trace import Traced, trace
from shardviz.programs.program import Program
from shardviz.runs.backend.hosts.run import compile_program, run_program
from shardviz.runs.backend.rounding import Comparison
from shardviz.runs.cache import ExecutableCache, cache

# Nothing of a quick compile is run, so XLA need not make it fast.
_QUICK = {"xla_backend_optimization_level": 0}
_MOST_COMPARED = 256 << 20  # bytes of arguments and results, in all
_MOST_DEVICES = 64  # that are simulated to compare values
_MOST_WORK = 3e10  # operations and bytes of one run that is compared, on all devices
# For one run, whose loops may be longer than a plan can know.
_MOST_SECONDS = 120.0
_Item = TypeVar("_Item")
# The outcome of a comparison of values, the worst first.
_OUTCOMES = (False, None, True)


class Trials:
    """Tries changed programs, for one target, next to the original.

    The function is traced once. What was compiled is kept by its fingerprint.

    Args:
        program: the original.
        target: what it is compiled for, as for `sv.compile`.
        clock: called with the name of every stage as it begins.
        cancelled: called between stages, and while a worker works; True ends it.
        before: the compile of the original for the target, if there is one already.

    >>> from shardviz.base.array_spec import ArraySpec
    >>> from shardviz.base.mesh import make_mesh
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
        before: Report | None = None,
    ) -> None:
        self.program, self.target, self._before = program, target, before
        self.clock = clock or (lambda _: None)
        self.cancelled = cancelled or (lambda: False)
        self.cache = ExecutableCache(size=512)
        #: How far a search is, for the clock.
        self.progress = ""
        #: How many changes were left when the budget was used up.
        self.untried = 0
        #: Whether the partitioner of the target is asked, and not that of CPUs.
        self.on_target = program.mesh.size > MOST_SIMULATED

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
        """The compile of the original, which most have made before."""
        report = self._before
        if report is None:
            how = {"progress": self.enter, "cancelled": self.cancelled}
            report = compile_program(self.program, self.target, cache=cache, **how)
        return with_least_time(report, lambda: plan_program(self.program))

    @cached_property
    def work(self) -> float:
        """Operations and bytes of one run on all devices, by the plan's count."""
        total = 0.0
        for cost in op_costs(plan_program(self.quick(self.program))):
            total += ((cost.flops or 0.0) + cost.bytes) * cost.executions
        return total * self.program.mesh.size

    def enter(self, stage: str) -> None:
        """Tells the clock what is done."""
        self.clock(stage + self.progress)

    def require_original(self) -> None:
        """Compiles the original, with which all is compared.

        A program that does not fit its target has been compiled, except for the last
        step: its memory is known.

        Raises:
            ProgramError: if it does not compile.
        """
        if self.before.error is not None and self.before.too_large is None:
            raise ProgramError(
                "The program does not compile, so no change of it can be compared with"
                f" it. {self.before.error}"
            )

    def made(self, edits: Sequence[Edit]) -> Program | Refusal:
        """The program after some edits; or what was raised where they do not fit."""
        program = self.program
        inside = INSIDE.keys() & {one.code for one in edits}
        if inside:
            program = self.as_jaxpr
        try:
            # Constraints say where they are before others change the jaxpr.
            after = inside - {"constraint"}
            for one in sorted(edits, key=lambda edit: edit.code in after):
                program = apply_edit(program, one)
        # Some edits call the user's function, which may raise anything; what it said is
        # shown with the edit.
        except Exception as error:  # noqa: BLE001
            return Refusal(tuple(edits), "not made", said_by(error))
        return program

    def quick(self, program: Program) -> Program:
        """A program of the original function, with what was traced in its place."""
        same = program.fn is self.program.fn and program.mesh == self.program.mesh
        # On Explicit axes an operation has the sharding of its operands in it.
        if not same or set(program.mesh.axis_types) != {"Auto"}:
            return program
        if program.out_specs is self.program.out_specs:
            program = program.replace(out_specs=self.as_jaxpr.out_specs)
        return program.replace(fn=self.as_jaxpr.fn)

    def partitioned(self, program: Program) -> Report:
        """What the partitioner makes of a program: a quick compile for simulated CPUs.

        Returns:
            A Report with the collectives straight after it; what the final program
            sends may differ. Its `cost` counts the body of a loop once.
        """
        target: Any = f"cpu:{program.mesh.size}"
        options = _QUICK | _donated(program)
        if self.on_target:
            options, target = program.options, self.target
        report = self.compiled(self.quick(program).replace(options=options), target)
        if report.error is not None or report.partitioned is None:
            return report
        return report.replace(collectives=report.partitioned)

    def compiled(self, program: Program, target: Target | str | None = None) -> Report:
        """The compile of a program for the target."""
        how = {"progress": self.enter, "cancelled": self.cancelled}
        return compile_program(program, target or self.target, cache=self.cache, **how)

    def candidate(
        self,
        edits: Sequence[Edit],
        program: Program | None = None,
        must_fit: bool = True,
    ) -> Candidate | Refusal:
        """Some edits as a candidate, compiled and compared; or why it is none.

        Args:
            edits: what is changed.
            program: the program after the edits; None to make it here.
            must_fit: whether a program that does not fit the target is refused.
        """
        edits, made = tuple(edits), program or self.made(edits)
        if isinstance(made, Refusal):
            return made
        report = self.compiled(made)
        if report.too_large is not None:
            if must_fit:
                return Refusal(edits, "no memory", str(report.too_large))
        elif report.error is not None:
            return Refusal(edits, "does not compile", str(report.error))
        report = with_least_time(report, lambda: plan_program(self.quick(made)))
        values = self.values(made)
        if values.ok is False:
            return Refusal(edits, "values differ", values.detail)
        return Candidate(edits, made, report, self.before, values)

    def values(self, program: Program) -> Check:
        """The results of a program next to those of the original, on simulated devices.

        Both run on the same made-up arguments.

        Returns:
            A Check whose `ok` is None where the program has effects, is too large, or
            does not run there.
        """
        expected: list[Any] = []
        results: list[Any] = []
        if self.traced.effects:
            why = "effects"
        elif not self.is_comparable:
            why = "too large"
        else:
            expected, why = self._original
            if not why:
                results, why = self._run(program)
        if why:
            return Check("values", None, ChangeNotRun(why))
        dtypes, checks = [array.dtype for array in program.arrays], []
        for number, (mine, other) in enumerate(zip(results, expected, strict=True)):
            comparison = Comparison(f"output[{number}]", mine, other, dtypes, "cpu")
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

        It adds up in another order, so its results differ by rounding, as those of a
        change may.
        """
        arrays = [array.replace(spec=Spec()) for array in self.program.arrays]
        program = self.program.replace(arrays=tuple(arrays), out_specs=None)
        return self._run(program)[0] or self._original[0]

    def _run(self, program: Program) -> tuple[list[Any], str]:
        """The leaves of its results; or why there are none."""
        end = time.monotonic() + _MOST_SECONDS
        report = run_program(
            self.quick(program).replace(options=_donated(program)),
            target=f"cpu:{program.mesh.size}",
            cache=self.cache,
            progress=self.enter,
            # It is compared with the original.
            compare=False,
            cancelled=lambda: time.monotonic() > end or self.cancelled(),
        )
        if report.error is None:
            leaves = jax.tree.leaves(report.outputs)
            return [leaf for leaf in leaves if hasattr(leaf, "dtype")], ""
        late = time.monotonic() > end
        return [], "too slow here" if late else str(report.error)


def with_least_time(report: Report, plan: Callable[[], Plan]) -> Report:
    """A compile with the least times that its plan counts, if the chip's rates are known."""
    if report.roofline is None:
        return report
    return report.replace(roofline=with_operations(report, plan()))


def in_turn(
    trials: Trials, stage: str, items: Sequence[_Item], most: int | None = None
) -> Iterator[_Item]:
    """The first items, within a budget of work; tells the clock.

    Those that are left, also after an interrupt, are counted in `trials.untried`.

    Args:
        trials: the trials.
        stage: what is done with each.
        items: the items, the most promising first.
        most: how many there is work for; None for all.
    """
    trials.untried += len(items)
    count = len(items) if most is None else min(most, len(items))
    for number, item in enumerate(items[:count], 1):
        if trials.cancelled():
            break
        trials.progress = f" {number} of {count}"
        trials.enter(stage)
        yield item
        trials.untried -= 1
    trials.progress = ""


def _donated(program: Program) -> dict[str, Any]:
    """What a program donates, which is the one option that counts on all targets."""
    donated = program.options.get("donate")
    return {} if donated is None else {"donate": donated}
