"""What Explicit axes would accept, as pure data: the answer to a ShardingTypeError."""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.core.layout.spec import Spec
from shardviz.core.program.report import Collective


@dataclass(frozen=True)
class Choice:
    """One legal answer to a ShardingTypeError.

    Attributes:
        out_sharding: what to write, as the spec of the result.
        collectives: what it costs, as an estimate.
        words: the same in one sentence.

    >>> Choice(Spec.parse("x, None"), (), "Nothing moves.").bytes_per_device
    0
    """

    out_sharding: Spec
    collectives: tuple[Collective, ...]
    words: str

    @property
    def bytes_per_device(self) -> int:
        """The bytes that its collectives are about, on each device."""
        return sum(c.bytes_per_device for c in self.collectives)


@dataclass(frozen=True)
class Diagnosis:
    """Why a program whose axes are Explicit was refused, and what would be accepted.

    Attributes:
        op: the operation that jax could not give a type, such as `dot_general`.
        source: the user's file and line.
        problem: what is ambiguous, in one sentence.
        operands: type and sharding of each operand, as jax writes them.
        choices: the legal shardings of the result, the cheapest first.

    >>> Diagnosis("dot_general", "f.py:3", "Both sides contract over model.").choices
    ()
    """

    op: str
    source: str
    problem: str
    operands: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
