"""Here: compiles and runs a program in this process, on devices that it has.

The kernel does so where the devices are attached to it. A worker and each process of a
cluster do it with programs that they were sent.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from shardviz.base.backend.jax_compat import forget_failed_callbacks
from shardviz.base.errors import OutOfMemory
from shardviz.base.format import bytes_text
from shardviz.base.layout import Layout
from shardviz.compiled.report import Memory
from shardviz.compiled.roofline import roofline
from shardviz.hardware.chips import chip_of_kind
from shardviz.programs.backend.devices import with_devices
from shardviz.programs.backend.failures import available_memory
from shardviz.programs.backend.jaxprs import positive_arguments
from shardviz.programs.backend.retraced import trace_unsharded
from shardviz.programs.backend.trace import Output, Traced, left_to_compiler, trace
from shardviz.programs.failure import CancelledAfter
from shardviz.programs.program import Program
from shardviz.runs.backend.agree import account_of
from shardviz.runs.backend.checks import (
    output_layouts,
    shards_check,
    spec_checks,
    unsharded_checks,
)
from shardviz.runs.backend.compile import (
    Executable,
    Lowered,
    compile_lowered,
    compiler_options,
    donation_note,
    fingerprint,
    lower,
    refused_memory,
)
from shardviz.runs.backend.device_memory import (
    capacity_of,
    host_available,
    refuse_too_big,
)
from shardviz.runs.backend.inputs import Inputs, copies_allowed
from shardviz.runs.backend.partitioner import TooLargeToCompile
from shardviz.runs.backend.runner import Job, Runner


class Here(Runner):
    """Does a job in this process.

    Args:
        job: what to do.
        mesh: the jax mesh of the devices.
    """

    def __init__(self, job: Job, mesh: Mesh) -> None:
        super().__init__(job)
        self.mesh, self.devices = mesh, list(mesh.devices.flat)
        # What the program's mesh calls each device: jax's own id may be another one.
        names = job.program.mesh.device_ids.ravel().tolist()
        self.ids: dict[Any, int] = dict(zip(self.devices, names, strict=True))
        job.note(mesh=with_devices(job.program.mesh, self.devices))

    # What a program that was sent from another process does otherwise.

    def trace(self) -> Traced:
        return trace(self.job.program, self.mesh)

    def lower(self, traced: Traced) -> Lowered:
        return lower(traced)

    def lower_unsharded(self, single: Program, mesh: Mesh) -> Lowered:
        """The unsharded function, lowered for one device."""
        traced = trace_unsharded(self.job.program, single, lambda one: trace(one, mesh))
        return lower(traced)

    def key(self, lowered: Lowered) -> str:
        return fingerprint(lowered, self.devices, compiler_options(self.job.program))

    def positive(self, traced: Traced) -> tuple[int, ...]:
        """The positions of arguments whose made-up values are above 0."""
        return positive_arguments(traced.stage.jaxpr)

    def with_capacity(self, memory: Memory) -> Memory:
        """With the bytes that each device has, and those that are free on it now."""
        chip = chip_of_kind(self.devices[0].device_kind)
        known, count = capacity_of(self.devices), len(self.devices)
        total = known.total_per_device(count)
        if chip is not None:
            # What the runtime says leaves out what it keeps for itself.
            total = chip.device_bytes or total
        return memory.replace(capacity=total, free_now=known.per_device(count))

    def note_roofline(self) -> None:
        """Notes the roofline, where the figures of the chip are published."""
        chip = chip_of_kind(self.devices[0].device_kind)
        if chip is not None:
            self.job.note(roofline=roofline(self.job.report, chip))

    def inputs(self, lowered: Lowered, executable: Executable) -> Inputs:
        """The arguments of a run."""
        job, positive = self.job, self.positive(lowered.traced)
        chosen = _input_shardings(executable)
        compiled = {}
        # Those that no spec of the program's mesh describes are still free.
        for position in left_to_compiler(job.program):
            if chosen[position] is not None:
                compiled[position] = chosen[position]
        return Inputs(job.program, self.mesh, job.leaves, positive, compiled)

    def before_compile(self, lowered: Lowered) -> None:
        """Refuses what must not be compiled in this process: nothing."""

    # Compiling.

    def compile(self, lowered: Lowered) -> Executable:
        job = self.job
        # Before it is compiled, which may take minutes for nothing.
        if job.rendezvous is not None:
            job.enter("compare")
            account = account_of(job, self.devices, job.rendezvous.call)
            job.rendezvous.compare(account)
        job.enter("compile")
        made: list[Executable] = []

        def make() -> Executable:
            self.before_compile(lowered)
            made.append(self.compile_new(lowered))
            return made[0]

        # Text with effects or callbacks does not say what it calls, so it is not
        # cached.
        if lowered.cacheable:
            key = self.key(lowered)
            executable = job.cache.get_or_make(key, make, job.program.name)
        else:
            executable = make()
        job.note(cache_hit=not made, compile_s=executable.compile_s if made else 0.0)
        self.note_executable(lowered, executable)
        return executable

    def compile_new(self, lowered: Lowered) -> Executable:
        """Compiles, and reads the result; also the memory of what is refused."""
        program = self.job.program
        try:
            return compile_lowered(lowered, program.mesh)
        except TooLargeToCompile as refusal:
            memory = self.with_capacity(
                refused_memory(refusal.final, lowered, program.mesh)
            )
            available = available_memory(refusal.error) or memory.capacity
            self.job.note(memory=memory.replace(capacity=available))
            raise refusal.error from None

    def note_executable(self, lowered: Lowered, executable: Executable) -> None:
        """Notes what the compiler says."""
        job = self.job
        self._take_layouts(executable)
        outputs, mesh = lowered.traced.outputs, job.program.mesh
        shardings = jax.tree.leaves(executable.stage.output_shardings)
        layouts, without = output_layouts(outputs, shardings, mesh, self.ids)
        job.note(
            collectives=executable.collectives,
            partitioned=executable.partitioned,
            partition_s=executable.partition_s,
            memory=self.with_capacity(executable.memory),
            cost=executable.cost,
            loops=executable.loops,
            out_layouts=layouts,
        )
        notes = (
            executable.unpartitioned,
            executable.unread,
            donation_note(job.program, executable.reused),
        )
        job.add_notes([note for note in notes if note])
        self.note_roofline()
        specs = lowered.traced.out_specs
        job.check(*without, *spec_checks(outputs, specs, mesh, layouts))

    def _take_layouts(self, executable: Executable) -> None:
        """Takes over how the compiler splits arguments that were left to it."""
        job = self.job
        free = left_to_compiler(job.program)
        # Most programs say how every argument is split.
        if not free:
            return
        shardings = _input_shardings(executable)
        # None is the sharding of an argument that nothing reads.
        taken = [i for i in sorted(free) if shardings[i] is not None]
        arrays = list(job.program.arrays)
        layouts, without = output_layouts(
            [Output(arrays[i].name, arrays[i].shape, arrays[i].dtype) for i in taken],
            [shardings[i] for i in taken],
            job.program.mesh,
            self.ids,
        )
        for i in taken:
            layout = layouts.get(arrays[i].name)
            if layout is not None and layout.spec is not None:
                arrays[i] = arrays[i].replace(logical=None, spec=layout.spec)
        job.program = job.program.replace(arrays=tuple(arrays))
        job.note(in_layouts={**job.report.in_layouts, **layouts})
        job.check(*without)

    # Running.

    def run(self, lowered: Lowered, executable: Executable) -> None:
        job = self.job
        job.enter("place")
        inputs = self.inputs(lowered, executable)
        self.refuse_if_too_big(executable, inputs)
        self._meet("place")
        begun = time.perf_counter()
        placed = inputs.place_all()
        job.note(place_s=time.perf_counter() - begun)
        # A wrong placement would explain a wrong result, so it is looked at first.
        for request, array in zip(job.program.requests, placed, strict=True):
            layout = job.report.in_layouts.get(request.array.name, request.layout)
            if layout is not None:
                self._check_shards(request.array.name, layout, array)
        self._meet("run")
        job.enter("run")
        try:
            results = self.execute(executable, inputs, placed)
            if not lowered.cacheable:
                jax.effects_barrier()  # effects and callbacks may come after the results
        except Exception:
            forget_failed_callbacks()
            raise
        job.note(outputs=lowered.traced.out_tree.unflatten(results))
        job.enter("check")
        layouts = job.report.out_layouts
        for output, array in zip(lowered.traced.outputs, results, strict=True):
            if output.name in layouts:
                self._check_shards(output.name, layouts[output.name], array)
        compared = unsharded_checks(
            job.program,
            lowered,
            executable,
            self.devices,
            inputs,
            self.lower_unsharded,
            results,
        )
        job.check(*compared)

    def refuse_if_too_big(self, executable: Executable, inputs: Inputs) -> None:
        """Refuses a run that has not enough memory."""
        capacity, placed = capacity_of(self.devices), inputs.bytes_in_place
        refuse_too_big(executable.memory, capacity, len(self.devices), placed)
        arrays = self.job.program.arrays
        largest = max(arrays, key=lambda array: array.bytes, default=None)
        free = host_available()
        if inputs.leaves is None and largest and free and largest.bytes > free:
            raise OutOfMemory(
                f"Making up values for {largest.name}, {largest.short}, takes"
                f" {bytes_text(largest.bytes)} on this machine, which has"
                f" {bytes_text(free)} free. Give it a smaller shape, or take sv.compile,"
                " which needs no values."
            )

    def _meet(self, step: str) -> None:
        """Waits until all processes are ready, so that none waits in a collective."""
        if self.job.rendezvous is not None:
            self.job.rendezvous.ready(step)

    def execute(
        self, executable: Executable, inputs: Inputs, placed: list[jax.Array]
    ) -> list[jax.Array]:
        """Executes it as often as was asked for; the results of the last time."""
        job = self.job
        seconds: list[float] = []
        results: list[jax.Array] = []
        repeat = job.repeat or 1
        for done in range(repeat):
            if done:
                job.poll(CancelledAfter(done, repeat))
                del results[:]  # before the next ones take their memory
                inputs.replace_donated(placed)
            begun = time.perf_counter()
            results = list(self._execute_once(executable, placed))
            seconds.append(time.perf_counter() - begun)
        job.note(runs_s=tuple(seconds), run_s=statistics.median(seconds))
        return results

    def _execute_once(
        self, executable: Executable, placed: Sequence[jax.Array]
    ) -> Sequence[jax.Array]:
        """The results; a process that failed is not waited for."""
        if self.job.rendezvous is None:
            return jax.block_until_ready(executable.run(*placed))

        def execute() -> Sequence[jax.Array]:
            results = jax.block_until_ready(executable.run(*placed))
            jax.effects_barrier()  # jax keeps the effects of each thread apart
            return results

        return self.job.rendezvous.run(execute)

    @copies_allowed()
    def _check_shards(self, name: str, layout: Layout, array: jax.Array) -> None:
        self.job.check(shards_check(name, layout, array, self.ids))


def _input_shardings(executable: Executable) -> list[Any]:
    """The sharding of each argument as compiled; None if nothing reads it."""
    shardings = executable.stage.input_shardings
    return jax.tree.leaves(shardings, is_leaf=lambda sharding: sharding is None)
