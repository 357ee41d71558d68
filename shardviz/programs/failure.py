"""Why a compile or run ended early, and how processes ended.

`words/failures.py` has the sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardviz.base.display import Fact, sentence
from shardviz.programs.refusals import TypeRefusal

#: Which processes an ended one belonged to: the worker of this kernel, engines that
#: `sv.hosts` started, or engines started by others.
Group = Literal["worker", "own", "foreign"]


class FailureCause:
    """The cause of a failure, besides the text in `Failure.said`.

    >>> print(Failure("run", cause=CancelledAfter(3, repeat=10)).message)
    Cancelled after 3 of 10 runs.
    """


@dataclass(frozen=True)
class Raised(FailureCause):
    """jax, XLA or the user's function raised an exception."""


@dataclass(frozen=True)
class NotOnCpu(FailureCause):
    """XLA's compiler for CPUs lacks an operation."""


@dataclass(frozen=True)
class RefusedByTypes(FailureCause):
    """jax refuses an operation on Explicit axes.

    Attributes:
        operation: what jax calls it.
    """

    operation: str


@dataclass(frozen=True)
class NeedsMoreMemory(FailureCause):
    """A compiler refused the program, because a device has too little memory.

    Attributes:
        buffers: the largest buffers, a fact of `compiled/too_large.py`.
    """

    buffers: Fact


@dataclass(frozen=True)
class HostMemory(FailureCause):
    """The memory of this machine or process ran out."""


@dataclass(frozen=True)
class SystemRefused(FailureCause):
    """The operating system refused something, such as a file or a process."""


@dataclass(frozen=True)
class SpreadArray(FailureCause):
    """An array is on devices of several processes."""


@dataclass(frozen=True)
class LocalData(FailureCause):
    """The data of this process does not fit an array over several processes."""


@dataclass(frozen=True)
class ProcessLost(FailureCause):
    """One of several processes ended or hangs."""


@dataclass(frozen=True)
class MissingPlatform(FailureCause):
    """jax finds no device of the platforms that a variable names.

    Attributes:
        variable: the environment variable.
        platforms: its value.
    """

    variable: str
    platforms: str


class Cancelled(FailureCause):
    """The user cancelled the job."""


@dataclass(frozen=True)
class CancelledBefore(Cancelled):
    """The user cancelled the job before a stage.

    Attributes:
        stage: the stage.
    """

    stage: str


@dataclass(frozen=True)
class CancelledIn(Cancelled):
    """The user cancelled the job while another process was in a stage.

    Attributes:
        stage: the stage.
    """

    stage: str


@dataclass(frozen=True)
class CancelledAfter(Cancelled):
    """The user cancelled the job between two executions.

    Attributes:
        done: how many executions were done.
        repeat: how many were asked for.
    """

    done: int
    repeat: int


@dataclass(frozen=True)
class OthersWait(FailureCause):
    """One of several processes failed, and others wait for it in a collective.

    Attributes:
        process: the rank of the process that failed.
        waiting: the ranks of the processes that wait.
        group: which processes they are.
    """

    process: int
    waiting: tuple[int, ...]
    group: Group


@dataclass(frozen=True)
class CallbackRaised(FailureCause):
    """A callback raised, and XLA could not end the run."""


@dataclass(frozen=True)
class Failure:
    """Why a compile or run ended early.

    Attributes:
        stage: `"program"`, `"target"`, `"trace"`, `"lower"`, `"compare"` (of several
            processes), `"compile"`, `"place"`, `"run"`, `"check"` or `"cancelled"`.
        said: the text of an error: our own in full, one of jax or XLA on one line.
        source: the line of the user's code that it comes from; `""` if unknown.
        cause: what else is known; None if `said` is the complete sentence.
        processes: which of several processes failed, as text; `""` for one process.
        largest_arrays: the program's largest arrays, if memory ran out; else None.
        lacks_memory: True if memory ran out, or would have.
        refusals: if jax refused an operation for the types of its operands, that one
            and all that it would refuse after it, with edits that it accepts.

    >>> print(Failure("trace", "The shapes do not fit.", "block.py:31"))
    trace: The shapes do not fit. (block.py:31)
    """

    stage: str
    said: str = ""
    source: str = ""
    cause: FailureCause | None = None
    processes: str = ""
    largest_arrays: object = None
    lacks_memory: bool = False
    refusals: tuple[TypeRefusal, ...] = ()

    @property
    def message(self) -> str:
        """The error in words."""
        return sentence(self)

    @property
    def located(self) -> str:
        """The error in words, with its source line."""
        return self.message + (f" ({self.source})" if self.source else "")

    def __str__(self) -> str:
        return f"{self.stage}: {self.located}"


@dataclass(frozen=True, kw_only=True)
class ProcessEnd(Fact):
    """How a process of ours ended, or was ended, before it answered.

    Attributes:
        stage: the stage it was in; `""` for none.
        process: which process, as text; `""` for the worker.
        group: which processes it belonged to.
    """

    stage: str = ""
    process: str = ""
    group: Group = "worker"

    @property
    def lacks_memory(self) -> bool:
        """True if memory ran out for certain."""
        return isinstance(self, TookTooMuchMemory)


@dataclass(frozen=True, kw_only=True)
class Exited(ProcessEnd):
    """The process ended without being asked to.

    Attributes:
        code: its exit code as Python has it, negative for a signal; None if unknown.
        printed: the lines it printed about the cause.
    """

    code: int | None = None
    printed: str = ""


@dataclass(frozen=True, kw_only=True)
class Lost(ProcessEnd):
    """The process ended on another machine, and nothing else is known."""


@dataclass(frozen=True, kw_only=True)
class Stopped(ProcessEnd):
    """A signal stopped the process.

    Attributes:
        seconds: for how long by now.
    """

    seconds: float


@dataclass(frozen=True, kw_only=True)
class TookTooLong(ProcessEnd):
    """The process was ended at a limit of time.

    Attributes:
        seconds: the limit.

    >>> print(str(TookTooLong(stage="run", seconds=60)).split(":")[0])
    The worker process was ended after 60 s in the stage 'run'
    """

    seconds: float


@dataclass(frozen=True, kw_only=True)
class TookTooMuchMemory(ProcessEnd):
    """The process was ended at a limit of memory.

    Attributes:
        used: the bytes that it used.
        limit: the bytes that it may use.

    >>> TookTooMuchMemory(stage="run", used=2 << 30, limit=1 << 30).lacks_memory
    True
    """

    used: int
    limit: int


@dataclass(frozen=True)
class GroupEnd(Fact):
    """Several processes cannot be used any more, although none of them failed.

    Attributes:
        name: their name.
    """

    name: str


@dataclass(frozen=True)
class GroupClosed(GroupEnd):
    """The group was closed."""


@dataclass(frozen=True)
class GroupForked(GroupEnd):
    """The group belongs to the process of which this one is a fork."""


@dataclass(frozen=True)
class GroupInterrupted(GroupEnd):
    """A call was interrupted, which ends the processes."""
