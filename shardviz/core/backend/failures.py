"""What went wrong, in words: an exception of the user's program, or how a worker ended.

Of an exception the first that jax said and the user's own line; of a worker its exit code, its
limits, and what it printed of the cause.
"""

from __future__ import annotations

import os
import re
import signal
import traceback
from typing import BinaryIO

import jax

from shardviz.core.backend.rendezvous import store
from shardviz.core.errors import ShardvizError, TargetError
from shardviz.core.format import bytes_text
from shardviz.core.hlo.module import is_user_file, line_in_words
from shardviz.core.program.agreement import processes
from shardviz.core.program.report import Failure

LIMIT = 1200
_TRACE = re.compile(r"Traceback \(most recent call last\):")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')

# What XLA says; what Python's MemoryError becomes; a run that was refused; a worker that was ended.
_OF_MEMORY = (
    "RESOURCE_EXHAUSTED",
    "The memory of the machine",
    " free. Nothing was placed",
    "memory ran out (SIGKILL)",
    "memory was about to run out",
)
_OPENINGS = {
    "trace": "jax could not trace the function.",
    "lower": "jax could not lower the program.",
    "compile": "The compiler refused the program.",
    "place": "The arguments could not be placed on the devices.",
    "run": "The program failed while it ran.",
    "check": "The results could not be checked.",
}
_ELSEWHERE = (
    ". XLA's compiler for CPUs lacks this, simulated ones included. Those for TPUs and GPUs may"
    " have it, and need no such hardware to compile: target='tpu:v5e:2x2' or 'gpu:h100:1x8'."
)
# Stages in which none of the user's code runs, so that an OSError is not the program's.
_OURS = ("target", "lower", "compile", "place", "worker")
_MOST_READ = 1 << 16  # bytes, of the beginning and of the end of what a worker printed
_SIGNALS = {
    "SIGKILL": "killed from outside, often by the system where memory runs out",
    "SIGABRT": "aborted: the compiler or runtime met a state that it cannot go on from",
    "SIGSEGV": "crashed: a fault in memory, inside the compiler or a library",
    "SIGBUS": "crashed: memory that should be there is not, often because /dev/shm is full",
    "SIGILL": "crashed: it met an instruction that this processor does not have",
    "SIGFPE": "crashed: a number was divided by zero, inside the compiler or a library",
    "SIGTERM": "asked to end from outside",
}
_LINES, _LONGEST = 3, 300  # characters of a line
# Who printed the line, and when: `F1122 03:44:06.391162   21499 fft_handler.cc:117] Check failed`.
# Only XLA for GPUs moves such a result back.
_OTHER_MEMORY = re.compile(
    r"XLA sharding override: .*memory_kind=(\w+)\) != .*memory_kind=(?!\1\b)(\w+)\)"
)
_GLOG = re.compile(r"^[IWEF]\d{4} [\d:.]+\s+\d+ ")
# What is printed around the cause: other log lines, stacks, and what Python's fault handler adds.
_NOISE = re.compile(
    r"\s*$|WARNING: All log messages|[IW]\d{4} |\s*@ |\*\*\*|PC: |Extension modules: "
    r"|(?:Current )?[Tt]hread(?:'s C stack trace)? .*\(most recent call first\)|Stack \(most recent"
    r"|Traceback \(most recent|Python runtime state: |\s+File \".*\", line \d+"
    r"|\s+(?:<no Python frame>|Garbage-collecting|Binary file )|  <.*>$"
)
# From the most to the least telling; the first that fits any line is the cause.
_TELLING = [
    re.compile(pattern)
    for pattern in (
        r"^F\d{4} |Check failed",
        r"LLVM ERROR|Assertion .*failed|^terminate called|what\(\):|std::bad_alloc|stack smashing"
        r"|^(?:free|malloc|realloc|munmap_chunk|double free|corrupted|munmap)\b.*[:(]|\bFATAL\b",
        r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b",
        r"^Fatal Python error",
    )
]


