"""Violations: the ways in which a program can violate an expectation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from shardviz.advise.lock import LockDiff
from shardviz.axis_rules.fit import Fit
from shardviz.axis_rules.requests import Request
from shardviz.base.collective import Collective
from shardviz.base.display import Fact
from shardviz.base.partition_spec import Spec
from shardviz.compiled.too_large import TooLarge
from shardviz.programs.failure import Failure


class HeldArray(NamedTuple):
    """An array of a program or audit that is being checked.

    Attributes:
        name: the array's name.
        bytes: the bytes of the whole array.
        held: the array's bytes on each device.
        is_split: whether the array is split over a mesh axis larger than 1.
        spec: the array's spec; None if unknown.
        request: the requested layout; None if unknown.
    """

    name: str
    bytes: int
    held: int
    is_split: bool
    spec: Spec | None
    request: Request | None = None


@dataclass(frozen=True)
class Violation(Fact):
    """An expectation that a program does not meet; each subclass is one kind.

    Attributes:
        code: a short name of the kind of violation.
        name: the name of the program or audit.

    >>> NotSplit("step", (), share=0.9, total=0).code
    'not split'
    """

    code: ClassVar[str] = ""
    name: str


@dataclass(frozen=True)
class CollectiveViolation(Violation):
    """Unexpected collectives, or collectives with too many bytes.

    Attributes:
        stage: the stage that the collectives are from: `"propagated"` (an estimate),
            `"partitioned"` or `"compiled"`.
        target: the target they were compiled for; `""` for an estimate.
        collectives: the collectives.
        over: the mesh axes in the expectation; empty for any.
        requests: the requested layouts of the arguments; empty if unknown.
    """

    stage: str
    target: str
    collectives: tuple[Collective, ...]
    over: tuple[str, ...]
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class UnexpectedCollectives(CollectiveViolation):
    """Collectives that an expectation rules out.

    Attributes:
        kind: the kind of collective in the expectation; `""` for any.
    """

    code: ClassVar[str] = "collectives"
    kind: str


@dataclass(frozen=True)
class TooManyBytes(CollectiveViolation):
    """Collectives with more bytes than a limit.

    Attributes:
        limit: the most bytes allowed.
        per: what the limit applies to: a kind of collective, `"step"` or
            `"collective"`.
    """

    code: ClassVar[str] = "too much"
    limit: int
    per: str


@dataclass(frozen=True)
class UnknownBytes(TooManyBytes):
    """Collectives in loops whose number of iterations is unknown.

    They keep within the limit if each runs once, so the total may or may not exceed it.
    """

    code: ClassVar[str] = "unknown"


@dataclass(frozen=True)
class NotEnoughMemory(Violation):
    """A program or audit that needs more memory than a limit or a device has.

    Attributes:
        counted: what the needed bytes include: `"arrays"` of an audit, `"arguments"` of
            a program, `"ends"` (arguments and results of a plan), or `"compiled"` for
            the memory of a compiled program.
        target: the target that the program was compiled for; `""` if it was not
            compiled.
        fit: the bytes needed and available on each device.
        arrays: the arrays of the audit, or the arguments of the program.
        large: the memory use of the compiled program; None if nothing was compiled.
    """

    code: ClassVar[str] = "too large"
    counted: str
    target: str
    fit: Fit
    arrays: tuple[HeldArray, ...]
    large: TooLarge | None = None


@dataclass(frozen=True)
class NotSplit(Violation):
    """Unsplit arrays that make up too large a share of all bytes.

    Attributes:
        arrays: the arrays that are not split.
        share: the expected share of split bytes.
        total: the bytes of all arrays.
    """

    code: ClassVar[str] = "not split"
    arrays: tuple[HeldArray, ...]
    share: float
    total: int


@dataclass(frozen=True)
class DiffersFromLock(Violation):
    """A program that differs from its lock.

    Attributes:
        differences: the differences.
        lock: the lock's name.
    """

    code: ClassVar[str] = "differs"
    differences: LockDiff
    lock: str


@dataclass(frozen=True)
class NothingToCheck(Violation):
    """A program that cannot be checked because it has an error.

    Attributes:
        error: the error.
    """

    code: ClassVar[str] = "nothing"
    error: Failure
