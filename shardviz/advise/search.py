"""Search: compares possible shardings of a program by least time and memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from shardviz.advise.candidates import Candidate, Edit, Refusal
from shardviz.base.display import Displayed, Fact, sentence
from shardviz.base.errors import ProgramError
from shardviz.base.mesh import MeshSpec
from shardviz.compiled.op_costs import held_bytes, op_costs
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import collective_bound, total_bounds
from shardviz.hardware.topology import Topology
from shardviz.plans.plan import Plan
from shardviz.plans.plan_causes import MoveCause
from shardviz.plans.plan_values import bytes_per_device


class Estimate(NamedTuple):
    """The planned time and memory of a program on each device; less is better.

    Attributes:
        seconds: the maximum of compute, memory and collective time.
        total: the sum of these three times.
        values: bytes of all values, as if none were freed or fused.
        held: bytes of arguments and results. No program needs less memory.

    >>> Estimate(0.1, 0.3, values=100, held=60) < Estimate(0.2, 0.2, values=10, held=5)
    True
    """

    seconds: float
    total: float
    values: int
    held: int


class PlannedPoint(NamedTuple):
    """A combination of edits that was planned.

    Attributes:
        edits: the edits of the combination.
        estimate: the planned time and memory.
        needed: bytes per device that the compiled program needs, if it does not fit;
            None if it fits or was not compiled.

    >>> PlannedPoint((), Estimate(0.1, 0.3, values=100, held=60), needed=80).needed
    80
    """

    edits: tuple[Edit, ...]
    estimate: Estimate
    needed: int | None = None


def estimate(plan: Plan, topology: Topology, mesh: MeshSpec) -> Estimate:
    """Estimates the time and memory of a plan on a mesh.

    The mesh may have another axis order than the plan's.
    """
    seconds = {"compute": 0.0, "memory": 0.0}
    for row in total_bounds(topology.chip, op_costs(plan)):
        seconds[row.part] += row.seconds or 0.0
    parts = (*seconds.values(), _sent_seconds(plan, topology, mesh))
    values = sum(bytes_per_device(op, plan.mesh) for op in plan.ops)
    return Estimate(max(parts), sum(parts), values, held_bytes(plan))


def _sent_seconds(plan: Plan, topology: Topology, mesh: MeshSpec) -> float:
    """Returns the least time of a plan's collectives on TPUs and GPUs."""
    seconds: dict[object, float] = {}
    for number, collective in enumerate(plan.collectives):
        key: object = number
        axes, value = set(collective.mesh_axes), plan.by_name.get(collective.value)
        # TPU and GPU compilers turn an all-reduce with a split result into a
        # reduce-scatter.
        if collective.kind == "all-reduce" and value and axes <= set(value.spec.axes):
            size = bytes_per_device(value, plan.mesh) * collective.group_size
            collective = replace(
                collective, kind="reduce-scatter", bytes_per_device=size
            )
        # The permute's device pairs are unknown. Assume that a device sends all its
        # bytes, as in an all-to-all.
        elif collective.kind == "collective-permute" and not collective.groups:
            collective = replace(collective, kind="all-to-all")
        # Equal gathers of a value count once: the backward pass reuses the forward
        # result.
        elif collective.kind == "all-gather" and not collective.in_loop:
            if isinstance(collective.cause, MoveCause):
                value_name = collective.cause.value
                key = (value_name, collective.mesh_axes, collective.shape)
        # A collective with unknown replica groups or rate counts as 0 seconds.
        bound = collective_bound(collective, topology.chip, topology, mesh)
        seconds[key] = bound.seconds or 0.0
    return sum(seconds.values())


class Difference(NamedTuple):
    """The least seconds of one row of the roofline in two candidates.

    A row is a part such as `"compute"`, or a kind of collective over some axes.

    >>> Difference("compute", 1.0, 3.0, ()).other
    3.0
    """

    name: str
    seconds: float
    other: float
    sources: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Preference(Fact):
    """The reasons why one candidate is preferred to another.

    >>> Preference.__match_args__
    ('first', 'second')
    """

    first: Candidate
    second: Candidate

    @property
    def rows(self) -> tuple[Difference, ...]:
        """The differences between the two rooflines, largest first."""
        # Rows with the same name (collectives of one kind over the same axes) are
        # summed.
        seconds: dict[str, list[float]] = {}
        sources: dict[str, dict[str, None]] = {}
        for side, candidate in enumerate((self.first, self.second)):
            for row in candidate.report.roofline.rows:
                seconds.setdefault(row.name, [0.0, 0.0])[side] += row.seconds or 0.0
                sources.setdefault(row.name, {})[row.source] = None
        rows = []
        for name, (first, second) in seconds.items():
            if first != second:
                where = tuple(filter(None, sources[name]))
                rows.append(Difference(name, first, second, where))
        return tuple(sorted(rows, key=lambda row: -abs(row.other - row.seconds)))

    def __repr__(self) -> str:
        return str(self)


