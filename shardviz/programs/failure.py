"""Failure: why a compile or run ended early. `words/failures.py` says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardviz.base.display import Fact, sentence
from shardviz.programs.refusals import TypeRefusal


@dataclass(frozen=True)
class Failure:
    """Why a compile or run ended early.

    Attributes:
        stage: `"program"`, `"target"`, `"trace"`, `"lower"`, `"compare"` (of several
            processes), `"compile"`, `"place"`, `"run"`, `"check"` or `"cancelled"`.
        said: what an error said: our own in full, one of jax or XLA on one line.
        source: the line of the user's code it comes from, where known.
        code: what kind of failure it is, of `words/failures.py`; `""` where `said`
            says all that there is to say.
        fields: what else the words of that code need.
        lacks_memory: whether memory ran out, or would have.
        refusals: where jax refused an operation for the types of its operands: that
            one and all that it would refuse after it, with edits that it accepts.

    >>> print(Failure("trace", "The shapes do not fit.", "block.py:31"))
    trace: The shapes do not fit. (block.py:31)
    """

    stage: str
    said: str = ""
    source: str = ""
    code: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict, hash=False)
    lacks_memory: bool = False
    refusals: tuple[TypeRefusal, ...] = ()

    @property
    def message(self) -> str:
        """The error in words, made to be shown."""
        return sentence(self)

    @property
    def located(self) -> str:
        """The error in words, with its line."""
        return self.message + (f" ({self.source})" if self.source else "")

    def __str__(self) -> str:
        return f"{self.stage}: {self.located}"


@dataclass(frozen=True)
class ProcessEnd(Fact):
    """Why a process of ours ended, or was ended, before it answered.

    Attributes:
        code: `"exit"` where it ended by itself, `"too long"`, `"memory"` where it held
            more than it may, `"stopped"` by a signal, or `"lost"` where only that is
            known.
        stage: the stage it was in; `""` for none.
        exit: its exit code as Python has it, negative for a signal; None where not known.
        said: what it printed of the cause.
        seconds: the limit of time, or for how long it was stopped.
        held, limit: bytes of memory that it held, and may hold.
        who: which process; `""` for the worker.
        after: what is left then: `"worker"`, or of several processes `"own"` or
            `"foreign"` ones.

    >>> ProcessEnd("memory", "run", held=2 << 30, limit=1 << 30).lacks_memory
    True
    """

    code: str
    stage: str = ""
    exit: int | None = None
    said: str = ""
    seconds: float = 0.0
    held: int = 0
    limit: int = 0
    who: str = ""
    after: str = "worker"

    @property
    def lacks_memory(self) -> bool:
        """Whether it is known that memory ran out."""
        return self.code == "memory"


@dataclass(frozen=True)
class GroupEnd(Fact):
    """Why several processes cannot be used any more, where none of them ended by itself.

    Attributes:
        code: `"closed"`, `"forked"` in a child of the process that started them, or
            `"interrupted"`.
        name: what they are called.
    """

    code: str
    name: str
