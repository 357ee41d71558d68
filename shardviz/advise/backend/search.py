"""search(): finds shardings with the least time that fit, each really compiled.

Plans (milliseconds) say where to look, and compiles for the target decide. Of a small
space every point is planned, of a larger one those that lead down from today's specs, on
each mesh. From the start a new best plan is compiled after every few plans; then the
others are compiled in the order of their planned times, until plans promise nothing
better. The budget counts plans and compiles, so that a busy machine finds the same.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from shardviz.advise.backend.apply import apply_edit
from shardviz.advise.backend.lower import donations_and_remats
from shardviz.advise.backend.proposals import order_edit
from shardviz.advise.backend.trials import Trials, with_least_time
from shardviz.advise.candidates import Candidate, Edit, Refusal
from shardviz.advise.search import Estimate, PlannedPoint, Search, estimate
from shardviz.advise.search_space import Choice, Point, choices_of, edits_of
from shardviz.base.errors import ProgramError, ShardvizError, TargetError
from shardviz.base.format import plural
from shardviz.base.mesh import MeshSpec
from shardviz.compiled.report import Report, peak_bytes
from shardviz.hardware.topology import Topology, is_described
from shardviz.plans.backend.build_plan import plan_program
from shardviz.plans.plan import Plan
from shardviz.programs.backend.failures import said_by
from shardviz.programs.backend.jaxpr_function import as_jaxpr
from shardviz.programs.program import Program

Edits = tuple[Edit, ...]
_SMALL = 256  # of so many points all are planned
_MOST_PLANNED, _LEAST_PLANNED = 500, 64  # of more
_PLANNED_OPERATIONS = 500_000  # of all plans together, which take time by operation
_MOST_COMPILED = 32
_PLANS_EACH = 24  # plans from one compile to the next
_TURNS = 4  # for each mesh
_TRUST = 0.5  # the part of its planned time that a program takes at least
_IN_VAIN = 6  # compiles in a row of a large space that are no faster, and end it


def search(
    program: Program,
    target: str,
    over: Sequence[str] | None,
    under: int | None,
    seconds: float | None,
    clock: Callable[[str], None],
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
    except _Late:
        ended = "seconds"
    return Search.of(
        run.found.values(),
        before=run.before,
        points=run.points,
        planned=len(run.planned) - list(run.planned.values()).count(None),
        compiled=len(run.compiled),
        ended=ended,
        plans=run.least_memory(),
        limit=None if math.isinf(limit) else int(limit),
    )


class _Late(Exception):
    """The time is over."""


class _Run:
    """One search, and how far it came."""

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
        self.trials = Trials(program, str(topology), self.note, self.meanwhile)
        self.choices: tuple[Choice, ...] = ()
        self.sizes: list[int] = []
        self.points = 0
        self.planning: Iterator[Any] = iter(())
        self.on_mesh = cache(self.trace)
        self.plans: dict[Any, Plan] = {}
        # Points that differ along axes of size 1 have the same edits, and are one program.
        self.planned: dict[Edits, tuple[Estimate, Edits, Program] | None] = {}
        self.most_planned = _MOST_PLANNED
        self.allowed = _PLANS_EACH  # plans until the next compile
        # Of compiled programs that do not fit, the bytes of each device.
        self.compiled: dict[Edits, int | None] = {}
        self.skipped: set[Edits] = set()
        self.found: dict[Edits, Candidate | Refusal] = {}
        self.before: Report | None = None

    def note(self, _: str = "") -> None:
        """Says how far it is."""
        self.clock(f"{len(self.planned):,} planned, {len(self.compiled):,} compiled")

    def meanwhile(self) -> bool:
        """Plans while another process compiles; whether the time is over."""
        # No further than to the next compile, so that its choice depends on no timing.
        if len(self.planned) < self.allowed:
            next(self.planning, None)
        return time.monotonic() > self.end

    @property
    def best(self) -> Candidate | None:
        """The fastest so far."""
        return Search.of(self.found.values()).best

    def prepare(self, over: Sequence[str] | None) -> None:
        """Finds what may vary, and compiles the program as it is."""
        plan = plan_program(self.program)
        if plan.error is not None:
            raise ProgramError(f"The program cannot be planned: {plan.error}")
        self.choices = choices_of(self.program, plan, over)
        edits: dict[str, list[Edit | None]] = {"donate": [], "remat": [None]}
        if not edits.keys().isdisjoint(over or ()):
            for one in donations_and_remats(self.trials):
                edits[one.code].append(one)
        for kind, options in edits.items():
            # To donate takes no time, so that all points do.
            if options and kind in (over or ()):
                self.choices += (Choice(kind, tuple(options)),)
        self.sizes = [len(choice.options) for choice in self.choices]
        self.points = math.prod(self.sizes)
        # The meshes in turn, so that none is left out where there is no time for all.
        ways = map(self.plan_mesh, range(self.sizes[0]))
        self.planning = itertools.zip_longest(*ways)
        operations = max(len(plan.ops), 1)
        most = max(_LEAST_PLANNED, _PLANNED_OPERATIONS // operations)
        self.most_planned = min(most, _MOST_PLANNED)
        self.found[()] = self.compile((), self.program)

    def compile_while_planning(self) -> None:
        """Plans all points that it may, and compiles the best after every few of them,
        if it is a new one.
        """
        best = math.inf
        while self.plan_some():
            waiting = self.waiting()
            # Later compiles decide between plans that are nearly alike.
            if waiting and waiting[0][0].seconds < best and self.has_budget:
                estimate, edits, program = waiting[0]
                best = estimate.seconds
                self.found[edits] = self.compile(edits, program)

    def plan_some(self) -> bool:
        """Plans as many points as one compile is worth; whether there were any."""
        self.allowed = len(self.planned) + _PLANS_EACH
        for _ in self.planning:
            if time.monotonic() > self.end:
                raise _Late
            if len(self.planned) >= self.allowed:
                return True
        return False

    @property
    def has_budget(self) -> bool:
        """Whether it may compile once more."""
        return len(self.compiled) < _MOST_COMPILED

    def waiting(self) -> list[tuple[Estimate, Edits, Program]]:
        """Planned points that may be compiled, the most promising first.

        Those that should fit come first, by their least time; then those that should
        not, by memory.
        """
        ratio = self.bytes_of_values()
        ranked = []
        for number, point in enumerate(self.planned.values()):
            # What its arguments and results take, a program needs in any case.
            if point is None or point[0].held > self.limit:
                continue
            if point[1] in self.found or point[1] in self.skipped:
                continue
            needed = ratio * point[0].values
            excess = needed if needed > self.limit else 0.0
            ranked.append((excess, point[0], number, point))
        ranked.sort(key=lambda row: row[:3])
        return [point for *_, point in ranked]

    def bytes_of_values(self) -> float:
        """How many bytes a program needs for each byte of its planned values: the least
        that a compile has shown; 0 before anything that does not fit was compiled.
        """
        ratios = [0.0]
        for edits, needed in self.compiled.items():
            point = self.planned.get(edits)
            if point is not None and needed is not None:
                ratios.append(needed / max(point[0].values, 1))
        return min(ratios[1:], default=0.0)

    def least_memory(self) -> tuple[PlannedPoint, ...]:
        """The planned points, the least memory first: by compile, else by plan."""
        points = []
        for point in self.planned.values():
            if point is not None:
                estimate, edits, _ = point
                points.append(PlannedPoint(edits, estimate, self.compiled.get(edits)))
        return tuple(sorted(points, key=lambda one: one.estimate.values))

    def plan_mesh(self, mesh: int) -> Iterator[None]:
        """Plans points of one mesh: of a small space all, else some from today's on.

        There one choice after another is changed for the better, for less time or for
        less time and memory in turn. Later turns begin anywhere.
        """
        if self.points <= _SMALL:
            for rest in np.ndindex(*self.sizes[1:]):
                self.cost((mesh, *rest), 0)
                yield
            return
        chance = random.Random(mesh)
        for turn in range(_TURNS):
            rest: Any = [0] * len(self.sizes[1:])
            # Some ways down need two changes at once, as those of both weights of an MLP.
            if turn > 1:
                rest = map(chance.randrange, self.sizes[1:])
            point, before = (mesh, *rest), None
            # Another choice may be better since a later one was changed.
            while point != before:
                before = point
                for number in range(1, len(point)):
                    for option in range(self.sizes[number]):
                        other = (*point[:number], option, *point[number + 1 :])
                        if self.cost(other, turn % 2) < self.cost(point, turn % 2):
                            point = other
                        if len(self.planned) > self.most_planned:
                            return
                        yield

    def cost(self, point: Point, weight: int) -> tuple[float, ...]:
        """What makes a point worse, the most important first; plans it."""
        edits = tuple(edits_of(self.program, self.choices, point))
        if edits not in self.planned:
            self.planned[edits] = self.made(edits)
            self.note()
        known = self.planned[edits]
        # What is no program is worse than any.
        if known is None:
            return (math.inf,)
        found = known[0]
        # What does not fit is compared by how far it is from that.
        excess = max(0.0, found.held - self.limit)
        return excess, found.seconds * found.values**weight, *found

    def made(self, edits: Edits) -> tuple[Estimate, Edits, Program] | None:
        """What the plan of some edits says; None where there is no such program."""
        program = self.program
        try:
            for one in edits:
                if one.code == "remat":
                    program = self.as_traced(program, one)
                else:
                    program = apply_edit(program, one)
            plan = self.plan(program)
        except ShardvizError:
            return None  # most often a spec that does not divide a dimension
        # On another mesh the user's function may raise anything.
        except Exception as error:  # noqa: BLE001
            self.found[edits] = Refusal(edits, "not made", said_by(error))
            return None
        if plan.error is not None:
            self.found[edits] = Refusal(edits, "does not compile", str(plan.error))
            return None
        return estimate(plan, self.topology, program.mesh), edits, program

    def trace(self, mesh: MeshSpec, remat: Edit | None = None) -> Program:
        """The program on a mesh as a jaxpr, whose loops may save less."""
        program = as_jaxpr(self.program.replace(mesh=mesh))
        return program if remat is None else apply_edit(program, remat)

    def as_traced(self, program: Program, remat: Edit | None = None) -> Program:
        """A program with its function as a jaxpr, made once for each mesh."""
        # On Explicit axes an operation has the sharding of its operands in it.
        if set(program.mesh.axis_types) != {"Auto"}:
            return program if remat is None else apply_edit(program, remat)
        known = self.on_mesh(program.mesh, remat)
        return program.replace(fn=known.fn, out_specs=known.out_specs)

    def plan(self, program: Program) -> Plan:
        """A plan; the order of axes makes no other plan."""
        mesh, own, fn = program.mesh, self.program.mesh, program.fn
        # What is a jaxpr already has that mesh in it.
        if mesh.ids_are_positions and fn is self.program.fn:
            sizes = tuple(map(mesh.shape.__getitem__, own.axis_names))
            mesh = MeshSpec(own.axis_names, sizes, own.axis_types)
        specs = (str(request.spec) for request in program.requests)
        key = (id(fn), mesh, str(program.options.get("donate")), *specs)
        if key not in self.plans:
            program = program.replace(mesh=mesh)
            if fn is self.program.fn:
                program = self.as_traced(program)
            self.plans[key] = plan_program(program)
        return self.plans[key]

    def compile_points(self) -> str:
        """Compiles points in the order of their planned times; why it ended."""
        small, in_vain = self.points <= _SMALL, 0
        best = self.best
        fastest = math.inf if best is None else best.least_seconds or 0.0
        tried: set[Estimate] = set()
        smallest = self.smallest()
        while waiting := self.waiting():
            if not self.has_budget:
                return "budget"
            estimate, edits, program = waiting[0]
            # The other end of the frontier; perhaps nothing else fits.
            if smallest is not None:
                (estimate, edits, program), smallest = smallest, None
            elif _TRUST * estimate.seconds >= fastest:
                return "no better"
            elif in_vain == _IN_VAIN and self.best is None:
                return "no room"
            elif in_vain == _IN_VAIN and not small:
                return "no better"
            # Most that are equal in every number are one program by other names.
            elif estimate in tried and not small:
                self.skipped.add(edits)
                continue
            tried.add(estimate)
            made = self.found[edits] = self.compile(edits, program)
            if isinstance(made, Candidate) and (made.least_seconds or 0.0) < fastest:
                fastest, in_vain = made.least_seconds or 0.0, 0
            else:
                # A program that does not fit says nothing about the time of the next
                # ones, unless these should not fit either.
                fitted = isinstance(made, Candidate) or made.code != "no memory"
                should_fit = self.bytes_of_values() * estimate.values <= self.limit
                in_vain += fitted or not should_fit
        return "all compiled" if small else "no better"

    def smallest(self) -> tuple[Estimate, Edits, Program] | None:
        """The planned point with the fewest bytes, unless it is compiled."""
        waiting = self.waiting()
        return min(waiting, key=lambda point: point[0].values, default=None)

    def compile(self, edits: Edits, program: Program) -> Candidate | Refusal:
        """Some edits as a candidate, or why they are none."""
        report = self.trials.compiled(program)
        if report.error is not None and report.error.code == "cancelled":
            raise _Late
        # The first one is the program as it is.
        self.before = self.before or report
        needed = peak_bytes(report.memory)
        fits = report.too_large is None and (needed or 0) <= self.limit
        self.compiled[edits] = None if fits else needed
        if not fits:
            # The compiler refuses only what exceeds the chip, not what exceeds `under`.
            said = str(report.too_large or report.fit)
            return Refusal(edits, "no memory", said, needed)
        if report.error is not None:
            code = "no memory" if report.error.lacks_memory else "does not compile"
            return Refusal(edits, code, str(report.error))
        report = with_least_time(report, lambda: self.plan(program))
        return Candidate(edits, program, report, self.before)

    def order_devices(self) -> None:
        """Compiles the fastest once more, with its devices in the best order."""
        best = self.best
        edit = best and order_edit(best.program, best.report)
        if best is not None and edit is not None:
            edits = (*best.edits, edit)
            self.found[edits] = self.compile(edits, apply_edit(best.program, edit))

    def compare_values(self) -> None:
        """Compares the values of the best with those of the original."""
        while (best := self.best) is not None and best.values is None:
            values = self.trials.values(best.program)
            made: Candidate | Refusal = replace(best, values=values)
            if values.ok is False:
                made = Refusal(best.edits, "values differ", values.detail)
            self.found[best.edits] = made
