"""search(): finds shardings with the least time that fit, each really compiled.

Plans (milliseconds) say where to look; compiles for the target decide. What a plan says
of arithmetic, memory and collectives is compared with every compile, and others are
predicted with these ratios. What would be worse even with the most favourable ratio
that was seen is not compiled.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardviz.core.backend.candidates.apply import apply_edit
from shardviz.core.backend.candidates.trials import Trials
from shardviz.core.backend.shardy.build_plan import plan_program
from shardviz.core.backend.tracing.edited import as_jaxpr
from shardviz.core.errors import ProgramError, ShardvizError, TargetError
from shardviz.core.format import plural
from shardviz.core.hardware.topology import Topology, is_described
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.candidates import Candidate, Refusal
from shardviz.core.program.orders import order_edit
from shardviz.core.program.plan import Plan
from shardviz.core.program.program import Program
from shardviz.core.program.report import Report
from shardviz.core.program.roofline import with_operations
from shardviz.core.program.search import PARTS, Estimate, Search, estimate, frontier
from shardviz.core.program.search_space import (
    Choice,
    Point,
    choices_of,
    edits_of,
    names_unsplit,
)

_ALL_PLANNED = 600  # of so many points all are planned; of more, some ways down
_PLANNING = 0.35  # the part of the time that plans may take
_STARTS = 3  # for each mesh: as it is, and random ones
_FEWEST = 4  # compiles before their ratios count
_UNSEEN = 0.5  # the least ratio that is expected before
_SLACK = 0.9  # a ratio may be a little below the least one that was seen
_COMPARING = 0.25  # of the time before, for comparing values
_MOST_SMALL = 4  # compiles for the sake of memory alone


def search(
    program: Program,
    target: str,
    over: Sequence[str] | None = None,
    under: int | None = None,
    seconds: float = 120.0,
    clock: Callable[[str], None] = lambda _: None,
) -> Search:
    """Finds the candidates with the least time, as `sv.search` says."""
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
    run = _Run(program, topology, under, seconds, clock)
    try:
        run.prepare(over)
        run.plan_points()
        ended = run.compile_points()
        if over is not None and "device order" in over:
            run.order_devices()
        run.compare_values()
    except KeyboardInterrupt:
        ended = "interrupted"
    except _Late:
        ended = "seconds"
    return run.result(ended)


class _Late(Exception):
    """The time is over."""


class _Run:
    """One search, and how far it came."""

    def __init__(
        self,
        program: Program,
        topology: Topology,
        under: int | None,
        seconds: float,
        clock: Callable[[str], None],
    ) -> None:
        self.program, self.topology, self.under = program, topology, under
        self.clock, self.begun, self.limit = clock, time.monotonic(), seconds
        self.trials = Trials(program, str(topology), self._note, self._is_late)
        self.choices: tuple[Choice, ...] = ()
        self.before: Report | None = None
        self.estimates: dict[Point, Estimate | None] = {}
        self.compiled: dict[Point, Candidate | Refusal] = {}
        self.ratios: dict[str, list[float]] = {part: [] for part in PARTS}
        self._plans: dict[Any, Plan] = {}
        self._traced: dict[Any, Program] = {}

    def _is_late(self) -> bool:
        return time.monotonic() - self.begun > self.limit

    def _note(self, _: str = "") -> None:
        done = len(self.estimates), len(self.compiled)
        self.clock("{:,} planned, {:,} compiled".format(*done))

    def candidates(self) -> Iterator[Candidate]:
        """What was compiled and fits."""
        return (one for one in self.compiled.values() if isinstance(one, Candidate))

    def prepare(self, over: Sequence[str] | None) -> None:
        """Plans and compiles the program as it is, and finds what may vary."""
        plan = self._plan(self.program)
        if plan.error is not None:
            raise ProgramError(f"The program cannot be planned: {plan.error}")
        self.choices = choices_of(self.program, plan, over)
        self.before = self._compile((0,) * len(self.choices))
        self.quickest = self.before.compile_s or 0.0

    # Plans.

    def points(self) -> int:
        """How many points there are; some are no program."""
        return int(np.prod([len(choice.options) for choice in self.choices]))

    def plan_points(self) -> None:
        """Plans the points: all of a small space, else those on ways down."""
        sizes = [len(choice.options) for choice in self.choices]
        if self.points() <= _ALL_PLANNED:
            for point in np.ndindex(*sizes):
                self.estimate(point)
            return
        # No more time than a few compiles take, where these are quick.
        most = min(_PLANNING * self.limit, 1.0 + 2 * self.quickest)
        begun, chance = time.monotonic(), random.Random(0)
        fixed = int(self.choices[0].kind == "mesh")
        limits = [float("inf") if self.under is None else self.under]
        for turn in range(_STARTS):
            for mesh in range(sizes[0] if fixed else 1):
                start = [chance.randrange(size) if turn else 0 for size in sizes]
                start[:fixed] = [mesh] * fixed
                for limit in limits:
                    if time.monotonic() - begun > most:
                        return
                    self._descend(tuple(start), limit, fixed)
            # Further starts look for what needs less memory, too.
            peaks = [found.peak for found in self.estimates.values() if found]
            limits = [limits[0], float(np.quantile(peaks, 0.1))]

    def _descend(self, point: Point, limit: float, fixed: int) -> None:
        """Changes one choice after another for the better, the first `fixed` not.

        What needs more than `limit` bytes counts as worse.
        """

        def cost(some: Point) -> tuple[float, ...]:
            found = self.estimate(some)
            if found is None:
                return (float("inf"),)
            return (max(0.0, found.peak - limit), *found.scaled({}), found.peak)

        best, before = cost(point), ()
        while best != before:
            before = best
            for number in range(fixed, len(point)):
                for option in range(len(self.choices[number].options)):
                    other = (*point[:number], option, *point[number + 1 :])
                    if (value := cost(other)) < best:
                        point, best = other, value

    def estimate(self, point: Point) -> Estimate | None:
        """What the plan of a point says; None where there is no such program."""
        if point not in self.estimates:
            if self._is_late():
                raise _Late
            program, found = self.changed(point), None
            plan = None if program is None else self._plan(program)
            if program is not None and plan is not None and plan.error is None:
                found = estimate(plan, self.topology, program.mesh)
            self.estimates[point] = found
            self._note()
        return self.estimates[point]

    def changed(self, point: Point) -> Program | None:
        """The program of a point; None where it is none, or the same as another's."""
        program, edits = self.program, edits_of(self.program, self.choices, point)
        try:
            for one in edits:
                program = apply_edit(program, one)
        except ShardvizError:
            return None
        same = names_unsplit(edits, program.mesh)
        return None if program.problems or same else program

    def _plan(self, program: Program) -> Plan:
        """A plan, traced once for each mesh; the order of axes makes no other plan."""
        mesh, own = program.mesh, self.program.mesh
        if mesh.ids_are_positions:
            sizes = [mesh.shape[name] for name in own.axis_names]
            mesh = MeshSpec(own.axis_names, sizes, own.axis_types)
        key = (mesh, *(str(request.spec) for request in program.requests))
        if key not in self._plans:
            program = program.replace(mesh=mesh)
            # On Explicit axes an operation has the sharding of its operands in it.
            if set(mesh.axis_types) == {"Auto"}:
                known = self._traced.setdefault(mesh, as_jaxpr(program))
                program = program.replace(fn=known.fn, out_specs=known.out_specs)
            self._plans[key] = plan_program(program)
        return self._plans[key]

    # Compiles.

    def compile_points(self) -> str:
        """Compiles the most promising points; why it ended."""
        while (point := self._next()) is not None:
            self._compile(point)
        by_memory = frontier(
            self._waiting(), lambda one: one[1].scaled({})[0], lambda one: one[1].peak
        )
        for point, _ in by_memory[-_MOST_SMALL:]:
            self._compile(point)
        every = len(self.estimates) == self.points() and not self._waiting()
        return "all compiled" if every else "no better"

    def _waiting(self) -> list[tuple[Point, Estimate]]:
        """What is not compiled, and whose arguments and results alone would fit."""
        waiting = []
        for point, found in self.estimates.items():
            if found is not None and point not in self.compiled:
                if self.under is None or found.held <= self.under:
                    waiting.append((point, found))
        return waiting

    def _next(self) -> Point | None:
        """The point with the least predicted time; None where none can be better."""
        usual, least = self._factors(np.median, 1.0), self._factors(np.min, _UNSEEN)
        if self.points() <= _ALL_PLANNED:
            # XLA may keep in fast memory what a plan counts: with few points be careful.
            least = {part: min(ratio, _UNSEEN) for part, ratio in least.items()}
        best = Search.of(self.candidates()).best
        waiting = self._waiting()
        waiting.sort(key=lambda one: (*one[1].scaled(usual), one[1].peak))
        for point, found in waiting:
            seconds = _SLACK * found.scaled(least)[0]
            if best is None or seconds < (best.least_seconds or 0.0):
                return point
        return None

    def _factors(self, of: Callable[[Any], Any], unseen: float) -> dict[str, float]:
        """For each part, how many times its estimate it took where it was compiled."""
        factors = {}
        for part, ratios in self.ratios.items():
            factors[part] = float(of(ratios)) if len(ratios) >= _FEWEST else unseen
        return factors

    def _compile(self, point: Point) -> Report:
        # What the compiler was at when the time was over is not known.
        if self._is_late():
            raise _Late
        program = self.changed(point) or self.program
        edits = tuple(edits_of(self.program, self.choices, point))
        report = self.trials.compiled(program)
        if report.error is not None:
            if report.error.code == "cancelled":
                raise _Late
            refusal = Refusal(edits, "does not compile", str(report.error))
            self.compiled[point] = refusal
            return report
        # Compilers count the arithmetic of a loop once, and some count none.
        if report.loops or "flops" not in report.cost:
            known = with_operations(report, self._plan(program))
            report = report.replace(roofline=known)
        before = self.before or report
        made = Candidate(edits, program, report, before)
        self.compiled[point] = made
        over = self.under is not None and (made.peak_bytes or 0) > self.under
        if over or (report.fit is not None and report.fit.ok is False):
            self.compiled[point] = Refusal(edits, "no memory", str(report.fit))
        guess = self.estimate(point)
        for part, seconds in report.roofline.parts.items():
            if guess is not None and guess.parts[part] and seconds:
                self.ratios[part].append(seconds / guess.parts[part])
        return report

    def order_devices(self) -> None:
        """Compiles the fastest once more, with its devices in the best order."""
        best = Search.of(self.candidates()).best
        edit = best and order_edit(best.program, best.report)
        if best is None or edit is None:
            return
        program = apply_edit(best.program, edit)
        report = self.trials.compiled(program)
        if report.error is None:
            known = with_operations(report, self._plan(best.program))
            made = replace(best, edits=(*best.edits, edit), program=program)
            # It is none of the points, whose programs choose no devices.
            self.compiled[(-1,)] = replace(made, report=report.replace(roofline=known))

    def compare_values(self) -> None:
        """Compares the values of the frontier with those of the original.

        The fastest come first, as many as there is time for.
        """
        point_of = {id(found): point for point, found in self.compiled.items()}
        begun = time.monotonic()
        for one in Search.of(self.candidates()).frontier:
            now = time.monotonic()
            if now - begun > _COMPARING * (begun - self.begun) or self._is_late():
                return
            values = self.trials.values(one.program)
            made: Candidate | Refusal = replace(one, values=values)
            if values.ok is False:
                made = Refusal(one.edits, "values differ", values.detail)
            self.compiled[point_of[id(one)]] = made

    def result(self, ended: str) -> Search:
        """What was found."""
        refused = [one for one in self.compiled.values() if isinstance(one, Refusal)]
        return Search.of(
            self.candidates(),
            before=self.before,
            refused=tuple(refused),
            points=self.points(),
            planned=sum(found is not None for found in self.estimates.values()),
            compiled=len(self.compiled),
            ended=ended,
        )
