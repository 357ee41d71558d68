"""Search: programs that differ in their shardings, compared by least time and memory."""

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
    """What a plan says of a program on each device; the smaller one is the better.

    >>> Estimate(0.1, 0.3, values=100, held=60) < Estimate(0.2, 0.2, values=10, held=5)
    True
    """

    seconds: float  # the most of arithmetic, memory and collectives
    total: float  # these three one after another
    values: int  # bytes of all values, as if none were freed or fused
    held: int  # bytes of arguments and results; no program needs less memory


class PlannedPoint(NamedTuple):
    """A combination that was planned.

    Attributes:
        edits: what it changes.
        estimate: what its plan says.
        needed: the bytes that its compile needs on each device; None if it was not
            compiled, or fits.

    >>> PlannedPoint((), Estimate(0.1, 0.3, values=100, held=60), needed=80).needed
    80
    """

    edits: tuple[Edit, ...]
    estimate: Estimate
    needed: int | None = None


def estimate(plan: Plan, topology: Topology, mesh: MeshSpec) -> Estimate:
    """What a plan says of its program on a mesh, which may have another axis order."""
    seconds = {"compute": 0.0, "memory": 0.0}
    for row in total_bounds(topology.chip, op_costs(plan)):
        seconds[row.part] += row.seconds or 0.0
    parts = (*seconds.values(), _sent_seconds(plan, topology, mesh))
    values = sum(bytes_per_device(op, plan.mesh) for op in plan.ops)
    return Estimate(max(parts), sum(parts), values, held_bytes(plan))


def _sent_seconds(plan: Plan, topology: Topology, mesh: MeshSpec) -> float:
    """The least time of a plan's collectives, as compilers for TPUs and GPUs make them."""
    seconds: dict[Any, float] = {}
    for number, one in enumerate(plan.collectives):
        key: Any = number
        axes, value = set(one.mesh_axes), plan.by_name.get(one.value)
        # Of a sum that is split, a device receives its part only, of all that others add.
        if one.kind == "all-reduce" and value and axes <= set(value.spec.axes):
            size = bytes_per_device(value, plan.mesh) * one.group_size
            one = replace(one, kind="reduce-scatter", bytes_per_device=size)
        # Who sends to whom is not known; a device sends all that it has.
        elif one.kind == "collective-permute" and not one.groups:
            one = replace(one, kind="all-to-all")
        # What the forward pass gathers is there for the backward pass.
        elif one.kind == "all-gather" and isinstance(one.cause, MoveCause):
            key = number if one.in_loop else (one.cause.value, one.mesh_axes, one.shape)
        # Of a collective whose groups or rate nobody knows, nothing is counted.
        bound = collective_bound(one, topology.chip, topology, mesh)
        seconds[key] = bound.seconds or 0.0
    return sum(seconds.values())


class Difference(NamedTuple):
    """Least seconds of a part, or a kind of collective, in two candidates.

    >>> Difference("compute", 1.0, 3.0, ()).other
    3.0
    """

    name: str
    seconds: float
    other: float
    sources: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Preference(Fact):
    """Why one candidate and not another.

    >>> Preference.__match_args__
    ('first', 'second')
    """

    first: Candidate
    second: Candidate

    @property
    def rows(self) -> tuple[Difference, ...]:
        """What differs in their rooflines, the largest difference first."""
        # Collectives of a kind and axes count as one.
        seconds: dict[str, list[float]] = {}
        sources: dict[str, dict[str, None]] = {}
        for side, one in enumerate((self.first, self.second)):
            for row in one.report.roofline.rows:
                seconds.setdefault(row.name, [0.0, 0.0])[side] += row.seconds or 0.0
                sources.setdefault(row.name, {})[row.source] = None
        rows = []
        for name, (mine, other) in seconds.items():
            if mine != other:
                where = tuple(filter(None, sources[name]))
                rows.append(Difference(name, mine, other, where))
        return tuple(sorted(rows, key=lambda row: -abs(row.other - row.seconds)))

    def __repr__(self) -> str:
        return str(self)


class Search(tuple[Candidate, ...], Displayed):
    """Candidates that compile and fit, the least time first.

    Attributes:
        before: the compile of the program as it was.
        refused: what was tried and dropped, with why; specs that do not divide left out.
        points: how many combinations there are to choose from.
        planned, compiled: how many of them were planned, and compiled.
        ended: why it ended: `"all compiled"`, except for those whose arguments and
            results alone need more memory; `"no better"`, where plans promise nothing
            better of all others; `"no room"`, where they promise that nothing fits;
            `"budget"` of compiles, `"seconds"` or `"interrupted"`.
        plans: all points that were planned, the fewest bytes first.
        limit: the bytes that each device has for it; None where that is not known.

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
    def of(cls, found: Iterable[Candidate | Refusal], **facts: Any) -> Search:
        """Candidates and refusals in any order, with what is known of the search."""
        kept: list[Candidate] = []
        refused: list[Refusal] = []
        for one in found:
            if isinstance(one, Candidate):
                kept.append(one)
            else:
                refused.append(one)
        made = cls(sorted(kept, key=_rank))
        vars(made).update(facts, refused=tuple(refused))
        return made

    @property
    def best(self) -> Candidate | None:
        """The one with the least time; None where nothing compiles and fits."""
        return self[0] if self else None

    @property
    def exhaustive(self) -> bool:
        """Whether every combination that could fit was compiled: none is better."""
        return self.ended == "all compiled"

    @property
    def frontier(self) -> tuple[Candidate, ...]:
        """Those that none beats in both time and memory, the fastest first."""
        kept: list[Candidate] = []
        # From the fastest on, each that needs less memory than all before.
        for one in sorted(
            self, key=lambda c: (c.least_seconds or 0.0, c.peak_bytes or 0)
        ):
            if not kept or (one.peak_bytes or 0) < (kept[-1].peak_bytes or 0):
                kept.append(one)
        return tuple(kept)

    def explain(
        self, first: Candidate | None = None, second: Candidate | None = None
    ) -> Preference:
        """Why one candidate (the best) and not another (the program as it was).

        Raises:
            ProgramError: where one of them does not compile, so has no least time.
        """
        one = first or self.best
        if second is None and one is not None:
            second = Candidate((), one.program, one.before, one.before)
        if not one or not second or None in (one.least_seconds, second.least_seconds):
            raise ProgramError(
                "One of the two did not compile, so there is no least time to compare"
                " with. Give two of the search's candidates."
            )
        return Preference(one, second)

    def __repr__(self) -> str:
        return sentence(self)


def _rank(candidate: Candidate) -> tuple[float, float, int, int]:
    """Least time, then the sum of its parts, then memory."""
    known, size = candidate.report.roofline, candidate.peak_bytes or 0
    return known.seconds or 0.0, sum(known.parts.values()), size, len(candidate.edits)
