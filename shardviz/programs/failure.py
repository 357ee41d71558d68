"""Why a compile or run failed or was cancelled, and how processes ended.

The sentences are in `words/failures.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardviz.base.display import Fact, sentence
from shardviz.base.plain import Plain
from shardviz.programs.refusals import TypeRefusal

#: The group of a process that ended: this kernel's worker, engines that `sv.hosts`
#: started, or engines that the user started.
Group = Literal["worker", "own", "foreign"]


class FailureCause:
    """Why a job failed; `Failure.said` has the text of the error.

    >>> print(Failure("run", cause=CancelledAfter(3, repeat=10)).message)
    Cancelled after 3 of 10 runs.
    """


@dataclass(frozen=True)
class Raised(FailureCause):
    """jax, XLA or the user's function raised an exception."""


@dataclass(frozen=True)
class OwnBug(FailureCause):
    """shardviz's own code raised an exception."""


@dataclass(frozen=True)
class RaisedForNumbers(FailureCause):
    """A function raised an exception for a tuple of numbers, perhaps meant as a shape."""


@dataclass(frozen=True)
class NotOnCpu(FailureCause):
    """XLA's CPU compiler doesn't implement an operation."""


@dataclass(frozen=True)
class SplitByPartOfAxis(FailureCause):
    """XLA split a result by part of a mesh axis, which a PartitionSpec can't express.

    XLA does so if a result is constrained to an axis that doesn't divide its size: of
    axis size 4 and array size 10, XLA uses their common factor 2.
    """


@dataclass(frozen=True)
class RefusedByTypes(FailureCause):
    """jax refuses an operation on Explicit mesh axes.

    Attributes:
        operation: jax's name for the operation.
    """

    operation: str


@dataclass(frozen=True)
class NeedsMoreMemory(FailureCause):
    """The compiler rejects the program because a device has too little memory.

    Attributes:
        buffers: the largest buffers, as a fact from `compiled/too_large.py`.
    """

    buffers: Fact


@dataclass(frozen=True)
class HostMemory(FailureCause):
    """This machine or process ran out of host memory."""


@dataclass(frozen=True)
class SystemRefused(FailureCause):
    """The operating system refused a request, such as opening a file."""


@dataclass(frozen=True)
class SpreadArray(FailureCause):
    """An array is spread over devices of several processes."""


@dataclass(frozen=True)
class LocalData(FailureCause):
    """This process's data doesn't fit an array that spans several processes."""


@dataclass(frozen=True)
class ProcessLost(FailureCause):
    """One of several processes ended or hangs."""


@dataclass(frozen=True)
class MissingPlatform(FailureCause):
    """jax finds no device for the platforms named in an environment variable.

    Attributes:
        variable: name of the environment variable.
        platforms: its value.
    """

    variable: str
    platforms: str


class Cancelled(FailureCause):
    """The user cancelled the job."""


@dataclass(frozen=True)
class CancelledBefore(Cancelled):
    """The user cancelled the job before a stage began.

    Attributes:
        stage: name of the stage.
    """

    stage: str


@dataclass(frozen=True)
class CancelledIn(Cancelled):
    """The user cancelled the job while another process ran a stage.

    Attributes:
        stage: name of the stage.
    """

    stage: str


@dataclass(frozen=True)
class CancelledAfter(Cancelled):
    """The user cancelled the job between two executions.

    Attributes:
        done: number of executions that had finished.
        repeat: number of executions requested.
    """

    done: int
    repeat: int


@dataclass(frozen=True)
class OthersWait(FailureCause):
    """One of several processes failed, and others wait for it in a collective.

    Attributes:
        process: rank of the process that failed.
        waiting: ranks of the processes that wait for it.
        group: the group that the processes belong to.
    """

    process: int
    waiting: tuple[int, ...]
    group: Group


@dataclass(frozen=True)
class CallbackRaised(FailureCause):
    """A callback raised an exception, and XLA could not end the run."""


@dataclass(frozen=True)
class Failure(Plain):
    """Why a compile or run failed or was cancelled.

    Attributes:
        stage: `"program"`, `"target"`, `"trace"`, `"lower"`, `"compare"` (between
            processes), `"compile"`, `"place"`, `"run"`, `"check"` or `"cancelled"`.
        said: the error message, on one line if it comes from jax or XLA.
        source: the user's source line that caused the error; `""` if unknown.
        cause: what else is known about the error; None if `said` is a full sentence.
        processes: which of several processes failed, as text; `""` for one process.
        largest_arrays: the program's largest arrays if memory ran out; otherwise None.
        lacks_memory: True if memory ran out, or would have run out.
        refusals: every operation that jax refuses for its operand types, each with
            edits that jax accepts; empty for other errors.

    >>> print(Failure("trace", "The shapes do not fit.", "block.py:31"))
    trace: The shapes do not fit. (block.py:31)
    """

    _adds = ("message",)

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
        """The error as text."""
        return sentence(self)

    @property
    def located(self) -> str:
        """The error as text, with its source line."""
        return self.message + (f" ({self.source})" if self.source else "")

    def __str__(self) -> str:
        return f"{self.stage}: {self.located}"


@dataclass(frozen=True, kw_only=True)
class ProcessEnd(Fact):
    """How a process ended or was killed before it answered.

    Attributes:
        stage: the stage that the process was in; `""` if none.
        process: which process ended, as text; `""` for the worker.
        group: the group that the process belonged to.
    """

    stage: str = ""
    process: str = ""
    group: Group = "worker"

    @property
    def lacks_memory(self) -> bool:
        """True if the process certainly ran out of memory."""
        return isinstance(self, TookTooMuchMemory)


@dataclass(frozen=True, kw_only=True)
class Exited(ProcessEnd):
    """The process exited unexpectedly.

    Attributes:
        code: exit code as Python reports it, negative for a signal; None if unknown.
        printed: the lines the process printed about the cause.
    """

    code: int | None = None
    printed: str = ""


@dataclass(frozen=True, kw_only=True)
class Lost(ProcessEnd):
    """The process ended on another machine, and its exit code is unknown."""


@dataclass(frozen=True, kw_only=True)
class Stopped(ProcessEnd):
    """A signal stopped the process.

    Attributes:
        seconds: how long the process has been stopped.
    """

    seconds: float


@dataclass(frozen=True, kw_only=True)
class TookTooLong(ProcessEnd):
    """The process was killed because it exceeded its time limit.

    Attributes:
        seconds: the time limit.

    >>> print(str(TookTooLong(stage="run", seconds=60)).split(".")[0])
    The worker process was ended at its limit of 60 s in the stage 'run'
    """

    seconds: float


@dataclass(frozen=True, kw_only=True)
class TookTooMuchMemory(ProcessEnd):
    """The process was killed because it exceeded its memory limit.

    Attributes:
        used: bytes that the process used.
        limit: bytes that the process may use.

    >>> TookTooMuchMemory(stage="run", used=2 << 30, limit=1 << 30).lacks_memory
    True
    """

    used: int
    limit: int


@dataclass(frozen=True)
class GroupEnd(Fact):
    """A group of processes is no longer usable, although no process failed.

    Attributes:
        name: name of the group.
    """

    name: str


@dataclass(frozen=True)
class GroupClosed(GroupEnd):
    """The group was closed."""


@dataclass(frozen=True)
class GroupForked(GroupEnd):
    """This process is a fork, and the group belongs to its parent."""


@dataclass(frozen=True)
class GroupInterrupted(GroupEnd):
    """A call was interrupted, and its processes were ended."""
