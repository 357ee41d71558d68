"""The main loop of a worker process, which answers the kernel's calls one by one."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import itertools
import os
import pickle
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import jax

from shardviz.base.errors import TargetError
from shardviz.programs.backend.failures import in_words
from shardviz.programs.backend.worker.freed_memory import give_back_freed
from shardviz.programs.backend.worker.messages import Answer, Stage

# The connection to the kernel, if this process is a worker.
_KERNEL: list[Connection] = []
# Number of calls between clearing jax's caches. Clearing takes as long as one call.
_FORGET_EVERY = 20


def main(socket: int) -> None:
    """Answers calls one after the other until the kernel ends.

    Args:
        socket: file descriptor of the connection to the kernel.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Stacks printed by faulthandler are the only trace of a crash inside a library.
    faulthandler.enable()
    # If memory runs out, Linux should kill this process before the kernel.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    connection = Connection(socket)
    _KERNEL.append(connection)
    with contextlib.suppress(OSError, EOFError):  # the kernel ended
        for number in itertools.count(1):
            call = connection.recv_bytes()
            send_stage("compile")
            connection.send_bytes(_answer(call))
            if number % _FORGET_EVERY == 0:
                # Clear jax's caches, which grow by about 5 MB per call and are never
                # reused.
                jax.clear_caches()
                gc.collect()
                give_back_freed()
    os._exit(0)  # doesn't wait for threads started by libraries


def _answer(message: bytes) -> bytes:
    try:
        function, *arguments = pickle.loads(message)
        return pickle.dumps(Answer(function(*arguments)))
    except Exception as error:  # noqa: BLE001  any error is raised again in the kernel
        try:
            answer = pickle.dumps(Answer(error=error))
            # Some exceptions can be pickled but not unpickled.
            pickle.loads(answer)
        except Exception:  # noqa: BLE001  many exceptions cannot be pickled
            answer = pickle.dumps(Answer(error=TargetError(in_words(error))))
        return answer


def send_stage(stage: str) -> None:
    """Notifies the kernel that a stage of the call begins."""
    _KERNEL[0].send(Stage(stage))
