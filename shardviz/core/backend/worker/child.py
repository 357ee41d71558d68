"""What runs in the worker process: compiles an exported program and runs it where it has devices.

It answers with a Report that holds nothing of jax. The process has its own jax settings (its
devices, its plugins), chosen by the environment it was started with, and is sent bytes, names and
numbers only.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import itertools
import os
import pickle
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np
from jax.sharding import Mesh

from shardviz.core.backend.checks import partial_sums
from shardviz.core.backend.compile import Executable, Lowered, lower
from shardviz.core.backend.devices import give_back_freed
from shardviz.core.backend.execute import Execution
from shardviz.core.backend.failures import in_words
from shardviz.core.backend.targets import compile_only_mesh, device_mesh
from shardviz.core.backend.tracing import Traced, trace
from shardviz.core.backend.worker import messages
from shardviz.core.backend.worker.export import (
    ExportedProgram,
    LoweredModule,
    placeholder,
    put_module,
)
from shardviz.core.backend.worker.messages import Answer, CallbackAddress, Stage, put_callbacks
from shardviz.core.errors import ProgramError, TargetError
from shardviz.core.layout.layout import Layout
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.program import Program, Target
from shardviz.core.program.report import Check, Report

DUMP = "dump"
_LAPACK = "@lapack_"
_CACHE = ExecutableCache(size=32)
# Key to how often the kernel asked for a new compile of it.
_RECOMPILES: dict[str, int] = {}
# What the last compile made, freed at the next call: that takes milliseconds, which would delay
# the answer.
_LAST: list[tuple[Lowered, Executable]] = []
# The pipe to the kernel, once this process has become a worker.
_ANSWERS: list[BinaryIO] = []


@dataclass(frozen=True, eq=False)
class Value:
    """An array as it is sent between processes.

    Attributes:
        data: its elements; of random keys their words; None for partial sums.
        keys: the implementation of random keys; `""` for any other array.
        why: why there are no elements; `""` where there are.
    """

    data: np.ndarray | None
    keys: str = ""
    why: str = ""


@dataclass(frozen=True, eq=False)
class WorkerAnswer:
    """What the worker sends back.

    Attributes:
        report: what was done, without outputs.
        values: the outputs, leaf by leaf; None for a compile.
        compile_checks: the checks that were made before it ran.
        read_s: seconds to read what the compiler wrote and to make the report.
    """

    report: Report
    values: tuple[Value, ...] | None = None
    compile_checks: tuple[Check, ...] = ()
    read_s: float = 0.0


_FORGET_EVERY = 20  # calls; it takes as long as one of them
#: The exit code that a call asked for; empty for none.
left: list[Any] = []


def main(calls: int, answers: int, kernel: int, folder: str) -> None:
    """Answers one call after the other until the kernel ends, then removes the folder.

    Args:
        calls, answers: the pipes, as file descriptors.
        kernel: the process that it works for.
        folder: the worker's own folder.
    """
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the pipe is ours to read
    faulthandler.enable()
    _prefer_for_oom_kill()
    threading.Thread(target=_exit_with, args=(kernel, folder), daemon=True).start()
    with open(calls, "rb", 0) as pipe, open(answers, "wb", 0) as out:
        _ANSWERS.append(out)
        try:
            for number in itertools.count(1):
                if (call := messages.read(pipe)) is None:
                    break
                messages.write(out, _answer(call))
                if number % _FORGET_EVERY == 0:
                    _forget()
        except BrokenPipeError:
            pass
        except SystemExit as exit_:  # a thread that leaves does not end its process
            left.append(exit_.code)
            return
    _exit(folder)


def _forget() -> None:
    """Gives back what jax keeps of earlier calls; no call finds any of it again.

    Each call has functions of its own, by which jax keeps its traces and modules: about 5 MB each.
    What was compiled stays in `_CACHE`.
    """
    jax.clear_caches()
    gc.collect()
    give_back_freed()


def _answer(message: bytes) -> bytes:
    try:
        return pickle.dumps(Answer(pickle.loads(message).result()))
    except Exception as error:  # noqa: BLE001  whatever it is, the kernel is to raise it
        try:
            answer = pickle.dumps(Answer(error=error))
            pickle.loads(answer)  # an exception may be written and not read
        except Exception:  # noqa: BLE001  many exceptions cannot be pickled
            answer = pickle.dumps(Answer(error=TargetError(in_words(error))))
        return answer


def ready() -> str:
    """The version of jax in this process; starts its backend."""
    jax.devices("cpu")
    return jax.__version__


def compile_exported(
    exported: ExportedProgram, callbacks: CallbackAddress | None, new: bool, folder: str
) -> WorkerAnswer:
    """Compiles an exported program.

    Args:
        exported: the program.
        callbacks: where the kernel answers its callbacks; None where it has none.
        new: whether to compile it even where it is in the cache here.
        folder: where the dump is written, for the kernel to read meanwhile.
    """
    execution = ExportedExecution(exported, callbacks, folder)
    execution.follow(lambda: execution.compile_on(execution.jax_mesh(), _cache(exported, new)))
    return execution.answer(None)


def run_exported(
    exported: ExportedProgram,
    callbacks: CallbackAddress | None,
    values: Sequence[Value] | None,
    repeat: int,
    new: bool,
    folder: str,
) -> WorkerAnswer:
    """Compiles and runs an exported program.

    Args:
        exported: the program.
        values: its arguments; None for examples.
        repeat: how often to execute it.
        callbacks, new, folder: as for `compile_exported`.
    """
    execution = ExportedExecution(exported, callbacks, folder)
    cache = _cache(exported, new)
    execution.follow(lambda: execution.run_on(execution.jax_mesh(), leaves(values), repeat, cache))
    return execution.answer(execution.report.outputs)


class ExportedExecution(Execution):
    """The execution of an exported program."""

    def __init__(
        self, exported: ExportedProgram, callbacks: CallbackAddress | None, folder: str
    ) -> None:
        _LAST.clear()
        self.exported, self.callbacks, self.folder = exported, callbacks, Path(folder)
        jax.config.update("jax_enable_x64", exported.x64)
        super().__init__(_program(exported, folder), self.send_stage, None)
        self._checks: tuple[Check, ...] = ()
        self._chosen: dict[str, Layout] = {}
        self._compiled_at = 0.0

    def jax_mesh(self) -> Mesh:
        """The mesh of this process's devices that the program is for."""
        self.enter("target")
        exported = self.exported
        if exported.target:
            mesh, notes = compile_only_mesh(exported.mesh, exported.target)
            self.note(notes=notes)
            return mesh
        return device_mesh(exported.mesh, Target("cpu", "cpu", jax.device_count("cpu")))

    def traced(self) -> Traced:
        """The program, traced on the mesh; its outputs have the names that the kernel gave them.

        How it was traced is said by the kernel, which traced the user's own function.
        """
        traced = super().traced()
        named = zip(traced.outputs, self.exported.outputs, strict=True)
        outputs = tuple(replace(o, name=name) for o, name in named)
        return replace(traced, outputs=outputs, notes=())

    def lowered(self, traced: Traced) -> Lowered:
        """The program, as the kernel lowered it, with its callbacks.

        Only the kernel knows which lines are those of the call and not of the program.
        """
        lowered = self._lowered(traced, self.exported.module)
        return replace(lowered, sources=self.exported.sources)

    def lowered_unsharded(self, single: Program, mesh: Mesh) -> Lowered:
        """The unsharded function, as the kernel lowered it, with its own callbacks."""
        module = self.exported.unsharded
        if not isinstance(module, LoweredModule):
            raise ProgramError(module or "It was not lowered for one.")
        own = dict(self.exported.options)
        # Without the dump that `_program` adds, which nobody reads of one device.
        options = {k: v for k, v in single.options.items() if k in own}
        single = single.replace(fn=placeholder(module, single.name), options=options)
        return self._lowered(trace(single, mesh), module, unsharded=True)

    def _lowered(self, traced: Traced, module: LoweredModule, unsharded: bool = False) -> Lowered:
        def change(lowered: Any) -> None:
            put_module(lowered, module)
            if self.callbacks is not None:
                put_callbacks(lowered, self.callbacks.callbacks(unsharded))

        found = lower(traced, change=change)
        if _LAPACK in found.text:
            _start_lapack()
        return found

    def positive(self, traced: Traced) -> tuple[int, ...]:
        """The positions that the kernel found: an exported program has no jaxpr."""
        return self.exported.positive

    def key(self, lowered: Lowered) -> str:
        """The kernel's own fingerprint, and how often it asked for a new compile."""
        return f"{self.exported.key}/{_RECOMPILES.get(self.exported.key, 0)}"

    def compiled(self, lowered: Lowered) -> Executable:
        """Compiles, and reads the result."""
        begun = time.perf_counter()
        found = super().compiled(lowered)
        self._compiled_at = begun + found.compile_s
        _LAST.append((lowered, found))
        return found

    def note_roofline(self) -> None:
        """Leaves the roofline to the kernel, which knows where described devices are."""

    def note_executable(self, lowered: Lowered, executable: Executable) -> None:
        """Adds what the compiler says, and keeps the checks made so far."""
        before = self.program.arrays
        super().note_executable(lowered, executable)
        self._checks = self.report.checks
        names = {a.name for a, b in zip(self.program.arrays, before, strict=True) if a is not b}
        self._chosen = {n: v for n, v in self.report.in_layouts.items() if n in names}

    def capacity(self) -> int | None:
        """Bytes of memory on each device; of a described device, those of its chip."""
        return super().capacity() if self.exported.capacity is None else self.exported.capacity

    def answer(self, outputs: Any) -> WorkerAnswer:
        """What is sent back."""
        values = None
        if outputs is not None and self.report.error is None:
            values = tuple(value_of(leaf) for leaf in jax.tree.leaves(outputs))
        read_s = time.perf_counter() - self._compiled_at
        return WorkerAnswer(
            self.report.replace(outputs=None, in_layouts=self._chosen), values, self._checks, read_s
        )

    def send_stage(self, stage: str) -> None:
        """Tells the kernel which stage begins."""
        messages.write(_ANSWERS[0], pickle.dumps(Stage(stage)))


