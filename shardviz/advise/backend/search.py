"""search(): finds the fastest shardings that fit in memory, compiled for the target.

Plans take milliseconds and guide the search; compiles for the target decide. In a small
search space, every point is planned. In a larger space, each mesh is searched by
coordinate descent: the first descents start at the program's current specs, later ones
at random points. After every few plans, the best point is compiled if it is new. The
other points are then compiled in the order of their planned times, until no gain is
likely or the budget is spent. The budget counts plans and compiles rather than seconds,
so that a busy machine finds the same result.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from shardviz.advise.backend.apply import apply_edit
from shardviz.advise.backend.lower import donations_and_remats
from shardviz.advise.backend.proposals import order_edit
from shardviz.advise.backend.trials import COMPILE, PLAN, Budget, Cancelled, Trials
from shardviz.advise.candidates import (
    Candidate,
    DoesNotCompile,
    Misfit,
    NoRoom,
    Refusal,
)
from shardviz.advise.edits import Edit
from shardviz.advise.search import Estimate, PlannedPoint, Search, estimate
from shardviz.advise.search_space import Choice, Point, choices_of, edits_of
from shardviz.base.errors import ProgramError, TargetError
from shardviz.base.format import plural
from shardviz.compiled.report import Report
from shardviz.hardware.topology import Topology, is_described
from shardviz.plans.backend.build_plan import plan_program
from shardviz.programs.program import Program

Edits = tuple[Edit, ...]
# A space of up to this many points is planned completely.
_SMALL = 256
# Bounds for the number of plans.
_MOST_PLANNED, _LEAST_PLANNED = 500, 64
# Total operations of all plans, which decides their number within these bounds.
_PLANNED_OPERATIONS = 500_000
_MOST_COMPILED = 32
_PLANS_PER_COMPILE = 24
# Coordinate descents per mesh.
_DESCENTS = 4
# The lowest expected ratio of compiled time to planned time.
_LEAST_FRACTION = 0.5
# A large search ends after this many compiles in a row without a gain.
_MOST_IN_VAIN = 6


def search(
    program: Program,
    target: str,
    over: Sequence[str] | None,
    under: int | None,
    seconds: float | None,
    clock: Callable[[str], None],
) -> Search:
    """Finds the candidates with the least time; `sv.search` explains the arguments.

    Raises:
        TargetError: if the target's rates are unknown, or its size isn't the mesh's.
        ProgramError: if there is no target, or the program cannot be planned.
    """
    if not target:
        raise ProgramError(
            "A search compares least times, which depend on the chip. Name one:"
            " sv.search(..., target='tpu:v5e:4x4')."
        )
    if not is_described(target):
        raise TargetError(
            "A search compares least times, which depend on the chip: give"
            " target='tpu:v5e:4x4' or another described target."
        )
    topology = Topology.parse(target)
    if topology.devices != program.mesh.size:
        raise TargetError(
            f"{target} has {plural(topology.devices, 'device')}, and the program's mesh"
            f" {program.mesh.size:,}. Give a mesh of that size: the search finds its axes."
        )
    limit = min(under or math.inf, topology.chip.device_bytes or math.inf)
    end = math.inf if seconds is None else time.monotonic() + seconds
    run = _Run(program, topology, limit, end, clock)
    try:
        run.prepare(over)
        run.compile_while_planning()
        ended = run.compile_points()
        if over is not None and "device order" in over:
            run.order_devices()
        run.compare_values()
    except KeyboardInterrupt:
        ended = "interrupted"
    except (_TimeOver, Cancelled):
        ended = "seconds"
    return Search.of(
        run.results.values(),
        before=run.before,
        points=run.points,
        planned=sum(point is not None for point in run.planned.values()),
        compiled=len(run.compiled),
        ended=ended,
        plans=run.least_memory(),
        limit=None if math.isinf(limit) else int(limit),
    )


class _TimeOver(Exception):
    """The time limit of the search has passed."""


class _Planned(NamedTuple):
    """A planned point.

    Attributes:
        estimate: the least time and the memory, according to the plan.
        edits: the edits that lead to the point.
        program: the program after the edits.
    """

    estimate: Estimate
    edits: Edits
    program: Program


class _Run:
    """The state of one search.

    Attributes:
        limit: the most bytes per device that a program may need.
        end: the `time.monotonic` time at which the search must stop.
        points: number of points in the search space.
        planning: an iterator that plans the next point each time it advances.
        planned: edits -> planned point, or None if the edits give no valid program.
            Points that differ only along axes of size 1 share their edits.
        compiled: edits -> bytes needed per device if the compiled program does not fit,
            else None.
        skipped: edits of points that are not compiled, because a point with an equal
            estimate was compiled.
        results: edits -> candidate or refusal.
        before: the original's report; None until it is compiled.
    """

    def __init__(
        self,
        program: Program,
        topology: Topology,
        limit: float,
        end: float,
        clock: Callable[[str], None],
    ) -> None:
        self.program, self.topology, self.limit = program, topology, limit
        self.end, self.clock = end, clock
        self.trials = Trials(program, str(topology), self.report, self.plan_meanwhile)
        self.choices: tuple[Choice, ...] = ()
        self.sizes: list[int] = []
        self.points = 0
        self.planning: Iterator[object] = iter(())
        self.planned: dict[Edits, _Planned | None] = {}
        self.next_compile = _PLANS_PER_COMPILE  # compile after this many plans
        self.compiled: dict[Edits, int | None] = {}
        self.skipped: set[Edits] = set()
        self.results: dict[Edits, Candidate | Refusal] = {}
        self.before: Report | None = None

    def report(self, stage: str = "") -> None:
        """Reports the numbers of plans and compiles to the clock."""
        self.clock(f"{len(self.planned):,} planned, {len(self.compiled):,} compiled")

    def plan_meanwhile(self) -> bool:
        """Plans a point while a worker compiles; returns whether time is up."""
        # Planning pauses at `next_compile`, so that results don't depend on timing.
        if len(self.planned) < self.next_compile:
            next(self.planning, None)
        return time.monotonic() > self.end

    @property
    def best(self) -> Candidate | None:
        """The fastest candidate so far."""
        return Search.of(self.results.values()).best

    def prepare(self, over: Sequence[str] | None) -> None:
        """Collects the choices to search over, and compiles the original."""
        plan = plan_program(self.program)
        if plan.error is not None:
            raise ProgramError(f"The program cannot be planned: {plan.error}")
        self.choices = choices_of(self.program, plan, over)
        options: dict[str, list[Edit | None]] = {"donate": [], "remat": [None]}
        if not options.keys().isdisjoint(over or ()):
            for edit in donations_and_remats(self.trials):
                options[edit.code].append(edit)
        for kind, edits in options.items():
            # Donating costs no time, so "no donation" is not an option.
            if edits and kind in (over or ()):
                self.choices += (Choice(kind, tuple(edits)),)
        self.sizes = [len(choice.options) for choice in self.choices]
        self.points = math.prod(self.sizes)
        # Alternate between meshes, so that each gets a share of the budget.
        by_mesh = map(self.plan_mesh, range(self.sizes[0]))
        self.planning = itertools.zip_longest(*by_mesh)
        most_planned = _PLANNED_OPERATIONS // max(len(plan.ops), 1)
        most_planned = min(max(_LEAST_PLANNED, most_planned), _MOST_PLANNED)
        self.trials.budget = Budget({PLAN: most_planned, COMPILE: _MOST_COMPILED})
        # Candidates are compared with the compiled original, without the least times
        # that its plan would add.
        original = self.trials.before = self.trials.compiled(self.program)
        self.results[()] = self.compile((), self.program)
        self.before = original

    def compile_while_planning(self) -> None:
        """Plans points until the budget is spent.

        After every few plans, compiles the best point if it is new.
        """
        best = math.inf
        while self.plan_some():
            waiting = self.waiting()
            # Compile only points with a lower planned time. `compile_points` compares
            # near ties.
            if waiting and waiting[0].estimate.seconds < best and self.may_compile:
                best = waiting[0].estimate.seconds
                self.compile_point(waiting[0])

    def plan_some(self) -> bool:
        """Plans points until the next compile is due; returns False if none remain."""
        self.next_compile = len(self.planned) + _PLANS_PER_COMPILE
        for _ in self.planning:
            if time.monotonic() > self.end:
                raise _TimeOver
            if len(self.planned) >= self.next_compile:
                return True
        return False

    @property
    def may_compile(self) -> bool:
        """Whether the budget allows one more compile."""
        return self.trials.budget.allows(COMPILE)

    def waiting(self) -> list[_Planned]:
        """Returns the planned points that can still be compiled, most promising first.

        Points that should fit are sorted by least time; the others follow, sorted by
        memory.
        """
        ratio = self.needed_per_planned_byte()
        ranked = []
        for number, point in enumerate(self.planned.values()):
            # A program needs memory at least for its arguments and results.
            if point is None or point.estimate.held > self.limit:
                continue
            if point.edits in self.results or point.edits in self.skipped:
                continue
            needed = ratio * point.estimate.values
            excess = needed if needed > self.limit else 0.0
            ranked.append((excess, point.estimate, number, point))
        ranked.sort(key=lambda row: row[:3])
        return [point for *_, point in ranked]

    def needed_per_planned_byte(self) -> float:
        """Estimates the bytes that a program needs per byte of its planned values.

        This is the lowest ratio among the compiled programs that did not fit, or 0 if
        there are none yet.
        """
        ratios = []
        for edits, needed in self.compiled.items():
            point = self.planned.get(edits)
            if point is not None and needed is not None:
                ratios.append(needed / max(point.estimate.values, 1))
        return min(ratios, default=0.0)

    def least_memory(self) -> tuple[PlannedPoint, ...]:
        """Returns the planned points, sorted by planned memory."""
        points = []
        for point in self.planned.values():
            if point is not None:
                needed = self.compiled.get(point.edits)
                points.append(PlannedPoint(point.edits, point.estimate, needed))
        return tuple(sorted(points, key=lambda point: point.estimate.values))

    def plan_mesh(self, mesh: int) -> Iterator[None]:
        """Plans points of one mesh, one per iteration of this generator.

        In a small space, it plans all points. In a larger space, it runs coordinate
        descents, which improve one choice at a time. The descents alternately minimise
        time, and time multiplied by memory. The first two start at the current specs,
        later ones at random points.

        Args:
            mesh: the index of the mesh among the options.
        """
        if self.points <= _SMALL:
            for options in np.ndindex(*self.sizes[1:]):
                self.cost((mesh, *options), 0)
                yield
            return
        chance = random.Random(mesh)
        for descent in range(_DESCENTS):
            options = [0] * len(self.sizes[1:])
            # Random starts can find gains that need two changes at once, such as to
            # both weights of an MLP.
            if descent > 1:
                options = [*map(chance.randrange, self.sizes[1:])]
            point: Point = (mesh, *options)
            before: Point | None = None
            # Repeat, since changing a choice may make another option of an earlier
            # choice better.
            while point != before:
                before = point
                for number in range(1, len(point)):
                    for option in range(self.sizes[number]):
                        neighbor = (*point[:number], option, *point[number + 1 :])
                        weight = descent % 2
                        if self.cost(neighbor, weight) < self.cost(point, weight):
                            point = neighbor
                        if not self.trials.budget.allows(PLAN):
                            return
                        yield

    def cost(self, point: Point, weight: int) -> tuple[float, ...]:
        """Plans a point and returns its sort key; the best point has the lowest.

        Args:
            point: the index of the option for each choice.
            weight: the exponent of memory in `time * memory**weight`.
        """
        edits = tuple(edits_of(self.program, self.choices, point))
        if edits not in self.planned:
            self.planned[edits] = self.plan(edits)
            self.report()
        planned = self.planned[edits]
        # Edits that give no valid program come after all programs.
        if planned is None:
            return (math.inf,)
        values = planned.estimate
        # Programs that don't fit are ranked by how far they exceed the limit.
        excess = max(0.0, values.held - self.limit)
        return excess, values.seconds * values.values**weight, *values

    def plan(self, edits: Edits) -> _Planned | None:
        """Plans the program after some edits; returns None if that fails."""
        trial = self.trials.plan(edits)
        if isinstance(trial, Misfit):
            return None  # usually a spec that does not divide a dimension
        if isinstance(trial, Refusal):
            self.results[edits] = trial
            return None
        if trial.plan.error is not None:
            self.results[edits] = DoesNotCompile(edits, str(trial.plan.error))
            return None
        point = estimate(trial.plan, self.topology, trial.program.mesh)
        return _Planned(point, edits, trial.program)

    def compile_points(self) -> str:
        """Compiles points in order of planned time; returns why it stopped."""
        is_small, in_vain = self.points <= _SMALL, 0
        best = self.best
        fastest = math.inf if best is None else best.least_seconds or 0.0
        tried: set[Estimate] = set()
        smallest = self.smallest()
        while waiting := self.waiting():
            if not self.may_compile:
                return "budget"
            point = waiting[0]
            # Compile the point with the least memory first: it may be the only one to
            # fit.
            if smallest is not None:
                point, smallest = smallest, None
            elif _LEAST_FRACTION * point.estimate.seconds >= fastest:
                return "no better"
            elif in_vain == _MOST_IN_VAIN and self.best is None:
                return "no room"
            elif in_vain == _MOST_IN_VAIN and not is_small:
                return "no better"
            # Points with equal estimates are usually the same program with other axis
            # names.
            elif point.estimate in tried and not is_small:
                self.skipped.add(point.edits)
                continue
            tried.add(point.estimate)
            result = self.compile_point(point)
            seconds = math.inf
            if isinstance(result, Candidate):
                seconds = result.least_seconds or 0.0
            # A program that doesn't fit is no evidence about the time of later points.
            # It only counts as a failure if later points aren't expected to fit either.
            should_fit = (
                self.needed_per_planned_byte() * point.estimate.values <= self.limit
            )
            if seconds < fastest:
                fastest, in_vain = seconds, 0
            elif not (isinstance(result, NoRoom) and should_fit):
                in_vain += 1
        return "all compiled" if is_small else "no better"

    def smallest(self) -> _Planned | None:
        """Returns the waiting point with the least planned memory."""
        waiting = self.waiting()
        return min(waiting, key=lambda point: point.estimate.values, default=None)

    def compile_point(self, point: _Planned) -> Candidate | Refusal:
        """Compiles a planned point."""
        result = self.compile(point.edits, point.program)
        self.results[point.edits] = result
        return result

    def compile(self, edits: Edits, program: Program) -> Candidate | Refusal:
        """Compiles a program for the target; refuses it if it does not fit."""
        result = self.trials.compile(edits, program, self.limit)
        self.compiled[edits] = result.needed if isinstance(result, NoRoom) else None
        return result

    def order_devices(self) -> None:
        """Compiles the fastest candidate with its devices in the best order."""
        best = self.best
        edit = best and order_edit(best.program, best.report)
        if best is not None and edit is not None:
            edits = (*best.edits, edit)
            self.results[edits] = self.compile(edits, apply_edit(best.program, edit))

    def compare_values(self) -> None:
        """Compares the best candidate's values with the original's.

        If they differ, the candidate is refused and the next best is compared.
        """
        while (best := self.best) is not None and best.values is None:
            self.results[best.edits] = self.trials.compare(best)
