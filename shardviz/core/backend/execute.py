"""Execution: one compile or run in this process, with its report so far.

No error of a program is raised from here: it becomes the `error` of the report, with its stage.
The kernel has executions of its own, and the worker process has them too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxlib.version import __version__ as jaxlib_version

from shardviz.core.backend.checks import (
    output_layouts,
    shards_check,
    spec_checks,
    unsharded_checks,
    why_not_comparable,
)
from shardviz.core.backend.compile import (
    Executable,
    Lowered,
    compile_lowered,
    compiler_options,
    donation_note,
    fingerprint,
    lower,
)
from shardviz.core.backend.devices import capacity_of, host_available, processes_of, refusal
from shardviz.core.backend.failures import (
    calling_line,
    failure,
    for_lack_of_memory,
    in_words,
    raised_by_signal,
)
from shardviz.core.backend.inputs import Inputs, copies_allowed, value_digests
from shardviz.core.backend.jaxprs import (
    constant_rows,
    failing_callbacks,
    forget_failed_callbacks,
    operation_rows,
    positive_arguments,
    refusal_on,
    single_device_effects,
)
from shardviz.core.backend.rendezvous import NO_STORE, Disagreement, Rendezvous, store
from shardviz.core.backend.tracing import Output, Traced, left_to_compiler, trace, trace_unsharded
from shardviz.core.errors import ProgramError
from shardviz.core.format import joined, shown
from shardviz.core.hardware.chips import chip_of_kind
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.agreement import Account, ProgramDetails, broken_blocks
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.program import Program
from shardviz.core.program.report import Check, Failure, Report, largest_arrays
from shardviz.core.program.roofline import roofline


class Cancelled(Exception):
    """The user cancelled the execution."""


class Failed(Exception):
    """A stage failed in the worker, which sent the Failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class Execution:
    """One compile or run: the stage it is in, and the report so far."""

    def __init__(
        self,
        program: Program,
        progress: Callable[[str], None] | None,
        cancelled: Callable[[], bool] | None,
        preview: Callable[[Report], None] | None = None,
    ) -> None:
        if not isinstance(program, Program):
            raise ProgramError(
                "What is compiled or run is a program, made by sv.program(fn, ...); got"
                f" {shown(program)}."
            )
        self.program = program
        self.report = Report(program.name, "")
        self.stage = "program"
        self._progress = progress
        self._cancelled = cancelled
        self.preview = preview
        self.mesh: Mesh
        self.devices: list[Any]
        self.ids: dict[Any, int]
        self.rendezvous: Rendezvous | None = None
        self._leaves: list[Any] | None = None
        self._repeat = 0

    def follow(self, steps: Callable[[], Any]) -> None:
        """Runs the steps; whatever they raise becomes the error of the report."""
        known = False  # whether the other processes know the error
        try:
            steps()
        except Cancelled as when:
            self.note(error=Failure("cancelled", f"Cancelled {when}."))
        except Failed as failed:
            self.note(error=self._with_arrays(failed.failure))
        except BaseException as error:  # a user's function may raise anything
            of_function = isinstance(error, (Exception, SystemExit))
            if not of_function or raised_by_signal(error):  # it is this process that is to end
                if self.rendezvous is not None:  # the others wait
                    self.rendezvous.fail(self.stage, in_words(error))
                raise
            self.note(error=self._with_arrays(failure(self.stage, error)))
            known = isinstance(error, Disagreement)
        finally:
            self._leave(known)

    def join(self, mesh: Mesh, call: str) -> None:
        """Meets the other processes that the devices of a mesh belong to, where there are any.

        Args:
            mesh: the jax mesh of the run.
            call: what they call, `"sv.run"`.
        """
        every = processes_of(list(mesh.devices.flat))
        if len(every) < 2:
            return
        words = f"Process {jax.process_index()} of {len(every)}: each checks its own shards."
        client = store()
        self.note(notes=(*self.report.notes, words if client is not None else NO_STORE))
        if client is not None:
            name = f"{call}({self.program.name!r})"
            self.rendezvous = Rendezvous(client, jax.process_index(), every, name)
        on_devices = _with_devices(self.program.mesh, list(mesh.devices.flat))
        layouts = {n: replace(v, mesh=on_devices) for n, v in self.report.in_layouts.items()}
        if note := broken_blocks(layouts):
            self.note(notes=(*self.report.notes, note))

    def _leave(self, known: bool) -> None:
        """Ends what `join` began."""
        if self.rendezvous is None:
            return
        if (error := self.report.error) is not None and not known:
            self.rendezvous.fail(error.stage, error.message)
        self.rendezvous.leave()

    def _with_arrays(self, found: Failure) -> Failure:
        """A failure; of one for lack of memory, with the largest arrays."""
        if not for_lack_of_memory(found) or not self.report.in_layouts:  # a worker knows none
            return found
        arrays = largest_arrays(self.report)
        return replace(found, message=f"{found.message.rstrip()} {arrays}")

    def enter(self, stage: str) -> None:
        """Begins a stage, unless the execution was cancelled."""
        self.stage = stage
        if self.rendezvous is not None:
            self.rendezvous.enter(stage)
        self.poll(f"before the stage {stage!r}")
        if self._progress is not None:
            self._progress(stage)

    def poll(self, when: str) -> None:
        """Ends the execution where it was cancelled."""
        if self._cancelled is not None and self._cancelled():
            raise Cancelled(when)

    def note(self, **known: Any) -> None:
        """Adds to the report."""
        self.report = self.report.replace(**known)

    def check(self, *checks: Check) -> None:
        """Adds checks to the report."""
        self.note(checks=self.report.checks + checks)

    def begin(self) -> None:
        """Refuses what cannot be laid out, and notes the layouts of the arguments."""
        self.enter("program")
        if self.program.problems:
            raise ProgramError(self.program.problems[0])
        layouts = {r.array.name: r.layout for r in self.program.requests if r.layout}
        self.note(in_layouts=layouts, notes=(*self.report.notes, *self.program.notes))

    def compile_on(self, mesh: Mesh, cache: ExecutableCache) -> tuple[Lowered, Executable]:
        """Traces, lowers and compiles the program for the devices of a jax mesh."""
        self.mesh, self.devices = mesh, list(mesh.devices.flat)
        self.note(mesh=_with_devices(self.program.mesh, self.devices))
        names = self.program.mesh.device_ids.ravel().tolist()
        self.ids = dict(zip(self.devices, names, strict=True))
        self.enter("trace")
        traced = self.traced()
        self.note_traced(traced)
        self.refuse_effects(traced)
        self.enter("lower")
        lowered = self.lowered(traced)
        self.note(lower_s=lowered.lower_s)
        if self.rendezvous is not None:
            self.enter("compare")
            self.rendezvous.compare(self._account(lowered), lambda: self._details(lowered))
        executable = self._executable(lowered, cache)
        self.note_executable(lowered, executable)
        return lowered, executable

    def before_compile(self, lowered: Lowered) -> None:
        """Refuses what must not be compiled in this process: nothing."""

    def _account(self, lowered: Lowered) -> Account:
        """What this process is about to do, for the others to compare with."""
        program, first = self.program, self.devices[0]
        assert self.rendezvous is not None  # there is nobody to compare with
        options = {**program.options, "repeat": self._repeat} if self._repeat else program.options
        shown_options = joined(f"{k}={v!r}" for k, v in options.items())
        return Account(
            jax.process_index(),
            self.rendezvous.call,
            f"jax {jax.__version__} with jaxlib {jaxlib_version}",
            f"{first.device_kind} ({' '.join(first.client.platform_version.split())})",
            ", ".join(f"{name}={size}" for name, size in program.mesh.shape.items()),
            tuple(d.id for d in self.devices),
            {
                r.array.name: f"{r.array.short} as {r.spec if r.spec is not None else 'unknown'}"
                for r in program.requests
            },
            f"the options {shown_options}" if shown_options else "no options",
            self.key(lowered),
            value_digests(program, self._leaves),
            calling_line(),
        )

    def _details(self, lowered: Lowered) -> ProgramDetails:
        """What the program consists of, for the process that runs another one."""
        collectives = None
        if self.devices[0].platform == "cpu":  # others' compilers may wait for one another
            some = self.compiled(lowered).partitioned
            if some is not None:
                collectives = tuple((c.kind, " × ".join(c.mesh_axes), c.source) for c in some)
        jaxpr = lowered.traced.stage.jaxpr
        return ProgramDetails(operation_rows(jaxpr), collectives, constant_rows(jaxpr))

    def note_traced(self, traced: Traced) -> None:
        """Adds what tracing found out to the report."""
        self.note(effects=traced.effects, notes=(*self.report.notes, *traced.notes))

    def traced(self) -> Traced:
        """The program, traced on the mesh."""
        return trace(self.program, self.mesh)

    def lowered(self, traced: Traced) -> Lowered:
        """The program, lowered for the mesh."""
        return lower(traced)

    def lowered_unsharded(self, single: Program, mesh: Mesh) -> Lowered:
        """The unsharded function, lowered for one device."""
        return lower(trace_unsharded(self.program, single, lambda one: trace(one, mesh)))

    def refuse_effects(self, traced: Traced) -> None:
        """Refuses effects that jax orders on one device only."""
        single = single_device_effects(traced.stage.jaxpr.effects)
        if words := refusal_on(single, self.program.mesh.size):
            self.stage = "program"  # no target with this many devices would do
            raise ProgramError(words)

    def positive(self, traced: Traced) -> tuple[int, ...]:
        """The positions of arguments whose made-up values are above 0."""
        return positive_arguments(traced.stage.jaxpr)

    def key(self, lowered: Lowered) -> str:
        """The key of the executable in the cache."""
        return fingerprint(lowered, self.devices, compiler_options(self.program))

    def compiled(self, lowered: Lowered) -> Executable:
        """Compiles, and reads the result."""
        return compile_lowered(lowered, self.program.mesh)

    def _executable(self, lowered: Lowered, cache: ExecutableCache) -> Executable:
        self.note(key=(key := self.key(lowered)))
        self.enter("compile")
        made: list[Executable] = []

        def make() -> Executable:
            self.before_compile(lowered)
            made.append(self.compiled(lowered))
            return made[0]

        # Text with effects or callbacks does not say what it calls, so it is not cached.
        name = self.program.name
        found = cache.get_or_make(key, make, name) if lowered.cacheable else make()
        self.note(cache_hit=not made, compile_s=found.compile_s if made else 0.0)
        return found

    def note_executable(self, lowered: Lowered, executable: Executable) -> None:
        """Adds what the compiler says to the report."""
        self._take_inputs(executable)
        collectives, partitioned = executable.collectives, executable.partitioned
        if executable.sources != lowered.sources:
            # Compiled from the same code when it was on other lines.
            collectives = tuple(c.without_source() for c in collectives)
            partitioned = partitioned and tuple(c.without_source() for c in partitioned)
        outputs, mesh = lowered.traced.outputs, self.program.mesh
        shardings = jax.tree.leaves(executable.stage.output_shardings)
        layouts, without = output_layouts(outputs, shardings, mesh, self.ids)
        notes = [executable.partition_note, donation_note(self.program, executable.reused)]
        self.note(
            collectives=collectives,
            partitioned=partitioned,
            partition_s=executable.partition_s,
            notes=(*self.report.notes, *filter(None, notes)),
            memory=executable.memory.replace(capacity=self.capacity()),
            cost=executable.cost,
            loops=executable.loops,
            out_layouts=layouts,
        )
        self.note_roofline()
        specs = lowered.traced.out_specs
        self.check(*without, *spec_checks(outputs, specs, mesh, layouts))

    def _take_inputs(self, executable: Executable) -> None:
        """Takes over how the compiler splits those arguments that were left to it."""
        if not (free := left_to_compiler(self.program)):
            return
        given = jax.tree.leaves(executable.stage.input_shardings, is_leaf=lambda s: s is None)
        named = [Output(r.array.name, r.array.shape, r.array.dtype) for r in self.program.requests]
        taken = [i for i in sorted(free) if given[i] is not None]  # None where nothing reads it
        layouts, without = output_layouts(
            [named[i] for i in taken], [given[i] for i in taken], self.program.mesh, self.ids
        )
        arrays = list(self.program.arrays)
        for i in taken:
            layout = layouts.get(arrays[i].name)
            if layout is not None and layout.spec is not None:
                arrays[i] = arrays[i].replace(logical=None, spec=layout.spec)
        self.program = self.program.replace(arrays=tuple(arrays))
        self.note(in_layouts={**self.report.in_layouts, **layouts})
        self.check(*without)

    def capacity(self) -> int | None:
        """Bytes that each device has free; None where that is not known."""
        return capacity_of(self.devices).per_device(len(self.devices))

    def note_roofline(self) -> None:
        """Adds the roofline, where the figures of the chip are published."""
        chip = chip_of_kind(self.devices[0].device_kind)
        if chip is not None:
            self.note(roofline=roofline(self.report, chip))

    def run_on(
        self, mesh: Mesh, leaves: list[Any] | None, repeat: int, cache: ExecutableCache
    ) -> None:
        """Compiles, places, runs and checks the program on the devices of a jax mesh.

        Args:
            mesh: the jax mesh.
            leaves: the values of the arguments, checked; None for examples.
            repeat: how often to execute.
            cache: the cache of executables.
        """
        self._leaves, self._repeat = leaves, repeat
        self.run_compiled(*self.compile_on(mesh, cache), leaves, repeat)

    def run_compiled(
        self, lowered: Lowered, executable: Executable, leaves: list[Any] | None, repeat: int
    ) -> None:
        """Places, runs and checks what `compile_on` made; the arguments are those of `run_on`."""
        self.enter("place")
        inputs = self.inputs(lowered, leaves)
        self.refuse_if_too_big(executable, inputs)
        gathers = self._all_ready(lowered, inputs)
        begun = time.perf_counter()
        placed = inputs.place_all()
        self.note(place_s=time.perf_counter() - begun)
        self.check(*self._input_checks(placed))
        if gathers:
            inputs.gather(placed)
        if self.rendezvous is not None:
            self.rendezvous.ready("run")
        self.enter("run")
        try:
            results = self._execute(executable, inputs, placed, repeat)
            if not lowered.cacheable:
                jax.effects_barrier()  # effects and callbacks may come after the results
        except Exception:
            forget_failed_callbacks()
            raise
        self.note(outputs=lowered.traced.out_tree.unflatten(results))
        self.enter("check")
        self.check(*self._output_checks(lowered, results))
        self.check(
            *unsharded_checks(
                self.program,
                lowered,
                executable,
                self.devices,
                inputs,
                self.lowered_unsharded,
                results,
            )
        )

    def _all_ready(self, lowered: Lowered, inputs: Inputs) -> bool:
        """Waits for the other processes; whether all of them can gather the values."""
        if self.rendezvous is None:
            return False
        able = inputs.to_gather and not why_not_comparable(self.program, lowered, self.devices)
        return self.rendezvous.ready("place", able)

    def inputs(self, lowered: Lowered, leaves: list[Any] | None) -> Inputs:
        """The arguments of a run."""
        return Inputs(self.program, self.mesh, leaves, self.positive(lowered.traced))

    def refuse_if_too_big(self, executable: Executable, inputs: Inputs) -> None:
        """Refuses a run that has not enough memory.

        Raises:
            ProgramError: with what it needs and what is free.
        """
        capacity, placed = capacity_of(self.devices), inputs.bytes_in_place
        words = refusal(executable.memory, capacity, len(self.devices), placed)
        if words or (words := inputs.refusal(self.devices[0].platform == "cpu", host_available())):
            raise ProgramError(words)

    def _execute(
        self, executable: Executable, inputs: Inputs, placed: list[jax.Array], repeat: int
    ) -> list[jax.Array]:
        seconds: list[float] = []
        results: list[jax.Array] = []
        for done in range(repeat):
            if done:
                self.poll(f"after {done} of {repeat} runs")
                del results[:]  # before the next ones take their memory
                inputs.replace_donated(placed)
            begun = time.perf_counter()
            results = list(self._executed(executable, placed))
            seconds.append(time.perf_counter() - begun)
        self.note(runs_s=tuple(seconds), run_s=statistics.median(seconds))
        return results

    def _executed(self, executable: Executable, placed: Sequence[jax.Array]) -> Sequence[jax.Array]:
        """The results; where several processes run it, one that ended is not waited for."""
        if self.rendezvous is None:
            return jax.block_until_ready(executable.run(*placed))

        def execute() -> Sequence[jax.Array]:
            results = jax.block_until_ready(executable.run(*placed))
            jax.effects_barrier()  # jax keeps the effects of each thread apart
            return results

        with failing_callbacks() as failed:
            return self.rendezvous.run(execute, failed)

    @copies_allowed()
    def _input_checks(self, placed: Sequence[jax.Array]) -> list[Check]:
        return [
            shards_check(r.array.name, r.layout, array, self.ids)
            for r, array in zip(self.program.requests, placed, strict=True)
            if r.layout is not None
        ]

    @copies_allowed()
    def _output_checks(self, lowered: Lowered, results: Sequence[jax.Array]) -> list[Check]:
        layouts = self.report.out_layouts
        return [
            shards_check(output.name, layouts[output.name], array, self.ids)
            for output, array in zip(lowered.traced.outputs, results, strict=True)
            if output.name in layouts
        ]


def _with_devices(mesh: MeshSpec, devices: Sequence[Any]) -> MeshSpec:
    """A mesh with the ids and processes of these devices."""
    shape = mesh.axis_sizes
    ids = np.array([d.id for d in devices], np.int64).reshape(shape)
    processes = np.array([d.process_index for d in devices], np.int64).reshape(shape)
    return replace(mesh, device_ids=ids, process_indices=processes)