@functools.cache
def _start_lapack() -> None:
    """Has jax find LAPACK, which it does when it lowers such an operation itself, else crashes."""
    jax.jit(jax.numpy.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), np.float32))


def value_of(leaf: Any) -> Value:
    """An array, ready to be sent.

    >>> value_of(np.arange(3)).data
    array([0, 1, 2])
    """
    if isinstance(leaf, jax.Array):
        if why := partial_sums(leaf):
            return Value(None, "", why)
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            words = np.asarray(jax.random.key_data(leaf))
            return Value(words, str(jax.random.key_impl(leaf)))
    return Value(np.asarray(leaf))


def leaves(values: Sequence[Value] | None) -> list[Any] | None:
    """The arrays that were sent, as numpy arrays or random keys; None for none.

    >>> leaves([Value(np.arange(3))])
    [array([0, 1, 2])]
    """
    if values is None:
        return None
    return [
        jax.random.wrap_key_data(jax.device_put(v.data), impl=v.keys) if v.keys else v.data
        for v in values
    ]


def _cache(exported: ExportedProgram, new: bool) -> ExecutableCache:
    """The cache for runs; of described devices nothing is kept, since nothing runs there."""
    if new:  # the entry under the last number is dropped in time
        _RECOMPILES[exported.key] = _RECOMPILES.get(exported.key, 0) + 1
    return ExecutableCache(size=1) if exported.target else _CACHE


