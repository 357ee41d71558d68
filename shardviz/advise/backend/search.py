"""search(): finds shardings with the least time that fit, each compiled for the target.

Plans, which take milliseconds, show where to look, and compiles for the target decide.
In a small space every point is planned. In a larger space each mesh is searched by
descents: the first start at the program's own specs, later ones at random points. After
every few plans, the best point so far is compiled if it is new. Then the others are
compiled in the order of their planned times, until no gain is likely or the budget is
spent. The budget counts plans and compiles, not seconds, so a busy machine finds the same
result.
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
_SMALL = 256  # points of a space in which all are planned
_MOST_PLANNED, _LEAST_PLANNED = 500, 64  # in a larger space
_PLANNED_OPERATIONS = 500_000  # of all plans together: a plan takes time per operation
_MOST_COMPILED = 32
_PLANS_PER_COMPILE = 24
_DESCENTS = 4  # on each mesh
_LEAST_FRACTION = 0.5  # of its planned time that a program takes at least
_MOST_IN_VAIN = 6  # compiles in a row that are no faster and end a large search


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
        TargetError: for a target whose rates are unknown, or of another size.
        ProgramError: if the program cannot be planned.
    """
    if not is_described(target):
        raise TargetError(
            "A search compares least times, which need the figures of a chip: give"
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
    """The seconds of the search are over."""


class _Planned(NamedTuple):
    """A planned point.

    Attributes:
        estimate: its least time and memory by the plan.
        edits: what it changes.
        program: the program after the edits.
    """

    estimate: Estimate
    edits: Edits
    program: Program


class _Run:
    """One search and its state.

    Attributes:
        limit: the most bytes that a program may need per device.
        end: when the time is over, by `time.monotonic`.
        points: how many points the space has.
        planning: plans the next point each time it is advanced.
        planned: the points planned so far, by their edits; None if there is no such
            program. Points that differ along axes of size 1 have the same edits, and
            are one program.
        compiled: for each compiled program the bytes it needs per device if it does
            not fit, else None.
        skipped: points that are not compiled, since an equal one was.
        results: the candidates and refusals.
        before: the compile of the original; None until then.
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
        self.next_compile = _PLANS_PER_COMPILE  # plans until then
        self.compiled: dict[Edits, int | None] = {}
        self.skipped: set[Edits] = set()
        self.results: dict[Edits, Candidate | Refusal] = {}
        self.before: Report | None = None

    def report(self, stage: str = "") -> None:
        """Reports to the clock how much is planned and compiled."""
        self.clock(f"{len(self.planned):,} planned, {len(self.compiled):,} compiled")

    def plan_meanwhile(self) -> bool:
        """Plans a point while a worker compiles; returns whether the time is over."""
        # It stops at the next compile, so that no choice depends on timing.
        if len(self.planned) < self.next_compile:
            next(self.planning, None)
        return time.monotonic() > self.end

    @property
    def best(self) -> Candidate | None:
        """The fastest candidate so far."""
        return Search.of(self.results.values()).best

    def prepare(self, over: Sequence[str] | None) -> None:
        """Finds what may vary, and compiles the original."""
        plan = plan_program(self.program)
        if plan.error is not None:
            raise ProgramError(f"The program cannot be planned: {plan.error}")
        self.choices = choices_of(self.program, plan, over)
        options: dict[str, list[Edit | None]] = {"donate": [], "remat": [None]}
        if not options.keys().isdisjoint(over or ()):
            for edit in donations_and_remats(self.trials):
                options[edit.code].append(edit)
        for kind, edits in options.items():
            # Donation takes no time, so it is the only option.
            if edits and kind in (over or ()):
                self.choices += (Choice(kind, tuple(edits)),)
        self.sizes = [len(choice.options) for choice in self.choices]
        self.points = math.prod(self.sizes)
        # The meshes take turns, so that each gets a part of the time.
        by_mesh = map(self.plan_mesh, range(self.sizes[0]))
        self.planning = itertools.zip_longest(*by_mesh)
        most_planned = _PLANNED_OPERATIONS // max(len(plan.ops), 1)
        most_planned = min(max(_LEAST_PLANNED, most_planned), _MOST_PLANNED)
        self.trials.budget = Budget({PLAN: most_planned, COMPILE: _MOST_COMPILED})
        # Candidates are compared with the original as it was compiled, without the least
        # times of its plan.
        original = self.trials.before = self.trials.compiled(self.program)
        self.results[()] = self.compile((), self.program)
        self.before = original

    def compile_while_planning(self) -> None:
        """Plans all points it may, and compiles each new best one after every few."""
        best = math.inf
        while self.plan_some():
            waiting = self.waiting()
            # Later compiles decide between nearly equal plans.
            if waiting and waiting[0].estimate.seconds < best and self.may_compile:
                best = waiting[0].estimate.seconds
                self.compile_point(waiting[0])

    def plan_some(self) -> bool:
        """Plans points until the next compile; returns False if none are left."""
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
        """Planned points that may be compiled, the most promising first.

        Points that should fit come first, by least time; the others follow, by memory.
        """
        ratio = self.needed_per_planned_byte()
        ranked = []
        for number, point in enumerate(self.planned.values()):
            # A program needs at least its arguments and results.
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
        """The bytes a program needs per byte of its planned values.

        The least ratio among the compiled programs that do not fit; 0 if there are
        none yet.
        """
        ratios = []
        for edits, needed in self.compiled.items():
            point = self.planned.get(edits)
            if point is not None and needed is not None:
                ratios.append(needed / max(point.estimate.values, 1))
        return min(ratios, default=0.0)

    def least_memory(self) -> tuple[PlannedPoint, ...]:
        """The planned points, the least memory by plan first."""
        points = []
        for point in self.planned.values():
            if point is not None:
                needed = self.compiled.get(point.edits)
                points.append(PlannedPoint(point.edits, point.estimate, needed))
        return tuple(sorted(points, key=lambda point: point.estimate.values))

    def plan_mesh(self, mesh: int) -> Iterator[None]:
        """Plans points of one mesh, one each time it is advanced.

        In a small space all points. In a larger one it descends: one choice after
        another is changed for the better, in turn for less time, and for less time and
        memory. The first descents begin at the present specs, later ones anywhere.

        Args:
            mesh: the number of the mesh among the options.
        """
        if self.points <= _SMALL:
            for options in np.ndindex(*self.sizes[1:]):
                self.cost((mesh, *options), 0)
                yield
            return
        chance = random.Random(mesh)
        for descent in range(_DESCENTS):
            options = [0] * len(self.sizes[1:])
            # Some descents need two changes together, as of both weights of an MLP.
            if descent > 1:
                options = [*map(chance.randrange, self.sizes[1:])]
            point: Point = (mesh, *options)
            before: Point | None = None
            # After a later choice changed, another option of an earlier may be better.
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
        """A sort key of a point, least for the best; plans the point.

        Args:
            point: the option of each choice.
            weight: the exponent of memory in the product of time and memory.
        """
        edits = tuple(edits_of(self.program, self.choices, point))
        if edits not in self.planned:
            self.planned[edits] = self.plan(edits)
            self.report()
        planned = self.planned[edits]
        # Edits that make no program are worse than any program.
        if planned is None:
            return (math.inf,)
        values = planned.estimate
        # Programs that do not fit are compared by how much they exceed the limit.
        excess = max(0.0, values.held - self.limit)
        return excess, values.seconds * values.values**weight, *values

    def plan(self, edits: Edits) -> _Planned | None:
        """The planned point of some edits; None if they make no program."""
        trial = self.trials.plan(edits)
        if isinstance(trial, Misfit):
            return None  # most often a spec that does not divide a dimension
        if isinstance(trial, Refusal):
            self.results[edits] = trial
            return None
        if trial.plan.error is not None:
            self.results[edits] = DoesNotCompile(edits, str(trial.plan.error))
            return None
        point = estimate(trial.plan, self.topology, trial.program.mesh)
        return _Planned(point, edits, trial.program)

    def compile_points(self) -> str:
        """Compiles points in the order of their planned times; returns why it ended."""
        is_small, in_vain = self.points <= _SMALL, 0
        best = self.best
        fastest = math.inf if best is None else best.least_seconds or 0.0
        tried: set[Estimate] = set()
        smallest = self.smallest()
        while waiting := self.waiting():
            if not self.may_compile:
                return "budget"
            point = waiting[0]
            # The other end of the frontier comes first: perhaps nothing else fits.
            if smallest is not None:
                point, smallest = smallest, None
            elif _LEAST_FRACTION * point.estimate.seconds >= fastest:
                return "no better"
            elif in_vain == _MOST_IN_VAIN and self.best is None:
                return "no room"
            elif in_vain == _MOST_IN_VAIN and not is_small:
                return "no better"
            # Most points with equal numbers are one program with other names.
            elif point.estimate in tried and not is_small:
                self.skipped.add(point.edits)
                continue
            tried.add(point.estimate)
            result = self.compile_point(point)
            seconds = math.inf
            if isinstance(result, Candidate):
                seconds = result.least_seconds or 0.0
            # A program that does not fit shows nothing about the time of the next ones,
            # unless these should not fit either.
            should_fit = (
                self.needed_per_planned_byte() * point.estimate.values <= self.limit
            )
            if seconds < fastest:
                fastest, in_vain = seconds, 0
            elif not (isinstance(result, NoRoom) and should_fit):
                in_vain += 1
        return "all compiled" if is_small else "no better"

    def smallest(self) -> _Planned | None:
        """The waiting point with the fewest bytes."""
        waiting = self.waiting()
        return min(waiting, key=lambda point: point.estimate.values, default=None)

    def compile_point(self, point: _Planned) -> Candidate | Refusal:
        """Compiles a planned point."""
        result = self.compile(point.edits, point.program)
        self.results[point.edits] = result
        return result

    def compile(self, edits: Edits, program: Program) -> Candidate | Refusal:
        """Compiles a program for the target, unless it does not fit."""
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
        """Compares the values of the best with the original's, until they agree."""
        while (best := self.best) is not None and best.values is None:
            self.results[best.edits] = self.trials.compare(best)
