"""Search: programs that differ in their shardings, compared by least time and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from shardviz.core.display import Displayed, Fact, sentence
from shardviz.core.errors import ProgramError
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.candidates import Candidate, Refusal
from shardviz.core.program.op_costs import op_costs
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_values import bytes_per_device
from shardviz.core.program.report import Report
from shardviz.core.program.roofline import Bound, collective_bound, rated_bytes

_T = TypeVar("_T")
PARTS = ("compute", "memory", "collectives")


class Estimate(NamedTuple):
    """What a plan says of a program: XLA may need more or less.

    Attributes:
        parts: least seconds of each of `PARTS`.
        held: bytes of arguments and results on each device; no program needs less.
        peak: bytes of all values that are alive at once, as if nothing were fused.

    >>> Estimate({"compute": 2.0, "memory": 1.0}, 8, 12).scaled({"memory": 3.0})
    (3.0, 5.0)
    """

    parts: Mapping[str, float]
    held: int
    peak: int

    def scaled(self, factors: Mapping[str, float]) -> tuple[float, float]:
        """Least seconds, and the sum of the parts, each times its factor."""
        parts = [value * factors.get(name, 1.0) for name, value in self.parts.items()]
        return max(parts), sum(parts)


def estimate(plan: Plan, topology: Topology, mesh: MeshSpec) -> Estimate:
    """What a plan says of its program on a mesh, which may have another axis order."""
    chip, costs, seconds = topology.chip, op_costs(plan), 0.0
    flops = sum((cost.flops or 0.0) * cost.executions for cost in costs)
    moved = sum(cost.bytes * cost.executions for cost in costs if cost.is_product)
    for one in plan.collectives:
        seconds += collective_bound(one, chip, topology, mesh).seconds or 0.0
    held, peak = _memory(plan)
    parts = {
        "compute": flops * chip.devices / chip.peak_bf16 if chip.peak_bf16 else 0.0,
        # Whatever is fused, arguments are read and results written once.
        "memory": rated_bytes(moved + held, chip) or 0.0,
        "collectives": seconds,
    }
    return Estimate(parts, held, peak)


def _memory(plan: Plan) -> tuple[int, int]:
    """Bytes of arguments and results on each device, and of all alive at once."""
    last: dict[str, int] = {}
    for number, op in enumerate(plan.ops):
        last.update(dict.fromkeys(op.operands, number))
    held, alive, peak = 0, 0, 0
    ends: dict[int, int] = {}
    for number, op in enumerate(plan.ops):
        size = bytes_per_device(op, plan.mesh)
        if op.kind == "result":
            held += size
        elif op.name in last and op.kind == "op":
            alive += size
            ends[last[op.name]] = ends.get(last[op.name], 0) + size
        # jax leaves out arguments that nothing reads; a donated one may be a result.
        elif op.name in last and not op.donated:
            held += size
        peak = max(peak, alive)
        alive -= ends.get(number, 0)
    return held, held + peak


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
    """Why one candidate and not another: what differs, the largest first.

    >>> Preference.__match_args__
    ('first', 'second', 'rows')
    """

    first: Candidate
    second: Candidate
    rows: tuple[Difference, ...]

    def __repr__(self) -> str:
        return str(self)


class Search(tuple[Candidate, ...], Displayed):
    """Candidates that compile and fit, the least time first.

    Attributes:
        before: the compile of the program as it was.
        refused: what was compiled and dropped, with why.
        points: how many combinations there are to choose from.
        planned, compiled: how many of them were planned, and compiled.
        ended: why it ended: `"all compiled"`, but for those whose arguments and
            results alone need more memory; `"no better"`, where the estimates of
            all others that were planned, scaled as those that were compiled, are worse;
            `"seconds"` or `"interrupted"`.

    >>> Search.of([], ended="seconds").exhaustive
    False
    """

    before: Report | None = None
    refused: tuple[Refusal, ...] = ()
    points: int = 0
    planned: int = 0
    compiled: int = 0
    ended: str = "all compiled"

    @classmethod
    def of(cls, candidates: Iterable[Candidate], **facts: Any) -> Search:
        """Candidates in any order, with what is known of the search."""
        made = cls(sorted(candidates, key=_rank))
        vars(made).update(facts)
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
        return frontier(
            self, lambda one: one.least_seconds or 0.0, lambda one: one.peak_bytes or 0
        )

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
        for side in (one, second):
            if side is None or side.least_seconds is None:
                raise ProgramError(
                    "One of the two did not compile, so there is no least time to"
                    " compare with. Give two of the search's candidates."
                )
        assert one is not None
        assert second is not None
        return Preference(one, second, _differences(one.report, second.report))

    def __repr__(self) -> str:
        return sentence(self)


def _rank(candidate: Candidate) -> tuple[float, float, int, int]:
    """Least time, then the sum of its parts, then memory."""
    known, size = candidate.report.roofline, candidate.peak_bytes or 0
    return known.seconds or 0.0, sum(known.parts.values()), size, len(candidate.edits)


def _differences(first: Report, second: Report) -> tuple[Difference, ...]:
    """What differs in the rooflines of two reports, the largest difference first."""
    # Collectives of a kind and axes count as one.
    rows: dict[str, list[Bound]] = {}
    mine = {id(row) for row in first.roofline.rows}
    for row in (*first.roofline.rows, *second.roofline.rows):
        rows.setdefault(row.name, []).append(row)
    found = []
    for name, some in rows.items():
        sums = [0.0, 0.0]
        for row in some:
            sums[id(row) not in mine] += row.seconds or 0.0
        sources = dict.fromkeys(row.source for row in some if row.source)
        if sums[0] != sums[1]:
            found.append(Difference(name, sums[0], sums[1], tuple(sources)))
    return tuple(sorted(found, key=lambda one: -abs(one.other - one.seconds)))


def frontier(
    some: Iterable[_T], seconds: Callable[[_T], float], size: Callable[[_T], float]
) -> tuple[_T, ...]:
    """Those that none beats in both seconds and bytes, the fastest first.

    >>> frontier([(3, 6), (2, 5), (1, 9)], lambda p: p[0], lambda p: p[1])
    ((1, 9), (2, 5))
    """
    kept: list[_T] = []
    for one in sorted(some, key=lambda one: (seconds(one), size(one))):
        if not kept or size(one) < size(kept[-1]):
            kept.append(one)
    return tuple(kept)