def _program(exported: ExportedProgram, folder: str) -> Program:
    options = dict(exported.options)
    if exported.mesh.size > 1:
        options.setdefault("xla_dump_to", str(Path(folder) / DUMP))
    return Program(
        placeholder(exported.module, exported.name),
        exported.arrays,
        exported.mesh,
        out_specs=exported.out_specs or None,
        options=options,
        name=exported.name,
    )


def _prefer_for_oom_kill() -> None:
    """Makes the system end this process before the kernel where memory runs out."""
    with contextlib.suppress(OSError):  # not Linux, or not allowed: the kernel still watches
        Path("/proc/self/oom_score_adj").write_text("1000")


def _exit_with(kernel: int, folder: str) -> None:
    """Ends the worker during a call, when the kernel is gone; a forked child may hold its pipe."""
    while os.getppid() == kernel:
        time.sleep(0.25)
    _exit(folder)


def _exit(folder: str) -> None:
    """Ends the process and removes its folder; nobody is left to wait for what libraries do."""
    # A compile in another thread writes its dump there, and makes the folder again where it is
    # gone. Another program in this process ends all threads before it begins.
    remove = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)"
    with contextlib.suppress(OSError):
        os.execv(sys.executable, [sys.executable, "-IS", "-c", remove, folder])
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)
