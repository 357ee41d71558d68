"""Why a compile or run ended early, and how processes ended."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from shardviz.core.format import bytes_text, joined
from shardviz.core.program.failure import Exit, Failure, Meaning, WorkerEnd

_OPENINGS = {
    "trace": "jax could not trace the function.",
    "lower": "jax could not lower the program.",
    "compile": "The compiler refused the program.",
    "place": "The arguments could not be placed on the devices.",
    "run": "The program failed while it ran.",
    "check": "The results could not be checked.",
}


def failure(error: Failure) -> str:
    """A failure, as `report.error.message`.

    >>> failure(Failure("trace", "TypeError: got (2,) and (3,).", code="raised"))
    'jax could not trace the function. TypeError: got (2,) and (3,).'
    """
    words = _without_advice(error)
    if arrays := error.fields.get("arrays"):
        words = f"{words.rstrip()} {arrays}"
    return error.fields.get("who", "") + words


def _without_advice(error: Failure) -> str:
    fields, said = error.fields, error.said
    match error.code:
        case "raised":
            opening = _OPENINGS.get(error.stage, "It failed.")
            return f"{opening} {said}{_hint(fields)}"
        case "explicit axes":
            operation = fields["operation"]
            return f"With Explicit axes jax refuses {operation} here. {said}"
        case "memory":
            return f"The memory of the machine, or of this process, ran out. {said}"
        case "system":
            opening = "The system refused what this needs, such as a file or a process."
            return f"{opening} {said}"
        case "several processes":
            return f"{fields['meaning']} jax says: {said}"
        case "no platform":
            platforms = fields["platforms"]
            return (
                f"jax cannot start: JAX_PLATFORMS is {platforms!r}, and it finds no such"
                f" device here. Set JAX_PLATFORMS={platforms},cpu before jax starts, or"
                " leave it out."
            )
        case "cancelled":
            return f"Cancelled {_when(fields)}."
        case "callback":
            return (
                f"A callback raised {said}. XLA cannot end a run where the other devices"
                " wait for the one that called, so the worker process was ended."
            )
    return said


def _hint(fields: Mapping[str, object]) -> str:
    """What helps against an error of XLA that says little."""
    match fields.get("hint"):
        case "not on cpu":
            return (
                " XLA's compiler for CPUs lacks this, simulated ones included. Those for"
                " TPUs and GPUs may have it, and need no such hardware to compile:"
                " target='tpu:v5e:2x2' or 'gpu:h100:1x8'."
            )
        case "memory kinds":
            return (
                f" A result is in the memory {fields['own']!r}, where the function puts it,"
                f" and its spec asks for {fields['asked']!r}. Give it as a NamedSharding"
                f" with memory_kind={fields['own']!r}."
            )
    return ""


def _when(fields: Mapping[str, object]) -> str:
    if "done" in fields:
        return f"after {fields['done']} of {fields['repeat']} runs"
    where = "in" if fields.get("busy") else "before"
    return f"{where} the stage {fields['in_stage']!r}"


# What jax, XLA and its coordination service mean where several processes run.
_MEANINGS = {
    "spread array": (
        "An array lies on devices of several processes, and each process can read its own"
        " shards only. Pass it to the function as an argument and not by closing over it;"
        " read array.addressable_shards, or have every process gather it:"
        " jax.experimental.multihost_utils.process_allgather(array, tiled=True)."
    ),
    "local data": (
        "What this process gives does not fit the array over several processes. Rows of"
        " its own go to jax.make_array_from_process_local_data (sv.process_rows says"
        " which); a number or a numpy array that stands for all of an array must be the"
        " same in every process, and jax.make_array_from_callback splits it."
    ),
    "other devices": (
        "An array over several processes can go to another order of the same devices only,"
        " not to other devices. Use a mesh of the same devices, or gather it first."
    ),
    "process lost": (
        "{who} ended, hangs, or waits for another process that skipped a collective. Look"
        " at what each process printed before, and whether the system ended it for lack of"
        " memory. All processes must be started again."
    ),
    "coordinator lost": (
        "Process 0, which coordinates the others, has ended, hangs or cannot be reached:"
        " jax ended the others. Look at what process 0 printed. All processes must be"
        " started again."
    ),
    "not joined": (
        "The processes did not come together in jax.distributed.initialize. Call it before"
        " anything that uses jax; start all processes together, each with a process_id of"
        " its own, and look whether all can reach the coordinator's address."
    ),
    "no memory": (
        "Memory ran out in this process, which the others then wait for. Split the arrays"
        " over more devices, make them smaller, or start fewer processes on one machine."
    ),
}


def meaning(fact: Meaning) -> str:
    """What an error means where several processes run.

    >>> meaning(Meaning("process lost", processes=(1,))).partition(",")[0]
    'Process 1 ended'
    """
    who = "A process"
    if fact.processes:
        noun = "Process" if len(fact.processes) == 1 else "Each of the processes"
        who = f"{noun} {joined(sorted(fact.processes))}"
    return _MEANINGS[fact.code].format(who=who)


_SIGNALS = {
    "SIGKILL": "killed from outside, often by the system where memory runs out",
    "SIGABRT": "aborted: the compiler or runtime met a state that it cannot go on from",
    "SIGSEGV": "crashed: a fault in memory, inside the compiler or a library",
    "SIGBUS": "crashed: memory that should be there is not, often because /dev/shm is full",
    "SIGTERM": "asked to end from outside",
}


def process_exit(fact: Exit) -> str:
    """An exit code or signal as people say it.

    >>> process_exit(Exit(-9))
    'killed from outside, often by the system where memory runs out (SIGKILL)'
    >>> process_exit(Exit(3)), process_exit(Exit(None))
    ('it left with exit code 3', 'it left without saying why')
    """
    if fact.code is None:
        return "it left without saying why"
    if fact.code >= 0:
        return f"it left with exit code {fact.code}"
    try:
        name = signal.Signals(-fact.code).name
    except ValueError:
        name = f"signal {-fact.code}"
    if name not in _SIGNALS:
        return f"ended by {name}"
    words = _SIGNALS[name]
    if fact.by_system is not None:
        words = "killed from outside"
        if fact.by_system:
            words = "ended by the system, as memory ran out"
    return f"{words} ({name})"


def worker_end(fact: WorkerEnd) -> str:
    """Why a worker process ended before it answered.

    >>> print(worker_end(WorkerEnd("too long", "run", seconds=60)))
    The worker process was ended after 60 s in the stage 'run': that is the limit. ...
    """
    where = f" in the stage {fact.stage!r}" if fact.stage else ""
    if fact.code == "exit":
        said = f" It said: {fact.said}" if fact.said else ""
        return (
            f"The worker process ended{where}: {process_exit(fact.exit)}.{said} Your kernel"
            " is not touched, and the next compile gets a new worker."
        )
    if fact.code == "too long":
        return (
            f"The worker process was ended after {fact.seconds:.3g} s{where}: that is the"
            " limit. It may hang, or need longer: give it more time, or a smaller program."
        )
    why = "the machine's memory was about to run out"
    if fact.limit is not None:
        why = f"may hold {bytes_text(fact.limit)}"
    return (
        f"The worker process was ended{where}: it held {bytes_text(fact.held)} and {why}."
        " Compile a smaller program, fewer devices, or on a machine with more memory."
    )


SENTENCES = {
    Failure: failure,
    Meaning: meaning,
    Exit: process_exit,
    WorkerEnd: worker_end,
}