def failure(stage: str, error: BaseException) -> Failure:
    """The Failure for an exception that ended a stage.

    >>> failure("trace", TypeError("dot got (2,) and (3,).")).message
    'jax could not trace the function. TypeError: dot got (2,) and (3,).'
    """
    if isinstance(error, ShardvizError):
        return Failure(stage, str(error), source_of(error))
    if words := explain(str(error)) if _is_of_several(error) else "":
        return Failure(stage, f"{words} jax says: {in_words(error)}", source_of(error))
    if words := _no_platform(error):
        return Failure(stage, words, source_of(error))
    opening = _OPENINGS.get(stage, "It failed.")
    if isinstance(error, MemoryError):
        opening = "The memory of the machine, or of this process, ran out."
    elif stage in _OURS and isinstance(error, OSError):
        opening = "The system refused what this needs, such as a file or a process."
    words = in_words(error)
    if "UNIMPLEMENTED" in words and "XLA:CPU" in words:
        words = words.removesuffix(".") + _ELSEWHERE
    if found := _OTHER_MEMORY.search(words):
        words += (
            f" A result is in the memory {found[1]!r}, where the function puts it, and its spec"
            f" asks for {found[2]!r}. Give it as a NamedSharding with memory_kind={found[1]!r}."
        )
    return Failure(stage, f"{opening} {words}", source_of(error))


