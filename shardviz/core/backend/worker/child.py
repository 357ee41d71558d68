"""What runs in the worker process: it unpacks a parcel, compiles it, runs it where there are
devices, and gives back a Report without any jax in it.

The process has its own jax settings (its devices, its plugins), chosen by the environment it was
started with. It only ever sees bytes, names and numbers.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from loky import process_executor

from shardviz.core.backend.compile import Executable, Lowered, compile_lowered
from shardviz.core.backend.described_devices import compile_only_mesh
from shardviz.core.backend.execute import Execution
from shardviz.core.backend.failures import in_words
from shardviz.core.backend.numeric_checks import partial_sums
from shardviz.core.backend.targets import device_mesh
from shardviz.core.backend.tracing import Traced
from shardviz.core.backend.worker.export import ExportedProgram
from shardviz.core.errors import ProgramError
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.program import Program
from shardviz.core.program.report import Check, Report
from shardviz.core.program.target import Target

STAGE, LOG, DUMP, PID = "stage", "log", "dump", "pid"
_ORPHANED = 70  # exit code of a worker whose kernel is gone
_WRAPPER = re.compile(r'jit\([^()"]*\)/call_exported(?:/|(?="))')
_CACHE = ExecutableCache(size=32)
_TURNS: dict[str, int] = {}
# What the last compile made. To free it takes milliseconds, for which no answer should wait.
_LAST: list[tuple[Lowered, Executable]] = []


@dataclass(frozen=True, eq=False)
class Value:
    """An array on its way between processes.

    Attributes:
        data: its elements; of random keys their words; None where jax gives none out.
        keys: the implementation behind random keys; `""` for any other array.
        why: why there are no elements; `""` where there are.
    """

    data: np.ndarray | None
    keys: str = ""
    why: str = ""


@dataclass(frozen=True, eq=False)
class WorkerAnswer:
    """What the worker gives back.

    Attributes:
        report: what was done, without outputs.
        values: the outputs, leaf by leaf; None for a compile.
        compile_checks: the checks that were made before it ran.
        read_s: seconds since the compiler was done: to read what it wrote, and make the report.
    """

    report: Report
    values: tuple[Value, ...] | None = None
    compile_checks: tuple[Check, ...] = ()
    read_s: float = 0.0


def begin(folder: str, kernel: int) -> None:
    """Called once in a new worker: its chatter goes to a file, and it ends with its kernel.

    Args:
        folder: the worker's own folder.
        kernel: the process that it works for.
    """
    log = os.open(Path(folder) / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    for stream in (1, 2):
        os.dup2(log, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the kernel, which ends us
    (Path(folder) / PID).write_text(str(os.getpid()))
    _be_the_first_to_go()
    _stay_when_big()
    threading.Thread(target=_end_with, args=(kernel,), daemon=True).start()


def ready() -> str:
    """The version of jax in this process; starts its backend."""
    jax.devices("cpu")
    return jax.__version__


def compile_exported(parcel: ExportedProgram, new: bool, folder: str) -> WorkerAnswer:
    """Compiles a program that came in a parcel.

    Args:
        parcel: the program.
        new: whether it is compiled even where it is known here.
        folder: where stages and the dump go, for the kernel to look at meanwhile.
    """
    walk = _WorkerExecution(parcel, folder)
    walk.follow(lambda: walk.compile_on(walk.jax_mesh(), _cache(parcel, new)))
    return walk.answer(None)


def run_exported(
    parcel: ExportedProgram, values: Sequence[Value] | None, repeat: int, new: bool, folder: str
) -> WorkerAnswer:
    """Compiles and runs a program that came in a parcel.

    Args:
        parcel: the program.
        values: its arguments; None for examples.
        repeat: how often to execute it.
        new, folder: as for `compile_parcel`.
    """
    walk = _WorkerExecution(parcel, folder)
    cache = _cache(parcel, new)
    walk.follow(lambda: walk.run_on(walk.jax_mesh(), leaves(values), repeat, cache))
    return walk.answer(walk.report.outputs)


class _WorkerExecution(Execution):
    """A walk with a program that travelled."""

    def __init__(self, parcel: ExportedProgram, folder: str) -> None:
        _LAST.clear()
        self.parcel, self.folder = parcel, Path(folder)
        jax.config.update("jax_enable_x64", parcel.x64)
        super().__init__(_program(parcel, folder), self._write_stage, None)
        self._checks: tuple[Check, ...] = ()
        self._done = 0.0

    def jax_mesh(self) -> Mesh:
        """The mesh of this process's devices that the parcel is for."""
        self.enter("target")
        parcel = self.parcel
        if parcel.target:
            mesh, notes = compile_only_mesh(parcel.mesh, parcel.target)
            self.note(notes=notes)
            return mesh
        return device_mesh(parcel.mesh, Target("cpu", "cpu", jax.device_count("cpu")))

    def traced(self) -> Traced:
        """The program, traced on the mesh; its outputs have the names they have at home."""
        traced = super().traced()
        named = zip(traced.outputs, self.parcel.outputs, strict=True)
        return replace(traced, outputs=tuple(replace(o, name=name) for o, name in named))

    def lowered(self, traced: Traced) -> Lowered:
        """The program, lowered; only the kernel can tell its lines from those that asked for it."""
        return replace(super().lowered(traced), sources=self.parcel.sources)

    def positive(self, traced: Traced) -> tuple[int, ...]:
        """What the kernel found: what travelled has no jaxpr any more."""
        return self.parcel.positive

    def key(self, lowered: Lowered) -> str:
        """The kernel's own fingerprint, and how often it asked for a new compile."""
        return f"{self.parcel.key}/{_TURNS.get(self.parcel.key, 0)}"

    def compiled(self, lowered: Lowered) -> Executable:
        """Compiles, and reads what came out, with operations named as they are at home."""
        begun = time.perf_counter()
        found = compile_lowered(lowered, self.program.mesh, without_export_call)
        self._done = begun + found.compile_s
        _LAST.append((lowered, found))
        return found

    def note_least_times(self) -> None:
        """Leaves the roofline to the kernel, which knows where described devices stand."""

    def note_executable(self, lowered: Lowered, executable: Executable) -> None:
        """Adds what the compiler says."""
        super().note_executable(lowered, executable)
        self._checks = self.report.checks

    def bytes_there(self) -> int | None:
        """The memory of a described device is the chip's."""
        return super().bytes_there() if self.parcel.capacity is None else self.parcel.capacity

    def answer(self, outputs: Any) -> WorkerAnswer:
        """What goes back."""
        values = None
        if outputs is not None and self.report.error is None:
            values = tuple(value_of(leaf) for leaf in jax.tree.leaves(outputs))
        read_s = time.perf_counter() - self._done
        return WorkerAnswer(
            self.report.replace(outputs=None, in_layouts={}), values, self._checks, read_s
        )

    def _write_stage(self, stage: str) -> None:
        # Renamed into place, so that the kernel never reads half a word.
        draft = self.folder / f"{STAGE}.new"
        draft.write_text(stage)
        draft.replace(self.folder / STAGE)


