"""Failure: why a compile or run ended early. `wording/failures.py` says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardviz.core.display import Fact, sentence


@dataclass(frozen=True)
class Failure:
    """Why a compile or run ended early.

    Attributes:
        stage: `"program"`, `"target"`, `"trace"`, `"lower"`, `"compare"` (of several
            processes), `"compile"`, `"place"`, `"run"`, `"check"` or `"cancelled"`.
        said: what an error said: our own in full, one of jax or XLA on one line.
        source: the line of the user's code it comes from, where known.
        code: what kind of failure it is, of `wording/failures.py`; `""` where `said`
            says all that there is to say.
        fields: what else the words of that code need.
        lacks_memory: whether memory ran out, or would have.

    >>> print(Failure("trace", "The shapes do not fit.", "block.py:31"))
    trace: The shapes do not fit. (block.py:31)
    """

    stage: str
    said: str = ""
    source: str = ""
    code: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict, hash=False)
    lacks_memory: bool = False

    @property
    def message(self) -> str:
        """The error in words, made to be shown."""
        return sentence(self)

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return f"{self.stage}: {self.message}{where}"


@dataclass(frozen=True)
class Meaning(Fact):
    """What an error of jax means where several processes run one program.

    Attributes:
        code: one of the codes of `wording/failures.py`.
        processes: the processes that it names.
    """

    code: str
    processes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Exit(Fact):
    """How a process ended.

    Attributes:
        code: as Python has it: negative for a signal; None where it is not known.
        by_system: of a SIGKILL, whether the system sent it as memory ran out; None
            where that is not known.

    >>> Exit(-9, by_system=True).lacks_memory
    True
    """

    code: int | None
    by_system: bool | None = None

    @property
    def lacks_memory(self) -> bool:
        """Whether it is known that memory ran out."""
        return self.by_system is True


@dataclass(frozen=True)
class WorkerEnd(Fact):
    """Why a worker process ended, or was ended, before it answered.

    Attributes:
        code: `"exit"` where it ended by itself, `"too long"`, or `"memory"` where it
            held more than it may, or more than the machine has.
        stage: the stage it was in; `""` for none.
        exit: how it ended by itself.
        said: what it printed of the cause.
        seconds: the limit of time.
        held, limit: bytes of memory that it held, and may hold.
    """

    code: str
    stage: str
    exit: Exit = Exit(None)
    said: str = ""
    seconds: float = 0.0
    held: int = 0
    limit: int | None = None

    @property
    def lacks_memory(self) -> bool:
        """Whether memory ran out, or was about to."""
        return self.code == "memory" or self.exit.lacks_memory
