"""Violations: how a program differs from what a project expects of it."""

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
    """One array of a program or audit that is checked.

    Attributes:
        name: its name.
        bytes: the bytes of the whole array.
        held: its bytes on each device.
        is_split: whether it is split over any axis of more than one device.
        spec: its spec.
        request: what was requested for it, if that is known.
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
        code: the kind of violation; the same for all of a class.
        name: the name of the program or audit.

    >>> NotSplit("step", (), share=0.9, total=0).code
    'not split'
    """

    code: ClassVar[str] = ""
    name: str


@dataclass(frozen=True)
class CollectiveViolation(Violation):
    """Collectives that should not be there, or take too many bytes.

    Attributes:
        stage: who added the collectives: `"propagated"` (an estimate), `"partitioned"`
            or `"compiled"`.
        target: the target they were compiled for; `""` for an estimate.
        collectives: the collectives.
        over: the mesh axes that the expectation named.
        requests: what was requested for each argument, as far as that is known.
    """

    stage: str
    target: str
    collectives: tuple[Collective, ...]
    over: tuple[str, ...]
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class UnexpectedCollectives(CollectiveViolation):
    """Collectives that should not be there.

    Attributes:
        kind: the kind that the expectation named; `""` for any.
    """

    code: ClassVar[str] = "collectives"
    kind: str


@dataclass(frozen=True)
class TooManyBytes(CollectiveViolation):
    """Collectives that take more bytes than a limit.

    Attributes:
        limit: the bytes that are allowed.
        per: what the limit is for: a kind of collective, `"step"` or `"collective"`.
    """

    code: ClassVar[str] = "too much"
    limit: int
    per: str


@dataclass(frozen=True)
class NotEnoughMemory(Violation):
    """A program or audit that needs more memory than a limit or a device has.

    Attributes:
        counted: what the bytes are of: `"arrays"` of an audit, `"arguments"` of a
            program, `"ends"` (arguments and results of a plan) or `"compiled"`.
        target: the target it was compiled for; `""` if it was not.
        fit: the bytes it needs on each device, and those available.
        arrays: its arrays.
        large: what fills the memory of a compiled program; None if nothing was compiled.
    """

    code: ClassVar[str] = "too large"
    counted: str
    target: str
    fit: Fit
    arrays: tuple[HeldArray, ...]
    large: TooLarge | None = None


@dataclass(frozen=True)
class NotSplit(Violation):
    """Arrays that are not split, with too large a share of the bytes.

    Attributes:
        arrays: the arrays that are not split.
        share: the share of the bytes that should be split.
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
        lock: the name of the lock.
    """

    code: ClassVar[str] = "differs"
    differences: LockDiff
    lock: str


@dataclass(frozen=True)
class NothingToCheck(Violation):
    """A program with an error, which leaves nothing to check.

    Attributes:
        error: the error.
    """

    code: ClassVar[str] = "nothing"
    error: Failure