def value_of(leaf: Any) -> Value:
    """An array as it travels.

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
    """The arrays that travelled, as numpy or as random keys; None for none.

    >>> leaves([Value(np.arange(3))])
    [array([0, 1, 2])]
    """
    if values is None:
        return None
    return [
        jax.random.wrap_key_data(jax.numpy.asarray(v.data), impl=v.keys) if v.keys else v.data
        for v in values
    ]


def without_export_call(text: str) -> str:
    """A module's text without the call that unpacked the program in the names of operations.

    >>> at_home('op_name="jit(f)/call_exported/jit(f)/transpose(jvp())/dot_general"')
    'op_name="jit(f)/transpose(jvp())/dot_general"'
    """
    return _WRAPPER.sub("", text)


def _cache(parcel: ExportedProgram, new: bool) -> ExecutableCache:
    """Executables for runs; of described devices none is kept, as nothing runs there."""
    if new:  # what is kept under the number before falls out by itself
        _TURNS[parcel.key] = _TURNS.get(parcel.key, 0) + 1
    return ExecutableCache(size=1) if parcel.target else _CACHE


def _program(parcel: ExportedProgram, folder: str) -> Program:
    options = dict(parcel.options)
    if parcel.mesh.size > 1:
        options.setdefault("xla_dump_to", str(Path(folder) / DUMP))
    return Program(
        _unpacked(parcel),
        parcel.arrays,
        parcel.mesh,
        out_specs=parcel.out_specs,
        options=options,
        name=parcel.name,
    )


def _unpacked(parcel: ExportedProgram) -> Callable[..., Any]:
    """The function in a parcel: the sharded one, or the unsharded one on a mesh of one device."""
    module = _module(parcel.module)

    def travelled(*arguments: Any) -> Any:
        here = module
        if parcel.mesh.size > 1 and jax.sharding.get_abstract_mesh().size == 1:
            if parcel.alone is None:
                raise ProgramError("The function could not be traced for one device.")
            here = _module(parcel.alone)
        return here.call(*arguments)

    travelled.__name__ = travelled.__qualname__ = module.fun_name
    return travelled


def _be_the_first_to_go() -> None:
    """Where memory runs out, the system ends this process before the kernel."""
    with contextlib.suppress(OSError):  # not Linux, or not allowed: the kernel still watches
        Path("/proc/self/oom_score_adj").write_text("1000")


def _module(serialised: bytes) -> Any:
    try:
        return jax.export.deserialize(bytearray(serialised))
    except Exception as error:  # what is not whole can break the reader anywhere
        raise ProgramError(
            "The program did not arrive whole in the worker, or was exported by another jax:"
            f" {in_words(error)}. Compile it once more; restart the kernel if jax was just updated."
        ) from error


def _stay_when_big() -> None:
    """loky replaces workers that have grown by 300 MB, which a compiler does; its caches would go.

    The switch is private to loky; where it is gone, workers are replaced now and then.
    """
    if hasattr(process_executor, "_USE_PSUTIL"):
        process_executor._USE_PSUTIL = False


def _end_with(kernel: int) -> None:
    while os.getppid() == kernel:
        time.sleep(0.25)
    os._exit(_ORPHANED)