def raised_by_signal(error: BaseException) -> bool:
    """Whether a signal handler raised an exception, as one that calls `sys.exit` does.

    Python runs a handler in the middle of whatever the main thread does. What it raises is meant
    for the process, and not about the function that was running.
    """
    codes = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        handler = getattr(handler, "func", handler)  # of functools.partial
        called = vars(type(handler)).get("__call__")  # of an object that can be called
        codes.update(getattr(one, "__code__", None) for one in (handler, called))
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _no_platform(error: BaseException) -> str:
    """What to do where jax finds none of the platforms that it is to use, or `""`.

    jax then fails at an assertion, without a word. Even to trace and lower it must start.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    platforms = getattr(jax.config, "jax_platforms", None)
    if not (isinstance(error, AssertionError) and not str(error) and frames and platforms):
        return ""
    if frames[-1].f_globals.get("__name__") != "jax._src.xla_bridge":
        return ""
    return (
        f"jax cannot start: JAX_PLATFORMS is {platforms!r}, and it finds no such device here. Set"
        f" JAX_PLATFORMS={platforms},cpu before jax starts, or leave it out."
    )


def _is_of_several(error: BaseException) -> bool:
    """Whether an exception may come from what several processes do."""
    return store() is not None and not isinstance(error, MemoryError)


def for_lack_of_memory(found: Failure) -> bool:
    """Whether a failure says that memory ran out, or would have, of a device or of the machine.

    >>> for_lack_of_memory(Failure("compile", "RESOURCE_EXHAUSTED: Ran out of memory in hbm."))
    True
    """
    return any(words in found.message for words in _OF_MEMORY)


def in_words(error: BaseException) -> str:
    """The kind of an exception and what it says, on one line.

    What jax advises stands in the last paragraphs, so all of them are kept. A RuntimeError is what
    XLA raises, with pages of buffers or stacks after the first paragraph.

    >>> in_words(ValueError("types differ:\\n\\nfloat32\\nand int32.\\n\\nUse astype."))
    'ValueError: types differ: float32 and int32. Use astype.'
    >>> in_words(RuntimeError("no memory:\\n\\n8 GiB asked for.\\n\\nall buffers"))
    'RuntimeError: no memory: 8 GiB asked for.'
    """
    try:
        text = str(error)
    except Exception as second:  # noqa: BLE001  a foreign __str__ may raise anything
        text = f"(its text raises {type(second).__name__})"
    *before, last = text.strip().split("\n\n")
    paragraph, *more = [*map(_ended, before), last]
    if not isinstance(error, RuntimeError):
        paragraph = " ".join([paragraph, *more])
    elif paragraph.endswith(":") and more:
        paragraph += f" {more[0]}"
    if (trace := _TRACE.search(text)) is not None:  # of a callback: its last line says what it was
        paragraph = f"{text[: trace.start()]} {text.strip().splitlines()[-1]}"
    words = " ".join(paragraph.split())
    words = "".join(c if c.isprintable() else "?" for c in words)
    if len(words) > LIMIT:
        words = f"{words[: LIMIT // 2 - 1]}…{words[-LIMIT // 2 :]}"  # advice is at the end
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _ended(paragraph: str) -> str:
    """A paragraph with a full stop where another one follows it."""
    paragraph = paragraph.strip()
    return paragraph + "." * paragraph[-1:].isalnum()


def said_by(error: BaseException) -> str:
    """What an exception says: our own as it is, another one with its kind.

    >>> said_by(TargetError("It has no mesh.")), said_by(ValueError("no mesh"))
    ('It has no mesh.', 'ValueError: no mesh')
    """
    return str(error) if isinstance(error, ShardvizError) else in_words(error)


def source_of(error: BaseException) -> str:
    """The innermost line of the user's code that an exception passed through, or `""`."""
    frames: list[tuple[str, int | str]] = [
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    if isinstance(error, RuntimeError):  # where a callback failed, its traceback is in the text
        frames += _FRAME.findall(str(error))
    for path, line in reversed(frames):
        if is_user_file(path) and not path.startswith("<"):
            return line_in_words(path, line)
    return ""


# What jax, XLA and its coordination service say where several processes are the cause, and what it
# means. Read off jax 0.10.2 and 0.12.0.1; {0} is what the first group found.
_SEVERAL = tuple(
    (re.compile(pattern, re.DOTALL), sentence)
    for pattern, sentence in (
        (
            r"Closing over jax.Array that spans non-addressable",
            "The function closes over an array that lies on devices of several processes. Pass it"
            " as an argument of the function.",
        ),
        (
            r"Fetching value for `jax.Array` that spans non-addressable|first argument must be a"
            r" fully addressable array",
            "All of an array was read that lies on devices of several processes, and each process"
            " can read its own shards only. Take array.addressable_shards, or have every process"
            " gather it: jax.experimental.multihost_utils.process_allgather(array, tiled=True).",
        ),
        (
            r"Invalid host data.*?dimension (\d+), the process data has (\d+) elements. Process"
            r" addresses (\d+) elements",
            "The local batch has another size than the devices of this process hold: {1} along"
            " dimension {0}, and {2} are needed. sv.process_rows says which rows every process"
            " loads.",
        ),
        (
            r"Unable to compute global_shape due to non-uniform sharding",
            "The mesh gives the processes parts of an array that do not fit together, so jax cannot"
            " tell its shape from the local data. Give global_shape, or make the mesh in the order"
            " of jax.devices(); sv.process_rows shows which rows every process loads.",
        ),
        (
            r"is not the same on each process",
            "A numpy array or number stands for all of an array and must be the same in every"
            " process, and it is not. Where each process has rows of its own, make the array with"
            " jax.make_array_from_process_local_data.",
        ),
        (
            r"Passing non-trivial shardings for numpy inputs is not allowed",
            "jax.jit takes no numpy array that it would have to split over several processes. Make"
            " it an array first: with jax.make_array_from_process_local_data from each process's"
            " own rows, or with jax.make_array_from_callback where every process has all of it.",
        ),
        (
            r"For a cross-host reshard in multi-controller JAX|Cannot reshard an input that is not"
            r" fully addressable",
            "An array over several processes can go to another order of the same devices only, not"
            " to other devices. Use a mesh of the same devices, or gather it first.",
        ),
        (
            r"tasks are unhealthy \(stopped sending heartbeats\):\s*((?:[\w/:]+\s*?\n)+)",
            "{processes} died, hang or were stopped: they sent no heartbeat, so jax ended the"
            " others. Look at what they printed before, and whether the system ended them for lack"
            " of memory. All processes must be started again.",
        ),
        (
            r"Barrier timed out.*?Some timed out task names:\s*((?:[\w/:]+\s*?\n)+)",
            "{processes} did not come to the end of the script in time. Most often they wait in a"
            " collective that another process skipped, or left by an error: look first at what the"
            " others printed. jax ended all processes, which must be started again.",
        ),
        (
            r"Failed to send RPC to coordination service|remote target coordination_service"
            r"|DEADLINE_EXCEEDED.*?CoordinationService/Heartbeat",
            "Process 0, which coordinates the others, has ended, hangs or cannot be reached: jax"
            " ended the others. Look at what process 0 printed. All processes must be started"
            " again.",
        ),
        (
            r"ALREADY_EXISTS: Aborted connect attempt|CANCELLED: Cancelled because there's a more"
            r" recent barrier call",
            "Two processes have the same process_id, or one was started again while the others"
            " went on. Give every process an id of its own, and start all of them together.",
        ),
        (
            r"DEADLINE_EXCEEDED.*?RegisterTask",
            "Not all processes came to jax.distributed.initialize in time. Look at those that did"
            " not start, at num_processes and process_id, and whether all can reach the"
            " coordinator's address.",
        ),
        (
            r"initialize\(\) must be called before any JAX calls",
            "jax had started before jax.distributed.initialize was called. Call it first, before"
            " anything that makes an array or looks for devices.",
        ),
        (
            r"[Gg]loo.*?(?:closed by peer|reset by peer|[Tt]imed out|refused)",
            "A process of a collective has ended or does not answer, so that the others could not"
            " go on. Look at what the other processes printed.",
        ),
        (
            r"RESOURCE_EXHAUSTED|std::bad_alloc|MemoryError|Out of memory|OOM",
            "Memory ran out in this process, which the others then wait for. Split the arrays over"
            " more devices, make them smaller, or start fewer processes on one machine.",
        ),
    )
)
_TASK = re.compile(r"task:(\d+)|^(\d+)$")


def explain(text: str) -> str:
    """What an error of jax means where several processes run, in sentences; `""` where unknown.

    Args:
        text: the words of an exception, or what a process printed before it ended.

    >>> explain("The following tasks are unhealthy (stopped sending heartbeats):\\n1\\n")
    'Process 1 died, hangs or was stopped: it sent no heartbeat, so jax ended the others. Look at \
what it printed before, and whether the system ended it for lack of memory. All processes must be \
started again.'
    >>> explain("ValueError: an error of another kind")
    ''
    """
    for pattern, sentence in _SEVERAL:
        if (found := pattern.search(text)) is None:
            continue
        if "{processes}" not in sentence:
            return sentence.format(*found.groups())
        tasks = [_TASK.search(line.strip()) for line in found[1].splitlines()]
        numbers = [int(task[1] or task[2]) for task in tasks if task]
        if len(numbers) == 1:
            sentence = _of_one(sentence)
        who = processes(numbers) if numbers else "Some processes"
        return sentence.format(processes=who)
    return ""


def _of_one(sentence: str) -> str:
    """A sentence about several processes, for one."""
    for many, one in (
        (" hang or were", " hangs or was"),
        ("they sent", "it sent"),
        ("they printed", "it printed"),
        ("ended them", "ended it"),
        ("they wait in", "it waits in"),
    ):
        sentence = sentence.replace(many, one)
    return sentence


def calling_line() -> str:
    """The innermost line of the user's code that called what runs now, or `""`."""
    for frame, line in traceback.walk_stack(None):
        path = frame.f_code.co_filename
        if is_user_file(path) and not path.startswith("<"):
            return line_in_words(path, line)
    return ""


class WorkerError(TargetError):
    """The worker ended before it answered.

    Attributes:
        crashed: whether what it did ended it; else it reached a limit, or somebody ended it.
    """

    crashed = False


_CRASHES = [-getattr(signal, n, 1 << 16) for n in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL")]


def exit_error(
    exit_code: int | None, stage: str, log: str = "", ended_for_memory: int | None = None
) -> WorkerError:
    """The error for a worker that ended by itself.

    Args:
        exit_code: as Python has it: negative for a signal; None where it is not known.
        stage: the stage it was in; `""` for none.
        log: what it printed.
        ended_for_memory: as for `exit_in_words`.

    >>> print(exit_error(-6, "compile"))
    The worker process ended in the stage 'compile': aborted: the compiler or runtime met a state...
    """
    where = f" in the stage {stage!r}" if stage else ""
    said = cause(log)
    words = f" It said: {said}" if said else ""
    error = WorkerError(
        f"The worker process ended{where}: {exit_in_words(exit_code, ended_for_memory)}.{words}"
        " Your kernel is not touched, and the next compile gets a new worker."
    )
    error.crashed = exit_code in _CRASHES
    return error


def timeout_error(seconds: float, stage: str) -> WorkerError:
    """The error for a worker that was ended because it took too long.

    >>> print(timeout_error(60, "run"))
    The worker process was ended after 60 s in the stage 'run': that is the limit. ...
    """
    return WorkerError(
        f"The worker process was ended after {seconds:.3g} s in the stage {stage!r}: that is the"
        " limit. It may hang, or need longer: give it more time, or a smaller program."
    )


def memory_error(held: int, limit: int | None, stage: str) -> WorkerError:
    """The error for a worker that was ended because it held too much memory.

    >>> print(memory_error(3 << 30, 2 << 30, "compile"))
    The worker process was ended in the stage 'compile': it held 3 GiB and may hold 2 GiB. ...
    """
    why = (
        f"it held {bytes_text(held)} and may hold {bytes_text(limit)}"
        if limit is not None
        else f"it held {bytes_text(held)} and the machine's memory was about to run out"
    )
    return WorkerError(
        f"The worker process was ended in the stage {stage!r}: {why}. Compile a smaller program,"
        " fewer devices, or on a machine with more memory."
    )


def ended_for_memory() -> int | None:
    """How many processes the system has ended since it started, as memory ran out.

    Linux counts them in `/proc/vmstat`, those of containers included. None where it is not known.
    """
    try:
        with open("/proc/vmstat") as file:
            return next((int(x.split()[1]) for x in file if x.startswith("oom_kill ")), None)
    except OSError:
        return None


def exit_in_words(code: int | None, before: int | None = None) -> str:
    """An exit code or signal as people say it.

    Args:
        code: as Python has it: negative for a signal; None where it is not known.
        before: what `ended_for_memory` gave before; None where that is not known.

    >>> exit_in_words(-9)
    'killed from outside, often by the system where memory runs out (SIGKILL)'
    >>> exit_in_words(3), exit_in_words(None)
    ('it left with exit code 3', 'it left without saying why')
    """
    if code is None:
        return "it left without saying why"
    if code >= 0:
        return f"it left with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"ended by signal {-code}"
    if name == "SIGKILL" and before is not None and (now := ended_for_memory()) is not None:
        words = "ended by the system, as memory ran out" if now > before else "killed from outside"
        return f"{words} ({name})"
    return f"{_SIGNALS[name]} ({name})" if name in _SIGNALS else f"ended by {name}"


def read_log(log: BinaryIO) -> str:
    """What a worker printed: all of it, or the beginning and the end.

    >>> import io
    >>> read_log(io.BytesIO(b"one\\ntwo"))
    'one\\ntwo'
    """
    length = log.seek(0, os.SEEK_END)
    log.seek(0)
    text = log.read(_MOST_READ)
    if length > _MOST_READ:
        log.seek(max(_MOST_READ, length - _MOST_READ))
        text += b"\n" + log.read()
    return text.decode(errors="replace")


def cause(text: str) -> str:
    """The lines of a worker's output that say why it ended, on one line; `""` where none does.

    Those in which a compiler, the C library or Python names the fault; where there are none, the
    last lines, without stacks and the lists of threads and modules that Python's fault handler
    adds.

    Args:
        text: what the worker printed.

    >>> cause("F1122 03:44:06.391162 21499 fft.cc:117] Check failed: size > 0 (0 vs. 0) \\n@ 0x7f")
    'fft.cc:117] Check failed: size > 0 (0 vs. 0)'
    >>> cause("Fatal Python error: Segmentation fault\\n\\nExtension modules: numpy, jaxlib")
    'Fatal Python error: Segmentation fault'
    """
    lines = [line.strip() for line in text.splitlines() if not _NOISE.match(line)]
    for telling in _TELLING:
        if found := [line for line in lines if telling.search(line)]:
            lines = found[:_LINES]
            break
    words = " / ".join(_GLOG.sub("", line)[:_LONGEST].strip() for line in lines[-_LINES:])
    return "".join(c if c.isprintable() else "?" for c in words)