class Search(tuple[Candidate, ...], Displayed):
    """Candidates that compile and fit, fastest first.

    Attributes:
        before: the original program's report.
        refused: combinations that were tried and rejected, with their reasons.
            Combinations whose specs do not divide an array are omitted.
        points: number of combinations in the search space.
        planned, compiled: number of combinations that were planned, and compiled.
        ended: why the search ended. `"all compiled"`: every combination was compiled,
            except combinations whose arguments and results alone do not fit;
            `"no better"`: by their plans, no other planned combination is better;
            `"no room"`: by their plans, no planned combination fits; `"budget"`: the
            number of compiles is used up; `"seconds"`: the time limit is over;
            `"interrupted"`: Ctrl-C.
        plans: all planned points, least planned memory first.
        limit: the bytes available per device; None if unknown.

    >>> from shardviz.types import Search
    >>> Search.of([], ended="seconds").exhaustive
    False
    """

    before: Report | None = None
    refused: tuple[Refusal, ...] = ()
    points: int = 0
    planned: int = 0
    compiled: int = 0
    ended: str = "all compiled"
    plans: tuple[PlannedPoint, ...] = ()
    limit: int | None = None

    @classmethod
    def of(cls, results: Iterable[Candidate | Refusal], **facts: Any) -> Search:
        """Creates a Search from candidates and refusals in any order.

        Args:
            results: the candidates and refusals.
            **facts: values of the other attributes.
        """
        candidates: list[Candidate] = []
        refused: list[Refusal] = []
        for result in results:
            if isinstance(result, Candidate):
                candidates.append(result)
            else:
                refused.append(result)
        search = cls(sorted(candidates, key=_rank))
        vars(search).update(facts, refused=tuple(refused))
        return search

    @property
    def best(self) -> Candidate | None:
        """The candidate with the least time; None if there are no candidates."""
        return self[0] if self else None

    @property
    def exhaustive(self) -> bool:
        """Whether every combination that could fit was compiled."""
        return self.ended == "all compiled"

    @property
    def frontier(self) -> tuple[Candidate, ...]:
        """The Pareto frontier of least time and memory, fastest first."""
        frontier: list[Candidate] = []
        # In order of time, keep each candidate that needs less memory than all faster
        # ones.
        for candidate in sorted(
            self, key=lambda c: (c.least_seconds or 0.0, c.peak_bytes or 0)
        ):
            if not frontier or (candidate.peak_bytes or 0) < (
                frontier[-1].peak_bytes or 0
            ):
                frontier.append(candidate)
        return tuple(frontier)

    def explain(
        self, first: Candidate | None = None, second: Candidate | None = None
    ) -> Preference:
        """Explains why one candidate is preferred to another.

        Args:
            first: the preferred candidate; by default the best.
            second: the other candidate; by default the original program.

        Raises:
            ProgramError: if one of the two has no least time, because it did not
                compile.
        """
        preferred = first or self.best
        if second is None and preferred is not None:
            second = Candidate(
                (), preferred.program, preferred.before, preferred.before
            )
        if (
            not preferred
            or not second
            or None in (preferred.least_seconds, second.least_seconds)
        ):
            raise ProgramError(
                "One of the two did not compile, so there is no least time to compare"
                " with. Give two of the search's candidates."
            )
        return Preference(preferred, second)

    def __repr__(self) -> str:
        return sentence(self)


def _rank(candidate: Candidate) -> tuple[float, float, int, int]:
    """Sorts by least time, the sum of its parts, memory, and the number of edits."""
    roofline, size = candidate.report.roofline, candidate.peak_bytes or 0
    return (
        roofline.seconds or 0.0,
        sum(roofline.parts.values()),
        size,
        len(candidate.edits),
    )
