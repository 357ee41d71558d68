"""Describes why a compile or run failed or was cancelled, and how processes ended."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from shardviz.base.format import clause, joined, told_apart
from shardviz.programs.failure import (
    CallbackRaised,
    CancelledAfter,
    CancelledBefore,
    CancelledIn,
    Exited,
    Failure,
    FailureCause,
    GroupClosed,
    GroupEnd,
    GroupForked,
    GroupInterrupted,
    HostMemory,
    LocalData,
    Lost,
    MissingPlatform,
    NeedsMoreMemory,
    NotOnCpu,
    OthersWait,
    OwnBug,
    ProcessEnd,
    ProcessLost,
    Raised,
    RaisedForNumbers,
    RefusedByTypes,
    SplitByPartOfAxis,
    SpreadArray,
    Stopped,
    SystemRefused,
    TookTooLong,
    TookTooMuchMemory,
)
from shardviz.programs.words.refusals import refusals

_OPENINGS = {
    "trace": "jax could not trace the function.",
    "lower": "jax could not lower the program.",
    "propagate": "Shardy could not propagate the shardings.",
    "compile": "The compiler refused the program.",
    "place": "The arguments could not be placed on the devices.",
    "run": "The program failed while it ran.",
    "check": "The results could not be checked.",
}


def failure(error: Failure) -> str:
    """Describes a failure, as in `report.error.message`.

    >>> failure(Failure("trace", "TypeError: got (2,) and (3,).", cause=Raised()))
    'jax could not trace the function. TypeError: got (2,) and (3,).'
    """
    # The largest arrays are listed whenever memory ran out.
    words = _without_advice(error)
    if error.refusals:
        words = f"{words.rstrip('.')}.{refusals(error.refusals)}"
    if error.largest_arrays is not None:
        words = f"{words.rstrip()} {error.largest_arrays}"
    return clause("{}: ", error.processes) + words


def _without_advice(error: Failure) -> str:
    said = error.said
    match error.cause:
        case Raised():
            return f"{_OPENINGS.get(error.stage, 'It failed.')} {said}"
        case OwnBug():
            return (
                f"shardviz failed, not your program: {said.rstrip('.')}. Please report this"
                " bug with the program that shows it."
            )
        case RaisedForNumbers():
            return (
                f"{_OPENINGS['trace']} {said.rstrip('.')}. An argument is a tuple of"
                " numbers, and a tree to jax. If it is a shape, write sv.array((32, 64)) or"
                " jax.ShapeDtypeStruct((32, 64), 'float32')."
            )
        case NotOnCpu():
            return (
                f"{_OPENINGS['compile']} {said} XLA's compiler for CPUs, simulated ones"
                " included, does not support this. The compilers for TPUs and GPUs may, and"
                " they need no such hardware: target='tpu:v5e:2x2' or 'gpu:h100:1x8'."
            )
        case SplitByPartOfAxis():
            return (
                "XLA compiled the program, but jax cannot describe how a result is split."
                " The result is constrained to a mesh axis that does not divide its size,"
                " and XLA splits it by part of that axis. Name the result's sharding in"
                f" out_shardings, or pad it to a size that the axis divides. jax says: {said}"
            )
        case RefusedByTypes(operation):
            return f"With Explicit axes jax refuses {operation} here. {said}"
        case NeedsMoreMemory(buffers):
            return str(buffers)
        case HostMemory():
            return f"The machine, or this process, ran out of memory. {said}"
        case SystemRefused():
            opening = (
                "The operating system refused a resource, such as a file or a process."
            )
            return f"{opening} {said}"
        case SpreadArray() | LocalData() | ProcessLost():
            return f"{_AMONG_PROCESSES[type(error.cause)]} jax says: {said}"
        case MissingPlatform(variable, platforms):
            others = f"{platforms},cpu" if variable == "JAX_PLATFORMS" else "cpu"
            return (
                f"jax cannot start: {variable} is {platforms!r}, and jax finds no such"
                f" device here. Set {variable}={others} before jax starts, or leave it"
                " unset."
            )
        case CancelledBefore(stage):
            return f"Cancelled before the stage {stage!r}."
        case CancelledIn(stage):
            return f"Cancelled in the stage {stage!r}."
        case CancelledAfter(done, repeat):
            return f"Cancelled after {done} of {repeat} runs."
        case OthersWait(process, waiting, group):
            processes = joined(f"process {rank}" for rank in waiting)
            return (
                f"Process {process}: {said} P{processes[1:]} would wait for it."
                f" {_AFTER[group]}"
            )
        case CallbackRaised():
            return (
                f"A callback raised {said}. XLA cannot end a run in which other devices wait"
                " for the device that called Python, so the worker process was ended."
            )
    return said


# Explanations of jax and XLA errors when several processes run.
_AMONG_PROCESSES: Mapping[type[FailureCause], str] = {
    SpreadArray: (
        "An array lies on devices of several processes, and each process can read its own"
        " shards only. Pass it to the function as an argument instead of closing over it,"
        " read array.addressable_shards, or have every process gather it:"
        " jax.experimental.multihost_utils.process_allgather(array, tiled=True)."
    ),
    LocalData: (
        "The data that this process gives does not fit the array, which is spread over"
        " several processes. Pass each process's own rows to"
        " jax.make_array_from_process_local_data (sv.process_rows lists them). A number or"
        " numpy array given for the whole array must be the same in every process."
    ),
    ProcessLost: (
        "A process ended, hangs, or waits for another one that skipped a collective. Look"
        " at the earlier output of each process, and start all of them again."
    ),
}


_SIGNALS = {
    "SIGKILL": "killed from outside, often by the system when memory runs out",
    "SIGABRT": "aborted: the compiler or runtime reached a state that it cannot continue from",
    "SIGSEGV": "crashed: a memory fault inside the compiler or a library",
    "SIGBUS": "crashed: a page of memory is missing, often because /dev/shm is full",
    "SIGTERM": "terminated from outside",
}
_AFTER = {
    "worker": "Your kernel is not affected, and the next compile gets a new worker.",
    "own": (
        "The other processes were ended too, because they would wait for it. Your kernel"
        " is not affected: sv.hosts starts other processes."
    ),
    "foreign": (
        "The other processes of its group are lost with it. Your kernel is not affected:"
        " restart the engines where they were started, and call sv.hosts again."
    ),
}


def _exit(code: int | None) -> str:
    """Describes an exit code or signal.

    >>> _exit(3), _exit(-15), _exit(None)
    ('it exited with code 3', 'terminated from outside (SIGTERM)', 'its exit code is unknown')
    """
    if code is None:
        return "its exit code is unknown"
    # Negative codes are signal numbers.
    if code >= 0:
        return f"it exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{_SIGNALS.get(name, 'ended by a signal')} ({name})"


def process_end(fact: ProcessEnd) -> str:
    """Describes why a process ended before it answered."""
    process = fact.process or "The worker process"
    in_stage = clause(" in the stage {!r}", fact.stage)
    after = _AFTER[fact.group]
    match fact:
        case Exited(code=code, printed=printed):
            said = clause(" It printed: {}", printed)
            return f"{process} ended{in_stage}: {_exit(code)}.{said} {after}"
        case Lost():
            return f"{process} ended{in_stage}; its output is on the machine where it ran. {after}"
        case Stopped(seconds=seconds):
            return f"{process} has been stopped{in_stage} for {seconds:.0f} s. {after}"
        case TookTooLong(seconds=seconds):
            return (
                f"{process} was ended at its limit of {seconds:.3g} s{in_stage}. It may have"
                " hung, or need longer: give it more time, or a smaller program."
            )
        case TookTooMuchMemory(used=used, limit=limit):
            held, most = told_apart([used, limit])
            return (
                f"{process} was ended{in_stage}: it held {held} of memory, and the limit is"
                f" {most}. Compile a smaller program, for fewer devices, or on a machine with"
                " more memory."
            )
    raise TypeError(type(fact))


_GROUP_ENDS: Mapping[type[GroupEnd], str] = {
    GroupClosed: "The processes were closed. Start others with sv.hosts.",
    GroupForked: (
        "The processes belong to the process that started them, and this one is a fork of"
        " it. Start others here with sv.hosts."
    ),
    GroupInterrupted: (
        "The last call was interrupted, which ended the processes. Start others with"
        " sv.hosts."
    ),
}


def group_end(fact: GroupEnd) -> str:
    """Describes why a group of processes is no longer usable."""
    return f"{fact.name or 'The engines'}: {_GROUP_ENDS[type(fact)]}"


SENTENCES = {
    Failure: failure,
    **dict.fromkeys(
        (Exited, Lost, Stopped, TookTooLong, TookTooMuchMemory), process_end
    ),
    **dict.fromkeys(_GROUP_ENDS, group_end),
}
